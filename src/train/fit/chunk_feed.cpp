#include "train/fit/chunk_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "train/data/row_copy.h"
#include "train/data/sampler.h"
#include "train/data/targets.h"
#include "train/fit/array_feed.h"
#include "train/fit/evaluator.h"

namespace onnxgrad::train {
namespace {

constexpr std::size_t kMarks = 1024;  // more than FaultSearch keeps batches

void refuse_options(const std::string& what, const std::string& hint) {
  throw DataError({.what = what, .hint = hint});
}

// Rows of the source that are (or are not) drawn for validation.
BlockReader::Keep drawn_rows(double fraction, std::uint64_t seed, bool for_validation) {
  if (fraction == 0) return {};
  return [=](std::int64_t first, std::int64_t rows) {
    std::vector<std::int64_t> chosen;
    for (std::int64_t row = 0; row < rows; ++row) {
      if (is_validation_row(seed, fraction, first + row) == for_validation) chosen.push_back(row);
    }
    return chosen;
  };
}

}  // namespace

ChunkFeed::ChunkFeed(Session& session, DataSource& source, FitOptions& options, StopFlag& stop)
    : session_(session),
      source_(source),
      options_(options),
      as_they_come_(options.batch_size == FitOptions::kAsTheyCome),
      has_checksum_(options.checkpoint || !options.resume.empty()),
      stop_(stop) {
  if (session_.runner().takes_whole_batch()) {
    refuse_options("L-BFGS takes all rows at once, not data in chunks",
                   "Give arrays, or use another optimizer.");
  }
  if (options_.sampling != Sampling::kRows) {
    refuse_options("windows and weighted or balanced rows need arrays, not data in chunks",
                   "Give arrays, or use all rows.");
  }
  const double fraction = options_.validation_fraction;
  const bool is_share = fraction > 0 && fraction < 1;
  if (fraction != 0 && !is_share) {
    refuse_options(fmt::format("validation fraction {} is not between 0 and 1", fraction),
                   "Give a fraction of the rows, such as 0.1.");
  }
  if (options.batch_size == 0) options.batch_size = kDefaultBatchSize;
  block_.batch_rows = as_they_come_ ? 0 : options.batch_size;
  if (options_.class_weights) weigher_.emplace(session_.schema(), *options_.class_weights);
  if (weigher_ && weigher_->needs_counts() && !source_.can_start_again()) {
    refuse_options(
        "balanced class weights need a pass over all rows before the first step, but the "
        "batches can be read only once",
        "Give the weights as numbers by label, or a function that returns a new iterator.");
  }
  reader_.emplace(
      source_,
      [this](const Dataset& chunk) {
        PreparedData rows = prepare_data(session_.schema(), session_.runner().data_ports(), chunk,
                                         options_.allow_nan);
        if (weigher_) weigher_->weigh(rows);
        return rows;
      },
      drawn_rows(fraction, options_.seed, false), block_options());
}

BlockOptions ChunkFeed::block_options() {
  BlockOptions blocks{.batch_size = block_.batch_rows,
                      .block_bytes = options_.buffer_bytes / 2,
                      .shuffle = options_.shuffle,
                      .seed = options_.seed};
  if (as_they_come_) return blocks;
  blocks.pieces = source_.pieces();
  if (blocks.pieces.empty()) return blocks;
  blocks.rank = session_.workers().rank();
  blocks.workers = session_.workers().size();
  lane_rows_ = 0;
  for (const Piece& piece : blocks.pieces) {
    *lane_rows_ += piece.rows;
    if (options_.validation_fraction == 0) continue;
    std::int64_t kept = 0;
    for (std::int64_t row = piece.first_row; row < piece.first_row + piece.rows; ++row) {
      if (!is_validation_row(options_.seed, options_.validation_fraction, row)) ++kept;
    }
    blocks.used.push_back(kept);
    *lane_rows_ += kept - piece.rows;
  }
  return blocks;
}

// A pass over the rows, of several workers each over a part of them.
void ChunkFeed::prepare_class_weights() {
  if (!weigher_ || !weigher_->needs_counts()) return;
  const Workers& workers = session_.workers();
  const OwnRange own(source_, workers);
  if (!count(stop_)) return;
  if (own.is_part()) {
    weigher_->put_together(workers);
    count_.reset();  // they are this worker's
  }
  weigher_->settle();
}

// A pass over all rows. False: stopped.
bool ChunkFeed::count(StopFlag& stop) {
  const auto see = [this](const Dataset& chunk) {
    if (weigher_ && weigher_->needs_counts()) {
      weigher_->count(encode_target(session_.schema().loss, chunk.target));
    }
  };
  count_ = count_source(source_, block_.batch_rows, options_.drop_last,
                        drawn_rows(options_.validation_fraction, options_.seed, false), see, stop);
  return count_.has_value();
}

bool ChunkFeed::count_batches(StopFlag& stop) {
  return count_ || (source_.can_start_again() && count(stop));
}

void ChunkFeed::open_validation(std::optional<Validation>& validation) {
  prepare_class_weights();  // once all workers are known to do the same
  const double fraction = options_.validation_fraction;
  if (fraction != 0) {
    validation.emplace(session_, options_, source_, drawn_rows(fraction, options_.seed, true),
                       weigher_ ? &*weigher_ : nullptr);
  } else if (options_.validation_source != nullptr) {
    validation.emplace(session_, options_, *options_.validation_source);
  } else if (auto rows = validation_rows(session_, options_)) {
    if (has_checksum_) validation_checksum_ = checksum_of(*rows, nullptr);
    validation.emplace(session_, options_, *std::move(rows));
  }
}

void ChunkFeed::begin_epoch(std::int64_t epoch) {
  first_rows_ = 0;
  marks_.clear();
  if (has_checksum_) checksum_.emplace();
  reader_->start(static_cast<std::uint32_t>(epoch - 1));
}

// drop_last, for batches used as they come: those with fewer rows than the first.
bool ChunkFeed::is_left_out(const Block& block) const {
  return as_they_come_ && options_.drop_last && block.data.rows < first_rows_;
}

const RowBlock* ChunkFeed::next(StopFlag& stop) {
  do {
    present_ = reader_->next(stop);
    if (present_ == nullptr) return nullptr;
    if (first_rows_ == 0) first_rows_ = present_->data.rows;
  } while (is_left_out(*present_));
  if (has_checksum_) add_to_checksum(*present_);
  block_.data = &present_->data;
  block_.order = present_->order;
  block_.rows = present_->rows;
  if (as_they_come_) block_.batch_rows = block_.rows;
  return &block_;
}

// A sum over the rows in any order: each worker has others, and all of them what one would have.
void ChunkFeed::add_own_rows_to_checksum(const Block& block) {
  Mark mark = marks_.empty() ? Mark{} : marks_.back();
  for (std::int64_t begin = 0; begin < block.rows; begin += block_.batch_rows) {
    const std::int64_t rows = std::min(block_.batch_rows, block.rows - begin);
    const RowSlice own = session_.workers().slice_of(rows);
    for (std::int64_t place = begin + own.first; place < begin + own.first + own.rows; ++place) {
      const std::int64_t row =
          block.order.empty() ? place : block.order[static_cast<std::size_t>(place)];
      auto hash = static_cast<std::uint64_t>(mark.rows_done + place);
      for (const Column& column : block.data.columns) {
        hash = hash_row(column, row, hash);
      }
      mark.sum += hash;
    }
  }
  mark.rows_done += block.rows;
  marks_.push_back(std::move(mark));
  if (marks_.size() > kMarks) marks_.pop_front();
}

void ChunkFeed::add_to_checksum(const Block& block) {
  if (lane_rows_) {
    add_own_rows_to_checksum(block);
    return;
  }
  for (const Column& column : block.data.columns) {
    checksum_->update(fmt::format("{} {} {}\n", column.name, dtype_name(column.values.dtype()),
                                  column.row_bytes));
    add_rows(*checksum_, column, 0, block.data.rows);
  }
  const std::int64_t before = marks_.empty() ? 0 : marks_.back().rows_done;
  marks_.push_back({.rows_done = before + block.data.rows, .checksum = checksum_->hex()});
  if (marks_.size() > kMarks) marks_.pop_front();
}

std::string ChunkFeed::checksum(std::int64_t row) const {
  if (row == 0) return validation_checksum_;
  for (const Mark& mark : marks_) {
    if (mark.rows_done < row) continue;
    if (!lane_rows_) return mark.checksum + validation_checksum_;
    std::array<std::int64_t, 2> halves{static_cast<std::int64_t>(mark.sum >> 32),
                                       static_cast<std::int64_t>(mark.sum & 0xFFFFFFFF)};
    session_.workers().add_up(std::span<std::int64_t>(halves));
    const std::uint64_t sum =
        (static_cast<std::uint64_t>(halves[0]) << 32) + static_cast<std::uint64_t>(halves[1]);
    return fmt::format("{} rows {:016x} ", *lane_rows_, sum) + validation_checksum_;
  }
  return "";
}

std::optional<std::int64_t> ChunkFeed::num_rows() const {
  if (count_) return count_->rows;
  if (lane_rows_) return lane_rows_;
  const auto all = source_.num_rows();
  if (!all) return std::nullopt;
  return std::llround((1 - options_.validation_fraction) * static_cast<double>(*all));
}

std::optional<std::int64_t> ChunkFeed::num_batches() const {
  if (count_) return count_->batches;
  const auto rows = num_rows();
  const std::int64_t batch_rows = as_they_come_ ? first_rows_ : block_.batch_rows;
  if (!rows || batch_rows == 0) return std::nullopt;
  const bool has_tail = *rows % batch_rows > 0 && !options_.drop_last;
  return *rows / batch_rows + (has_tail ? 1 : 0);
}

}  // namespace onnxgrad::train

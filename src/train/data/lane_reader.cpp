#include "train/data/lane_reader.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/philox.h"
#include "train/data/row_copy.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {
namespace {

constexpr std::uint32_t kOthers = std::numeric_limits<std::uint32_t>::max();

// Each lane of each block of each epoch has a separate stream.
void permute_lane(const Pass& pass, std::uint64_t block, std::uint64_t lane,
                  std::span<std::uint32_t> order) {
  const std::uint64_t number = block * kMostLanes + lane;
  base::PhiloxStream stream(pass.seed ^ (number << 32), base::RandomUse::kShuffle, pass.epoch);
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[stream.below(i)]);
}

// Copies `count` rows from `first` on behind the rows of `to`.
void copy_rows_to(PreparedData& to, const PreparedData& from, std::int64_t first,
                  std::int64_t count) {
  for (std::size_t c = 0; c < from.columns.size(); ++c) {
    Column& column = to.columns[c];
    check_constant(column, from.columns[c]);
    if (column.is_constant) continue;
    copy_rows(from.columns[c], first, count, column, to.rows);
  }
  to.rows += count;
}

}  // namespace

LaneReader::LaneReader(const DataSource& source, const Lanes& lanes, Options options)
    : source_(source),
      lanes_(lanes),
      options_(std::move(options)),
      streams_(lanes.lanes().size()),
      now_(streams_.size(), 0),
      after_(streams_.size(), 0),
      places_(streams_.size()),
      is_needed_(streams_.size(), false) {}

// In the order of the rows the pieces between this worker's slices are left out.
std::vector<std::int64_t> LaneReader::needed_pieces(std::size_t lane) const {
  const std::vector<std::int64_t>& all = lanes_.lanes()[lane].pieces;
  if (options_.pass.shuffle || !options_.uses_all_rows || options_.workers == 1) return all;
  const std::int64_t batch_rows = options_.batch_size;
  const auto has_own = [&](const Piece& piece) {
    const std::int64_t end = piece.first_row + piece.rows;
    std::int64_t batch = piece.first_row / batch_rows * batch_rows;
    for (; batch < end; batch += batch_rows) {
      const std::int64_t rows = std::min(batch_rows, lanes_.rows() - batch);
      const RowSlice own = slice_of(rows, options_.rank, options_.workers);
      const std::int64_t first = batch + own.first;
      if (own.rows == 0 || (first < end && first + own.rows > piece.first_row)) return true;
    }
    return false;
  };
  const std::vector<Piece> pieces = source_.pieces();
  std::vector<std::int64_t> needed;
  for (const std::int64_t piece : all) {
    if (has_own(pieces[static_cast<std::size_t>(piece)])) needed.push_back(piece);
  }
  return needed;
}

// The next chunk of a lane. False: it is to end.
bool LaneReader::load(std::size_t lane) {
  Stream& stream = streams_[lane];
  if (stream.source == nullptr) {
    stream.source = source_.open_pieces(needed_pieces(lane));
    stream.source->start(options_.pass);
  }
  stream.first = stream.end();
  stream.rows.rows = 0;
  while (!options_.ends()) {
    const std::optional<Dataset> chunk = stream.source->next();
    if (!chunk) {
      throw DataError({.what = "there are fewer rows than at the start",
                       .hint = "Do not change files while they are read."});
    }
    PreparedData rows = options_.prepare(*chunk);
    // In the order of the rows, pieces may have been left out.
    if (!options_.pass.shuffle && options_.uses_all_rows) stream.first = chunk->first_row;
    if (options_.keep) {
      const auto chosen = options_.keep(chunk->first_row, rows.rows);
      if (chosen.empty()) continue;
      if (std::ssize(chosen) < rows.rows) rows = rows.select(chosen);
    }
    stream.rows = std::move(rows);
    return true;
  }
  return false;
}

const PreparedData* LaneReader::sample() {
  const std::int64_t batch = std::min(options_.batch_size, lanes_.rows());
  const RowSlice own = slice_of(batch, options_.rank, options_.workers);
  std::int64_t left = std::min(own.first, batch - 1);
  std::vector<std::int64_t> counts(streams_.size());
  lanes_.count(batch, counts);
  std::size_t lane = 0;
  for (; left >= counts[lane]; ++lane) left -= counts[lane];
  if (streams_[lane].rows.rows == 0 && !load(lane)) return nullptr;
  return &streams_[lane].rows;
}

std::int64_t LaneReader::most_rows(std::int64_t begin, std::int64_t end) const {
  std::int64_t own = 0;
  for (std::int64_t batch = begin; batch < end; batch += options_.batch_size) {
    const std::int64_t rows = std::min(options_.batch_size, end - batch);
    own += slice_of(rows, options_.rank, options_.workers).rows;
  }
  return own == 0 ? end - begin : own;  // it needs some row
}

// Fills places_ and is_needed_ for the block [begin, end).
void LaneReader::place(std::int64_t begin, std::int64_t end, bool takes_all) {
  const std::size_t lanes = streams_.size();
  std::vector<std::vector<std::uint32_t>> orders(lanes);
  for (std::size_t l = 0; l < lanes; ++l) {
    const auto width = static_cast<std::size_t>(after_[l] - now_[l]);
    places_[l].resize(width);
    is_needed_[l] = false;
    if (!options_.pass.shuffle) continue;
    orders[l].resize(width);
    permute_lane(options_.pass, blocks_, l, orders[l]);
  }
  std::vector<std::int64_t> done = now_;
  std::vector<std::int64_t> next(lanes);
  for (std::int64_t batch = begin; batch < end; batch += options_.batch_size) {
    const std::int64_t rows = std::min(options_.batch_size, end - batch);
    const RowSlice own = slice_of(rows, options_.rank, options_.workers);
    lanes_.count(batch + rows, next);
    std::int64_t position = 0;  // in the batch
    for (std::size_t l = 0; l < lanes; ++l) {
      for (; done[l] < next[l]; ++done[l], ++position) {
        const auto step = static_cast<std::size_t>(done[l] - now_[l]);
        const bool is_own = takes_all || (position >= own.first && position < own.first + own.rows);
        if (is_own) is_needed_[l] = true;
        places_[l][orders[l].empty() ? step : orders[l][step]] =
            is_own ? static_cast<std::uint32_t>(batch - begin + position) : kOthers;
      }
    }
  }
}

// This worker's rows of a lane. False: it is to end.
bool LaneReader::take(std::size_t lane, PreparedData& data, std::vector<std::int64_t>& order) {
  Stream& stream = streams_[lane];
  const std::vector<std::uint32_t>& places = places_[lane];
  const std::int64_t begin = now_[lane];
  for (std::int64_t row = begin; row < after_[lane];) {
    const auto is_own = [&](std::int64_t i) {
      return places[static_cast<std::size_t>(i - begin)] != kOthers;
    };
    if (!is_own(row)) {
      ++row;
      continue;
    }
    while (row >= stream.end()) {
      if (!load(lane)) return false;
    }
    const std::int64_t most = std::min(after_[lane], stream.end());
    std::int64_t stop = row;
    while (stop < most && is_own(stop)) ++stop;
    for (std::int64_t i = row; i < stop; ++i) {
      order[places[static_cast<std::size_t>(i - begin)]] = data.rows + (i - row);
      if (options_.workers > 1) numbers_.push_back(stream.rows.row_number(i - stream.first));
    }
    if (options_.workers == 1) data.add_ranges(stream.rows, row - stream.first, stop - row);
    copy_rows_to(data, stream.rows, row - stream.first, stop - row);
    row = stop;
  }
  return true;
}

bool LaneReader::fill(std::int64_t begin, std::int64_t end, PreparedData& data,
                      std::vector<std::int64_t>& order) {
  lanes_.count(end, after_);
  const std::int64_t batch = std::min(options_.batch_size, end - begin);
  const bool has_own = slice_of(batch, options_.rank, options_.workers).rows > 0;
  place(begin, end, !has_own);
  order.assign(static_cast<std::size_t>(end - begin), 0);
  numbers_.clear();
  for (std::size_t l = 0; l < streams_.size(); ++l) {
    if (is_needed_[l] && !take(l, data, order)) return false;
  }
  if (options_.workers > 1) {
    data.ranges = {{.begin = 0,
                    .first = 0,
                    .numbers = std::make_shared<const std::vector<std::int64_t>>(numbers_)}};
  } else if (!options_.pass.shuffle) {
    order.clear();  // one lane, of all rows
  }
  now_ = after_;
  ++blocks_;
  return true;
}

}  // namespace onnxgrad::train

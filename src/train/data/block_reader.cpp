#include "train/data/block_reader.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/philox.h"
#include "train/data/lane_reader.h"
#include "train/data/lanes.h"
#include "train/data/row_copy.h"

namespace onnxgrad::train {
namespace {

using Clock = std::chrono::steady_clock;

// While the other side works, `stop` is checked this often.
constexpr std::chrono::milliseconds kPoll{20};

void permute(std::uint64_t seed, std::uint32_t epoch, std::uint32_t block,
             std::span<std::int64_t> order) {
  // Each block of each epoch has a separate stream.
  base::PhiloxStream stream(seed ^ (std::uint64_t{block} << 32), base::RandomUse::kShuffle, epoch);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[stream.below(i)]);
}

}  // namespace

bool is_validation_row(std::uint64_t seed, double fraction, std::int64_t row) {
  const auto place = static_cast<std::uint64_t>(row);
  const auto words =
      base::philox4x32({static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
                        0xFFFFFFFFU, static_cast<std::uint32_t>(base::RandomUse::kValidation)},
                       seed);
  return static_cast<double>(words[0]) < fraction * 0x1p32;
}

BlockReader::BlockReader(DataSource& source, Prepare prepare, Keep keep,
                         const BlockOptions& options)
    : source_(source),
      prepare_(std::move(prepare)),
      keep_(std::move(keep)),
      options_(options),
      budget_(base::current_budget()) {
  for (int i = 0; i < 2; ++i) {
    blocks_.push_back(std::make_unique<Block>());
    free_.push_back(blocks_.back().get());
  }
}

BlockReader::~BlockReader() { end_pass(); }

void BlockReader::end_pass() {
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  free_.clear();
  for (const auto& block : blocks_) {
    *block = {};  // between passes the memory belongs to another reader, for validation
    free_.push_back(block.get());
  }
  ready_.clear();
  filling_ = used_ = nullptr;
  error_ = nullptr;
  is_done_ = true;
}

void BlockReader::start(std::uint32_t epoch) {
  end_pass();
  is_ending_ = is_done_ = false;
  blocks_done_ = 0;
  try {
    thread_ = std::thread([this, epoch] { read_pass(epoch); });
  } catch (const std::system_error&) {
    is_ending_ = is_done_ = true;
    throw DeviceError({.what = "the system does not give a thread that reads the rows",
                       .hint = "Raise the limit of processes or memory."});
  }
}

const Block* BlockReader::next(StopFlag& stop) {
  std::unique_lock lock(mutex_);
  if (used_ != nullptr) {
    free_.push_back(std::exchange(used_, nullptr));
    changed_.notify_all();
  }
  const auto is_over = [&] { return !ready_.empty() || is_done_; };
  if (!is_over()) {
    const auto start = Clock::now();
    while (!changed_.wait_for(lock, kPoll, is_over)) {
      lock.unlock();  // an interrupt callback may take long
      const bool ends = stop.is_set();
      lock.lock();
      if (ends) break;
    }
    waited_s_ += std::chrono::duration<double>(Clock::now() - start).count();
  }
  if (ready_.empty()) {
    if (is_done_ && error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return nullptr;
  }
  used_ = ready_.front();
  ready_.pop_front();
  return used_;
}

void BlockReader::read_pass(std::uint32_t epoch) {
  const base::MemoryBudgetScope scope(budget_);
  std::exception_ptr error;
  try {
    read_chunks(epoch);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::scoped_lock lock(mutex_);
    error_ = error;
    is_done_ = true;
  }
  changed_.notify_all();
}

void BlockReader::read_chunks(std::uint32_t epoch) {
  if (!options_.pieces.empty()) {
    read_lanes(epoch);
    return;
  }
  source_.start({.epoch = epoch, .shuffle = options_.shuffle, .seed = options_.seed});
  while (const std::optional<Dataset> chunk = source_.next()) {
    PreparedData rows = prepare_(*chunk);
    if (keep_) {
      const auto chosen = keep_(chunk->first_row, rows.rows);
      if (chosen.empty()) continue;
      if (std::ssize(chosen) < rows.rows) rows = rows.select(chosen);
    }
    if (!add_rows(rows, epoch)) return;
  }
  if (filling_ != nullptr && filling_->data.rows > 0) hand_over(epoch);
}

void BlockReader::read_lanes(std::uint32_t epoch) {
  const Pass pass{.epoch = epoch, .shuffle = options_.shuffle, .seed = options_.seed};
  const Lanes lanes(options_.pieces, options_.used, pass,
                    count_lanes(options_.pieces, options_.block_bytes));
  LaneReader reader(source_, lanes,
                    {.pass = pass,
                     .batch_size = options_.batch_size,
                     .rank = options_.rank,
                     .workers = options_.workers,
                     .uses_all_rows = options_.used.empty(),
                     .prepare = prepare_,
                     .keep = keep_,
                     .ends = [this] { return is_ending(); }});
  const std::int64_t batch_rows = options_.batch_size;
  std::int64_t block_rows = 0;
  for (std::int64_t begin = 0; begin < lanes.rows();) {
    const PreparedData* const sample = reader.sample();
    if (sample == nullptr) return;
    filling_ = take_free();
    if (filling_ == nullptr) return;
    if (block_rows == 0) {  // equal for any number of workers
      const std::int64_t fit = options_.block_bytes / row_bytes_of(*sample);
      block_rows = std::max<std::int64_t>(fit / batch_rows - 1, 1) * batch_rows;
      if (lanes.rows() <= fit) block_rows = lanes.rows();
    }
    std::int64_t end = begin + block_rows;
    if (lanes.rows() - end < batch_rows) end = lanes.rows();  // with the smaller last batch
    capacity_ = std::max(capacity_, reader.most_rows(begin, end));
    make_room(*sample);
    if (!reader.fill(begin, end, filling_->data, filling_->order)) return;
    filling_->rows = end - begin;
    ++blocks_done_;
    {
      const std::scoped_lock lock(mutex_);
      ready_.push_back(std::exchange(filling_, nullptr));
      changed_.notify_all();
    }
    begin = end;
  }
}

bool BlockReader::is_ending() {
  const std::scoped_lock lock(mutex_);
  return is_ending_;
}

// Waits for an unused block; nullptr: the pass should end.
Block* BlockReader::take_free() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_.empty() || is_ending_; });
  if (is_ending_) return nullptr;
  Block* const block = free_.back();
  free_.pop_back();
  return block;
}

bool BlockReader::hand_over(std::uint32_t epoch) {
  Block& block = *std::exchange(filling_, nullptr);
  block.order.clear();
  if (options_.shuffle && options_.batch_size > 0) {
    block.order.resize(static_cast<std::size_t>(block.data.rows));
    permute(options_.seed, epoch, blocks_done_, block.order);
  }
  block.rows = block.data.rows;
  ++blocks_done_;
  const std::scoped_lock lock(mutex_);
  ready_.push_back(&block);
  changed_.notify_all();
  return !is_ending_;
}

std::int64_t BlockReader::row_bytes_of(const PreparedData& sample) const {
  std::int64_t row_bytes = 0;
  for (const Column& column : sample.columns) row_bytes += column.row_bytes;
  if (options_.shuffle) row_bytes += static_cast<std::int64_t>(sizeof(std::int64_t));  // the order
  return std::max<std::int64_t>(row_bytes, 1);
}

// The block being filled gets memory for full batches, and the form of `sample`.
void BlockReader::make_room(const PreparedData& sample) {
  if (capacity_ == 0) {
    const std::int64_t rows = options_.block_bytes / row_bytes_of(sample);
    const std::int64_t known = source_.num_rows().value_or(rows);
    const std::int64_t batches =
        std::min(rows / options_.batch_size, known / options_.batch_size + 1);
    capacity_ = std::max<std::int64_t>(batches, 1) * options_.batch_size;
  }
  PreparedData& data = filling_->data;
  bool fits = data.columns.size() == sample.columns.size();
  for (std::size_t c = 0; fits && c < sample.columns.size(); ++c) {
    fits = data.columns[c].values.dims() == sample.columns[c].batch_dims(capacity_) &&
           data.columns[c].values.dtype() == sample.columns[c].values.dtype();
  }
  if (!fits) {
    data = sample;
    for (Column& column : data.columns) {
      if (column.is_constant) continue;
      column.values = Tensor::empty(column.values.dtype(), column.batch_dims(capacity_));
      column.placed = {};
    }
  }
  data.rows = 0;
  data.ranges.clear();
}

// False: the pass should end.
bool BlockReader::add_rows(const PreparedData& rows, std::uint32_t epoch) {
  if (options_.batch_size == 0) {
    filling_ = take_free();
    if (filling_ == nullptr) return false;
    filling_->data = rows;
    return hand_over(epoch);
  }
  std::int64_t done = 0;
  while (done < rows.rows) {
    if (filling_ == nullptr) {
      filling_ = take_free();
      if (filling_ == nullptr) return false;
      make_room(rows);
    }
    PreparedData& data = filling_->data;
    const std::int64_t count = std::min(capacity_ - data.rows, rows.rows - done);
    for (std::size_t c = 0; c < rows.columns.size(); ++c) {
      Column& column = data.columns[c];
      check_constant(column, rows.columns[c]);
      if (column.is_constant) continue;
      copy_rows(rows.columns[c], done, count, column, data.rows);
    }
    data.add_ranges(rows, done, count);
    data.rows += count;
    done += count;
    if (data.rows == capacity_ && !hand_over(epoch)) return false;
  }
  return true;
}

namespace {

std::int64_t rows_of(const Dataset& chunk) {
  const Tensor& target = chunk.targets.empty() ? chunk.target : chunk.targets.front().tensor;
  const bool is_alone = !target.is_defined() && !chunk.inputs.empty();  // no target at all
  const Tensor& counted = is_alone ? chunk.inputs.front().tensor : target;
  return counted.is_defined() && counted.dims().rank() > 0 ? counted.dims()[0] : 0;
}

}  // namespace

std::optional<SourceCount> count_source(DataSource& source, std::int64_t batch_size, bool drop_last,
                                        const BlockReader::Keep& keep,
                                        const std::function<void(const Dataset&)>& see,
                                        StopFlag& stop) {
  SourceCount count;
  std::int64_t first_rows = 0;  // rows of the first chunk, if chunks are batches
  source.start({});
  while (const std::optional<Dataset> chunk = source.next()) {
    if (stop.is_set()) return std::nullopt;
    if (see) see(*chunk);
    std::int64_t rows = rows_of(*chunk);
    if (keep) rows = std::ssize(keep(chunk->first_row, rows));
    if (rows == 0) continue;
    if (first_rows == 0) first_rows = rows;
    const bool is_left_out = drop_last && rows < first_rows;
    if (batch_size == 0 && !is_left_out) ++count.batches;
    count.rows += rows;
  }
  if (batch_size > 0) {
    const bool has_tail = count.rows % batch_size > 0 && !drop_last;
    count.batches = count.rows / batch_size + (has_tail ? 1 : 0);
  }
  return count;
}

}  // namespace onnxgrad::train

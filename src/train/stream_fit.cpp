#include "train/stream_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/finite.h"
#include "train/mean.h"

namespace onnxgrad::train {
namespace {

using runtime::Execution;

void refuse(const std::string& what, const std::string& mend) {
  throw DataError({.what = what, .mend = mend});
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

StreamFit::StreamFit(Session& session, DataSource& source, const FitOptions& options,
                     std::atomic<bool>& stop, History& history)
    : session_(session),
      fit_(session),
      options_(options),
      stop_(stop),
      history_(history),
      num_rows_(source.num_rows()),
      first_rate_(session.learning_rate()) {
  history_ = {};
  check_fit_options(options_);
  settle_options();
  open_readers(source);
  if (options_.on_non_finite == OnNonFinite::kRaise ||
      options_.on_non_finite == OnNonFinite::kStop) {
    epoch_start_.emplace(session_);
  }
  const bool restores_best = options_.early_stopping && options_.early_stopping->restore_best;
  if (restores_best || options_.keep_best) best_.emplace(session_);
  if (options_.discard) {
    before_.emplace(session_);
    before_->take(session_);
  }
  countdown_ = options_.every_n_steps;
}

void StreamFit::settle_options() {
  constexpr std::int64_t kBatchSize = 32;
  if (session_.takes_whole_batch()) {
    refuse("L-BFGS takes all rows at once, not data in chunks",
           "Give arrays, or take another optimizer.");
  }
  if (options_.checkpoint || !options_.resume.empty()) {
    refuse("checkpoints are of fits on arrays, not on data in chunks",
           "Give arrays, or save the session's state after each fit.");
  }
  if (options_.sampling == Sampling::kWindows) {
    refuse("windows are of arrays, not of data in chunks", "Give arrays, or take all rows.");
  }
  as_they_come_ = options_.batch_size == FitOptions::kAsTheyCome;
  if (options_.batch_size == 0) options_.batch_size = kBatchSize;
  batch_size_ = as_they_come_ ? 0 : options_.batch_size;
}

void StreamFit::open_readers(DataSource& source) {
  const auto& all_ports = session_.step_executor().inputs();
  for (std::size_t i = 0; i < all_ports.size(); ++i) {
    if (i == session_.learning_rate_port()) continue;
    data_ports_.push_back(all_ports[i]);
    ports_.push_back(i);
  }
  const double fraction = options_.validation_fraction;
  const bool is_share = fraction > 0 && fraction < 1;
  if (fraction != 0 && !is_share) {
    refuse(fmt::format("validation fraction {} is not between 0 and 1", fraction),
           "Give a share of the rows, such as 0.1.");
  }
  if (fraction != 0) {
    validation_.emplace(session_, options_, source, drawn_rows(fraction, options_.seed, true));
  } else if (options_.validation_source != nullptr) {
    validation_.emplace(session_, options_, *options_.validation_source);
  } else if (auto rows = validation_rows(session_, options_)) {
    validation_.emplace(session_, options_, *std::move(rows));
  }
  reader_.emplace(
      source,
      [this](const Dataset& chunk) {
        return prepare_data(session_, data_ports_, chunk, options_.allow_nan);
      },
      drawn_rows(fraction, options_.seed, false),
      BlockOptions{.batch_size = batch_size_,
                   .block_bytes = options_.block_bytes,
                   .shuffle = options_.shuffle,
                   .seed = options_.seed});
}

// When the first block has told the size of batches that are taken as they come.
void StreamFit::prepare_schedule() {
  if (!options_.schedule || schedule_) return;
  if (!num_rows_) {
    refuse("a schedule needs to know how many rows there are",
           "Say it: onnxgrad.data.Batches(batches, rows=1000).");
  }
  const double share = 1 - options_.validation_fraction;
  const std::int64_t rows = std::llround(share * static_cast<double>(*num_rows_));
  const bool has_tail = rows % batch_size_ > 0 && !options_.drop_last;
  const std::int64_t steps = options_.epochs * (rows / batch_size_ + (has_tail ? 1 : 0));
  schedule_.emplace(*options_.schedule, first_rate_, steps / session_.steps_per_update(),
                    options_.epochs);
}

// What ends with the fit, whatever ends it: schedules, and trials altogether.
struct StreamFit::RunEnder {
  explicit RunEnder(StreamFit& ended) : fit(ended) {}
  ~RunEnder() {
    if (fit.schedule_) fit.session_.set_learning_rate(fit.first_rate_);
    if (fit.before_) fit.before_->restore(fit.session_);
  }
  RunEnder(const RunEnder&) = delete;
  RunEnder& operator=(const RunEnder&) = delete;
  StreamFit& fit;
};

void StreamFit::run() {
  const RunEnder ender{*this};
  stop_.store(false, std::memory_order_relaxed);
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(options_.max_seconds));
  for (; epoch_ <= options_.epochs; ++epoch_) {
    EpochLog log;
    if (!run_epoch(log)) break;
    history_.epochs.push_back(log);
    if (options_.on_epoch_end && options_.on_epoch_end(log)) end_with("a callback asked to stop");
    if (stop_.load(std::memory_order_relaxed)) end_with("stop() was called");
    if (!history_.stop_reason.empty()) break;
  }
  if (best_ && history_.best_epoch) best_->restore(session_);
}

// False, for the sake of its callers; the first reason is kept.
bool StreamFit::end_with(std::string reason) {
  if (history_.stop_reason.empty()) history_.stop_reason = std::move(reason);
  return false;
}

// False: stopped before its end.
bool StreamFit::run_epoch(EpochLog& log) {
  const auto start = Clock::now();
  if (epoch_start_) epoch_start_->take(session_);
  loss_sum_ = 0;
  weight_sum_ = 0;
  rows_done_ = 0;
  const double waited_before = reader_->waited_s();
  const bool is_whole = run_blocks();
  // The last update may have overflowed, which no loss has shown yet.
  if (epoch_start_ && !runtime::all_finite(session_.state_views())) {
    handle_fault("a weight is not finite");
    return false;
  }
  if (!is_whole) return false;
  const double train_seconds = seconds_since(start);
  log.epoch = epoch_;
  log.train_loss = mean_of(loss_sum_, weight_sum_);
  log.learning_rate = session_.learning_rate();
  log.steps = step_;
  log.rows = rows_done_;
  log.rows_per_s = static_cast<double>(rows_done_) / std::max(train_seconds, 1e-9);
  log.data_wait_s = reader_->waited_s() - waited_before;
  if (validation_ && epoch_ % options_.validation_every == 0) validation_->run(stop_, log);
  if (schedule_) {
    schedule_->end_epoch(log.val_loss.value_or(log.train_loss),
                         step_ / session_.steps_per_update());
  }
  mark_best(log);
  log.seconds = seconds_since(start);
  return true;
}

bool StreamFit::run_blocks() {
  const PassEnder ender{*reader_};
  reader_->start(static_cast<std::uint32_t>(epoch_ - 1));
  while (const Block* const block = reader_->next(stop_)) {
    if (!run_block(*block)) return false;
  }
  if (stop_.load(std::memory_order_relaxed)) return end_with("stop() was called");
  if (rows_done_ == 0) {
    refuse(fmt::format("epoch {} has no rows", epoch_),
           options_.drop_last ? "Take smaller batches, or keep the last one."
                              : "Give data with rows; an iterator that is used up gives none a "
                                "second time.");
  }
  return true;
}

bool StreamFit::run_block(const Block& block) {
  const std::int64_t rows = block.data.rows;
  if (batch_size_ == 0) batch_size_ = rows;
  prepare_schedule();
  if (!block.order.empty() && staging_.empty()) {
    for (const Column& column : block.data.columns) {
      staging_.push_back(Tensor::empty(column.values.dtype(), column.batch_dims(batch_size_)));
    }
  }
  const std::int64_t step_rows = as_they_come_ ? rows : batch_size_;
  for (std::int64_t begin = 0; begin < rows; begin += step_rows) {
    const std::int64_t count = std::min(step_rows, rows - begin);
    if (options_.drop_last && count < batch_size_) break;
    if (!run_batch(block.data, block.order, begin, count)) return false;
  }
  return true;
}

// The plan of the last batch, unless this one has another shape.
Execution& StreamFit::plan(const PreparedData& rows, std::int64_t count) {
  std::vector<Dims> dims(session_.step_executor().inputs().size());
  for (std::size_t c = 0; c < ports_.size(); ++c) {
    dims[ports_[c]] = rows.columns[c].batch_dims(count);
  }
  if (plan_ == nullptr || dims != plan_dims_) {
    plan_ = &session_.prepare_step(dims);
    pin_.emplace(*plan_);
    plan_dims_ = std::move(dims);
  }
  return *plan_;
}

// False: training ends with this step.
bool StreamFit::run_batch(const PreparedData& rows, std::span<const std::int64_t> order,
                          std::int64_t begin, std::int64_t count) {
  Execution& execution = plan(rows, count);
  for (std::size_t c = 0; c < ports_.size(); ++c) {
    const Column& column = rows.columns[c];
    if (order.empty()) {
      execution.bind(ports_[c], column.row(begin));
      continue;
    }
    const auto chosen =
        order.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
    copy_rows(column.values.raw(), column.row_bytes, chosen, staging_[c].mutable_raw());
    execution.bind(ports_[c], staging_[c].raw());
  }
  if (schedule_) {
    session_.set_learning_rate(schedule_->rate(step_ / session_.steps_per_update()));
  }
  if (options_.learning_rate) session_.set_learning_rate(options_.learning_rate(step_));
  const double loss = session_.run_step(execution);
  session_.set_steps(session_.steps() + 1);
  ++step_;
  history_.step_losses.push_back(loss);
  const double weight = session_.graph().has_denominator
                            ? read_scalar(execution.output(1), session_.loss_dtype())
                            : static_cast<double>(count);
  if (options_.on_non_finite == OnNonFinite::kSkip && !std::isfinite(loss)) {
    ++history_.skipped_steps;
  } else {
    loss_sum_ += session_.reduces_by_mean() ? loss * weight : loss;
    weight_sum_ += weight;
  }
  rows_done_ += count;
  return goes_on(loss);
}

bool StreamFit::goes_on(double loss) {
  if (!std::isfinite(loss) && epoch_start_) {
    handle_fault(fmt::format("the training loss is {}", loss));
    return false;
  }
  if (stop_.load(std::memory_order_relaxed)) return end_with("stop() was called");
  if (options_.max_seconds > 0 && Clock::now() >= deadline_) {
    return end_with(fmt::format("the time of {:g} s is over", options_.max_seconds));
  }
  if (countdown_ == 0) return true;
  --countdown_;
  if (countdown_ > 0) return true;
  countdown_ = options_.every_n_steps;
  const StepLog log{.epoch = epoch_, .step = step_, .loss = loss};
  if (!options_.on_step_end || !options_.on_step_end(log)) return true;
  return end_with("a callback asked to stop");
}

// The rows of the epoch are gone, so its steps cannot be done again: back to its start.
void StreamFit::handle_fault(const std::string& fault_seen) {
  epoch_start_->restore(session_);
  const std::string what = fmt::format("{} at epoch {}, step {}", fault_seen, epoch_, step_);
  if (options_.on_non_finite == OnNonFinite::kStop) {
    end_with(what);
    return;
  }
  const double rate = session_.learning_rate();
  throw ConvergenceError(
      {.what = what,
       .detail =
           fmt::format("Learning rate {:g}. The weights are those of the epoch's start.", rate),
       .mend = fmt::format("Try learning rate {:g}, or scale the inputs.", rate / 10)});
}

void StreamFit::mark_best(EpochLog& log) {
  if (validation_ && !log.val_loss) return;
  const double value = monitored(options_, log);
  const double delta = options_.early_stopping ? options_.early_stopping->min_delta : 0;
  const bool first = !history_.best_epoch;
  const bool improved = first || value < best_value_ - delta;
  if (first || value < best_value_) {
    log.is_best = true;
    history_.best_epoch = log.epoch;
    best_value_ = value;
    if (best_) best_->take(session_);
  }
  epochs_without_improvement_ = improved ? 0 : epochs_without_improvement_ + 1;
  if (!options_.early_stopping || improved) return;
  if (epochs_without_improvement_ >= options_.early_stopping->patience) {
    end_with(fmt::format("no improvement for {} epochs", options_.early_stopping->patience));
  }
}

}  // namespace onnxgrad::train

#include "train/fit_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "train/losses.h"
#include "train/sampler.h"

namespace onnxgrad::train {
namespace {

using runtime::Execution;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Copies rows of a fixed size; small ones without a call.
void copy_rows(const std::byte* from, std::int64_t row_bytes, std::span<const std::int64_t> rows,
               std::byte* to) {
  const auto copy = [&]<std::size_t kBytes>() {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(to + i * kBytes, from + rows[i] * static_cast<std::int64_t>(kBytes), kBytes);
    }
  };
  if (row_bytes == 4) return copy.operator()<4>();
  if (row_bytes == 8) return copy.operator()<8>();
  if (row_bytes == 16) return copy.operator()<16>();
  const auto bytes = static_cast<std::size_t>(row_bytes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to + i * bytes, from + rows[i] * row_bytes, bytes);
  }
}

void check_options(const FitOptions& options) {
  const auto refuse = [](const std::string& what) { throw DataError({.what = what}); };
  if (options.epochs < 0) refuse(fmt::format("epochs is {}, expected 0 or more", options.epochs));
  if (options.batch_size < 0) {
    refuse(fmt::format("batch_size is {}, expected 1 or more", options.batch_size));
  }
  if (options.validation_every < 1) {
    refuse(fmt::format("validation_every is {}, expected 1 or more", options.validation_every));
  }
  if (options.validation_fraction != 0 && options.validation != nullptr) {
    refuse("both a validation fraction and validation data were given");
  }
}

// Large enough to keep the engine busy, small enough for its memory.
std::int64_t evaluation_batch(std::int64_t batch_size) {
  return std::max(batch_size, std::min<std::int64_t>(256, 4 * batch_size));
}

}  // namespace

StateSnapshot::StateSnapshot(const Session& session) {
  for (const Tensor& view : session.state_views()) {
    copies_.push_back(Tensor::empty(view.dtype(), view.dims()));
  }
}

void StateSnapshot::take(const Session& session) {
  const auto& views = session.state_views();
  for (std::size_t i = 0; i < views.size(); ++i) {
    std::memcpy(copies_[i].mutable_raw(), views[i].raw(),
                static_cast<std::size_t>(views[i].size_bytes()));
  }
  steps_ = session.steps();
}

void StateSnapshot::restore(Session& session) const {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    session.step_executor().set_state(i, copies_[i]);
  }
  session.set_steps(steps_);
  session.forget_host_state();
}

struct Evaluator::Sums {
  double numerator = 0;
  double denominator = 0;
  double correct = 0;
  double counted = 0;  ///< rows that `correct` is of
};

Evaluator::Evaluator(Session& session, PreparedData data, std::int64_t batch_size)
    : session_(session), data_(std::move(data)), batch_size_(std::min(batch_size, data_.rows)) {
  const auto prepare = [&](std::int64_t rows) {
    std::vector<Dims> dims;
    for (const Column& column : data_.columns) dims.push_back(column.batch_dims(rows));
    return &session_.prepare_evaluation(dims);
  };
  const std::int64_t rest = data_.rows % batch_size_;
  if (rest > 0) tail_ = prepare(rest);
  full_ = prepare(batch_size_);
}

void Evaluator::add_batch(Execution& execution, std::int64_t begin, Sums& sums) {
  for (std::size_t c = 0; c < data_.columns.size(); ++c) {
    execution.bind(c, data_.columns[c].row(begin));
  }
  execution.run();
  const DataType dtype = execution.output_desc(0).dtype;
  sums.numerator += read_scalar(execution.output(0), dtype);
  sums.denominator += read_scalar(execution.output(1), dtype);
  if (!session_.counts_correct_rows()) return;
  sums.correct += read_scalar(execution.output(2), dtype);
  sums.counted += read_scalar(execution.output(3), dtype);
}

EvaluationResult Evaluator::run() {
  Sums sums;
  std::int64_t begin = 0;
  for (; begin + batch_size_ <= data_.rows; begin += batch_size_) add_batch(*full_, begin, sums);
  if (begin < data_.rows) add_batch(*tail_, begin, sums);
  EvaluationResult result;
  result.loss = sums.numerator / sums.denominator;
  result.rows = data_.rows;
  if (session_.counts_correct_rows()) {
    result.accuracy = sums.correct / sums.counted;
  }
  return result;
}

FitLoop::FitLoop(Session& session, const Dataset& data, const FitOptions& options,
                 std::atomic<bool>& stop, History& history)
    : session_(session), fit_(session), options_(options), stop_(stop), history_(history) {
  history_ = {};
  check_options(options_);
  prepare_rows(data);
  prepare_plans();
  prepare_schedule();
  reserve_history();
  if (options_.on_non_finite != OnNonFinite::kIgnore) epoch_start_.emplace(session_);
  if (options_.early_stopping && options_.early_stopping->restore_best) best_.emplace(session_);
  countdown_ = options_.every_n_steps;
}

void FitLoop::prepare_rows(const Dataset& data) {
  const auto& all_ports = session_.step_executor().inputs();
  std::vector<runtime::Port> data_ports;
  for (std::size_t i = 0; i < all_ports.size(); ++i) {
    if (i == session_.learning_rate_port()) continue;
    data_ports.push_back(all_ports[i]);
    ports_.push_back(i);
  }
  data_ = prepare_data(session_, data_ports, data, options_.allow_nan);
  num_rows_ = data_.rows;
  std::optional<PreparedData> validation;
  if (options_.validation_fraction != 0) {
    const Column& target = data_.columns[data_.target];
    const LossInfo& loss = session_.loss();
    const bool by_class = loss.is_classifier && loss.num_classes > 0 &&
                          target.values.dims().rank() == 1 && !ignored_class(loss.function);
    Split split = by_class
                      ? split_rows_stratified(target.values.data<std::int64_t>(), loss.num_classes,
                                              options_.validation_fraction, options_.seed)
                      : split_rows(num_rows_, options_.validation_fraction, options_.seed);
    train_rows_ = std::move(split.train);
    num_rows_ = static_cast<std::int64_t>(train_rows_.size());
    // The evaluation is fed with what the loss needs, in its own order.
    PreparedData chosen = data_.select(split.validation);
    validation = chosen;
    validation->columns.clear();
    for (const runtime::Port& port : session_.evaluation_ports()) {
      const auto column = std::ranges::find(chosen.columns, port.name, &Column::name);
      ONNXGRAD_ASSERT(column != chosen.columns.end());
      validation->columns.push_back(*column);
    }
  } else if (options_.validation != nullptr) {
    validation = prepare_data(session_, session_.evaluation_ports(), *options_.validation,
                              options_.allow_nan);
  }
  choose_batch_size();
  if (validation) {
    evaluator_.emplace(session_, *std::move(validation), evaluation_batch(options_.batch_size));
  }
}

void FitLoop::choose_batch_size() {
  constexpr std::int64_t kBatchSize = 32;
  if (session_.takes_whole_batch()) {
    if (options_.batch_size != 0 && options_.batch_size < num_rows_) {
      throw DataError({.what = fmt::format("batch_size is {}, but L-BFGS takes all {} rows at once",
                                           options_.batch_size, num_rows_),
                       .mend = "Leave batch_size out, or take another optimizer."});
    }
    options_.batch_size = num_rows_;
    options_.shuffle = false;
  }
  if (options_.batch_size == 0) options_.batch_size = kBatchSize;
}

void FitLoop::prepare_schedule() {
  first_rate_ = session_.learning_rate();
  steps_per_update_ = session_.steps_per_update();
  if (!options_.schedule) return;
  const bool has_tail = tail_ != nullptr;
  const std::int64_t steps = options_.epochs * (num_rows_ / batch_size_ + (has_tail ? 1 : 0));
  schedule_.emplace(*options_.schedule, first_rate_, steps / steps_per_update_, options_.epochs);
}

void FitLoop::prepare_plans() {
  batch_size_ = std::min(options_.batch_size, num_rows_);
  if (options_.drop_last && num_rows_ < options_.batch_size) {
    throw DataError({.what = fmt::format("{} rows are fewer than a batch of {}, and drop_last "
                                         "leaves none",
                                         num_rows_, options_.batch_size),
                     .mend = "Take smaller batches, or keep the last one."});
  }
  const auto prepare = [&](std::int64_t rows) {
    std::vector<Dims> dims(session_.step_executor().inputs().size());
    for (std::size_t c = 0; c < ports_.size(); ++c) {
      dims[ports_[c]] = data_.columns[c].batch_dims(rows);
    }
    return &session_.prepare_step(dims);
  };
  const std::int64_t rest = num_rows_ % batch_size_;
  if (rest > 0 && !options_.drop_last) tail_ = prepare(rest);
  full_ = prepare(batch_size_);
  loss_dtype_ = full_->output_desc(0).dtype;
  has_denominator_ = session_.graph().has_denominator;
  if (!options_.shuffle && train_rows_.empty()) return;
  order_ = train_rows_;
  order_.resize(static_cast<std::size_t>(num_rows_));
  for (const Column& column : data_.columns) {
    staging_.push_back(Tensor::empty(column.values.dtype(), column.batch_dims(batch_size_)));
  }
}

void FitLoop::reserve_history() {
  // All steps at once unless that is a lot; then a little at a time.
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 22;
  const std::int64_t per_epoch = num_rows_ / batch_size_ + 1;
  const std::int64_t epochs = std::min(options_.epochs, kMostSteps / per_epoch + 1);
  history_.step_losses.reserve(static_cast<std::size_t>(per_epoch * epochs));
  history_.epochs.reserve(static_cast<std::size_t>(epochs));
}

void FitLoop::run() {
  struct RateRestorer {
    FitLoop& loop;
    ~RateRestorer() {
      if (loop.schedule_) loop.session_.set_learning_rate(loop.first_rate_);
    }
  } const restorer{*this};
  stop_.store(false, std::memory_order_relaxed);
  for (epoch_ = 1; epoch_ <= options_.epochs; ++epoch_) {
    EpochLog log;
    if (!run_epoch(epoch_, log)) break;
    history_.epochs.push_back(log);
    if (options_.on_epoch_end && options_.on_epoch_end(log)) {
      if (history_.stop_reason.empty()) history_.stop_reason = "a callback asked to stop";
      break;
    }
    if (!history_.stop_reason.empty()) break;
  }
  if (best_ && history_.best_epoch) best_->restore(session_);
}

// False: stopped before its end.
bool FitLoop::run_epoch(std::int64_t epoch, EpochLog& log) {
  const auto start = Clock::now();
  if (epoch_start_) epoch_start_->take(session_);
  if (options_.shuffle) {
    shuffle_rows(options_.seed, static_cast<std::uint32_t>(epoch - 1), order_);
    if (!train_rows_.empty()) {
      for (std::int64_t& row : order_) row = train_rows_[static_cast<std::size_t>(row)];
    }
  }
  loss_sum_ = 0;
  weight_sum_ = 0;
  const std::int64_t first_step = step_;
  std::int64_t begin = 0;
  for (; begin + batch_size_ <= num_rows_; begin += batch_size_) {
    if (!run_batch(*full_, begin, batch_size_)) return false;
  }
  if (tail_ != nullptr && begin < num_rows_ && !run_batch(*tail_, begin, num_rows_ - begin)) {
    return false;
  }
  const double train_seconds = seconds_since(start);
  log.epoch = epoch;
  log.train_loss = loss_sum_ / weight_sum_;
  log.learning_rate = session_.learning_rate();
  log.steps = step_;
  const std::int64_t rows = tail_ != nullptr ? num_rows_ : (step_ - first_step) * batch_size_;
  log.rows_per_s = static_cast<double>(rows) / std::max(train_seconds, 1e-9);
  validate(log);
  if (schedule_) {
    schedule_->end_epoch(log.val_loss.value_or(log.train_loss), step_ / steps_per_update_);
  }
  if (stops_early(log)) {
    history_.stop_reason =
        fmt::format("no improvement for {} epochs", options_.early_stopping->patience);
  }
  log.seconds = seconds_since(start);
  return true;
}

inline const std::byte* FitLoop::gather(std::size_t column, std::int64_t begin, std::int64_t rows) {
  const Column& source = data_.columns[column];
  if (order_.empty()) return source.row(begin);
  Tensor& batch = staging_[column];
  copy_rows(
      source.values.raw(), source.row_bytes,
      std::span(order_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)),
      batch.mutable_raw());
  return batch.raw();
}

// False: training ends with this step.
bool FitLoop::run_batch(Execution& execution, std::int64_t begin, std::int64_t rows) {
  for (std::size_t c = 0; c < ports_.size(); ++c) {
    execution.bind(ports_[c], gather(c, begin, rows));
  }
  if (schedule_) session_.set_learning_rate(schedule_->rate(step_ / steps_per_update_));
  if (options_.learning_rate) session_.set_learning_rate(options_.learning_rate(step_));
  const double loss = session_.run_step(execution, loss_dtype_);
  session_.set_steps(session_.steps() + 1);
  ++step_;
  history_.step_losses.push_back(loss);
  const double weight =
      has_denominator_ ? read_scalar(execution.output(1), loss_dtype_) : static_cast<double>(rows);
  loss_sum_ += session_.reduces_by_mean() ? loss * weight : loss;
  weight_sum_ += weight;
  if (!std::isfinite(loss) && !handle_non_finite(loss)) return false;
  if (stop_.load(std::memory_order_relaxed)) {
    history_.stop_reason = "stop() was called";
    return false;
  }
  if (countdown_ > 0 && --countdown_ == 0) return call_step_callback(loss);
  return true;
}

bool FitLoop::handle_non_finite(double loss) {
  if (options_.on_non_finite == OnNonFinite::kIgnore) return true;
  epoch_start_->restore(session_);
  const std::string what =
      fmt::format("the training loss is {} at epoch {}, step {}", loss, epoch_, step_);
  if (options_.on_non_finite == OnNonFinite::kStop) {
    history_.stop_reason = what;
    return false;
  }
  throw ConvergenceError(
      {.what = what,
       .detail = fmt::format("Learning rate {}. The weights are those of the epoch's start.",
                             session_.learning_rate()),
       .mend = fmt::format("Try learning rate {:g}, or scale the inputs.",
                           session_.learning_rate() / 10)});
}

bool FitLoop::call_step_callback(double loss) {
  countdown_ = options_.every_n_steps;
  if (!options_.on_step_end) return true;
  if (!options_.on_step_end({.epoch = epoch_, .step = step_, .loss = loss})) return true;
  history_.stop_reason = "a callback asked to stop";
  return false;
}

void FitLoop::validate(EpochLog& log) {
  if (!evaluator_ || log.epoch % options_.validation_every != 0) return;
  const EvaluationResult result = evaluator_->run();
  log.val_loss = result.loss;
  log.val_accuracy = result.accuracy;
}

// Marks the best epoch; true if there was no improvement for as long as the options wait.
bool FitLoop::stops_early(EpochLog& log) {
  if (evaluator_ && !log.val_loss) return false;
  const double loss = log.val_loss.value_or(log.train_loss);
  const double delta = options_.early_stopping ? options_.early_stopping->min_delta : 0;
  const bool first = !history_.best_epoch;
  if (first || loss < best_loss_) {
    log.is_best = true;
    history_.best_epoch = log.epoch;
    if (best_) best_->take(session_);
  }
  const bool improved = first || loss < best_loss_ - delta;
  best_loss_ = log.is_best ? loss : best_loss_;
  epochs_without_improvement_ = improved ? 0 : epochs_without_improvement_ + 1;
  return options_.early_stopping && epochs_without_improvement_ > 0 &&
         epochs_without_improvement_ >= options_.early_stopping->patience;
}

}  // namespace onnxgrad::train

#include "train/fit_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "runtime/finite.h"
#include "train/losses.h"
#include "train/mean.h"
#include "train/sampler.h"

namespace onnxgrad::train {
namespace {

using runtime::Execution;
// Rows of a size that the compiler knows are copied without a call.
template <std::size_t kBytes>
void copy_small_rows(const std::byte* from, std::span<const std::int64_t> rows, std::byte* to) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to + i * kBytes, from + rows[i] * static_cast<std::int64_t>(kBytes), kBytes);
  }
}

}  // namespace

void copy_rows(const std::byte* from, std::int64_t row_bytes, std::span<const std::int64_t> rows,
               std::byte* to) {
  switch (row_bytes) {
    case 4:
      copy_small_rows<4>(from, rows, to);
      return;
    case 8:
      copy_small_rows<8>(from, rows, to);
      return;
    case 16:
      copy_small_rows<16>(from, rows, to);
      return;
    default:
      break;
  }
  const auto bytes = static_cast<std::size_t>(row_bytes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to + i * bytes, from + rows[i] * row_bytes, bytes);
  }
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

StateSnapshot::StateSnapshot(Session& session) : session_(session) {
  for (const Tensor& view : session.state_views()) {
    copies_.push_back(Tensor::empty(view.dtype(), view.dims()));
    bytes_ += view.size_bytes();
  }
  session_.add_snapshot_bytes(bytes_);
}

StateSnapshot::~StateSnapshot() { session_.add_snapshot_bytes(-bytes_); }

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

FitLoop::FitLoop(Session& session, const Dataset& data, const FitOptions& options,
                 std::atomic<bool>& stop, History& history)
    : session_(session), fit_(session), options_(options), stop_(stop), history_(history) {
  history_ = {};
  check_fit_options(options_);
  if (options_.batch_size < 0) {
    throw OptionError(
        {.what = fmt::format("batch_size is {}, which is for data in chunks", options_.batch_size),
         .mend = "Give a batch size of 1 or more."});
  }
  prepare_rows(data);
  prepare_plans();
  prepare_schedule(session_.learning_rate());
  reserve_history();
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
  open_checkpoints();
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
    validation = data_.select(split.validation).in_order_of(session_.evaluation_ports());
  } else {
    validation = validation_rows(session_, options_);
  }
  if (options_.checkpoint || !options_.resume.empty()) {
    data_hash_ = checksum_of(data_, validation ? &*validation : nullptr);
  }
  choose_batch_size();
  if (validation) {
    validation_.emplace(session_, options_, *std::move(validation));
  } else if (options_.validation_source != nullptr) {
    validation_.emplace(session_, options_, *options_.validation_source);
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
    options_.sampling = Sampling::kRows;
  }
  if (options_.batch_size == 0) options_.batch_size = kBatchSize;
}

void FitLoop::prepare_schedule(double rate) {
  first_rate_ = rate;
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
  const bool has_windows = options_.sampling == Sampling::kWindows;
  if (has_windows) num_rows_ = count_windows(num_rows_, batch_size_) * batch_size_;
  const std::int64_t rest = num_rows_ % batch_size_;
  if (rest > 0 && !options_.drop_last) tail_ = &session_.prepare_step(batch_dims(rest));
  full_ = &session_.prepare_step(batch_dims(batch_size_));
  for (Execution* execution : {full_, tail_}) {
    if (execution != nullptr) pins_.emplace_back(*execution);
  }
  has_denominator_ = session_.graph().has_denominator;
  if (!options_.shuffle && train_rows_.empty()) return;
  order_ = train_rows_;
  order_.resize(static_cast<std::size_t>(num_rows_));
  if (has_windows && train_rows_.empty()) return;  // which are read in place
  for (const Column& column : data_.columns) {
    staging_.push_back(Tensor::empty(column.values.dtype(), column.batch_dims(batch_size_)));
  }
}

// Of a batch of so many rows, in the order of the executor's inputs.
std::vector<Dims> FitLoop::batch_dims(std::int64_t rows) const {
  std::vector<Dims> dims(session_.step_executor().inputs().size());
  for (std::size_t c = 0; c < ports_.size(); ++c) {
    dims[ports_[c]] = data_.columns[c].batch_dims(rows);
  }
  return dims;
}

void FitLoop::reserve_history() {
  // All steps at once unless that is a lot; then a little at a time.
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 22;
  const std::int64_t per_epoch = num_rows_ / batch_size_ + 1;
  const std::int64_t epochs = std::min(options_.epochs, kMostSteps / per_epoch + 1);
  history_.step_losses.reserve(static_cast<std::size_t>(per_epoch * epochs));
  history_.epochs.reserve(static_cast<std::size_t>(epochs));
  epoch_rates_.reserve(static_cast<std::size_t>(per_epoch));
}

void FitLoop::run() {
  struct RateRestorer {
    FitLoop& loop;
    ~RateRestorer() {
      if (loop.schedule_) loop.session_.set_learning_rate(loop.first_rate_);
      if (loop.before_) loop.before_->restore(loop.session_);
    }
  } const restorer{*this};
  stop_.store(false, std::memory_order_relaxed);
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(options_.max_seconds));
  try {
    run_epochs();
  } catch (...) {
    save_last_checkpoint();
    throw;
  }
  save_last_checkpoint();
  if (best_ && history_.best_epoch) best_->restore(session_);
}

void FitLoop::run_epochs() {
  const CheckpointOptions* saving = options_.checkpoint ? &*options_.checkpoint : nullptr;
  if (notice_early_stop()) return;  // the fit that is resumed had ended
  while (epoch_ <= options_.epochs) {
    EpochLog log;
    if (!run_epoch(epoch_, log)) return;
    history_.epochs.push_back(log);
    ++epoch_;
    row_ = 0;
    notice_early_stop();
    if (options_.on_epoch_end && options_.on_epoch_end(log) && history_.stop_reason.empty()) {
      history_.stop_reason = "a callback asked to stop";
    }
    if (stop_.load(std::memory_order_relaxed) && history_.stop_reason.empty()) {
      history_.stop_reason = "stop() was called";
    }
    if (!history_.stop_reason.empty()) return;
    // After the callbacks, which may have changed the learning rate.
    if (saving != nullptr && (saving->every_steps == 0 || (log.is_best && saving->keep_best))) {
      save_checkpoint();
    }
  }
}

// False: stopped before its end.
bool FitLoop::run_epoch(std::int64_t epoch, EpochLog& log) {
  epoch_began_ = Clock::now();
  const bool is_resumed = row_ > 0;
  if (epoch_start_ && !is_resumed) epoch_start_->take(session_);
  if (options_.shuffle) order_rows(epoch);
  if (!is_resumed) {
    loss_sum_ = 0;
    weight_sum_ = 0;
    seconds_before_ = 0;
    epoch_first_step_ = step_;
    epoch_rates_.clear();
  }
  const bool is_whole = run_batches();
  // The last update may have overflowed, which no loss has shown yet.
  if (epoch_start_ && !runtime::all_finite(session_.state_views()))
    return handle_fault("a weight is not finite");
  if (!is_whole) return false;
  const double train_seconds = seconds_before_ + seconds_since(epoch_began_);
  log.epoch = epoch;
  log.train_loss = mean_of(loss_sum_, weight_sum_);
  log.learning_rate = session_.learning_rate();
  log.steps = step_;
  const std::int64_t rows =
      tail_ != nullptr ? num_rows_ : (step_ - epoch_first_step_) * batch_size_;
  log.rows = rows;
  log.rows_per_s = static_cast<double>(rows) / std::max(train_seconds, 1e-9);
  validate(log);
  if (schedule_) {
    schedule_->end_epoch(log.val_loss.value_or(log.train_loss), step_ / steps_per_update_);
  }
  mark_best(log);
  log.seconds = seconds_before_ + seconds_since(epoch_began_);
  return true;
}

void FitLoop::order_rows(std::int64_t epoch) {
  const auto number = static_cast<std::uint32_t>(epoch - 1);
  if (options_.sampling == Sampling::kWindows) {
    const std::int64_t rows =
        train_rows_.empty() ? data_.rows : static_cast<std::int64_t>(train_rows_.size());
    draw_windows(options_.seed, number, rows, batch_size_, order_);
  } else {
    shuffle_rows(options_.seed, number, order_);
  }
  if (train_rows_.empty()) return;
  for (std::int64_t& row : order_) row = train_rows_[static_cast<std::size_t>(row)];
}

// False: stopped before the epoch's end.
bool FitLoop::run_batches() {
  while (row_ + batch_size_ <= num_rows_) {
    if (!run_batch(*full_, row_, batch_size_)) return false;
  }
  return tail_ == nullptr || row_ >= num_rows_ || run_batch(*tail_, row_, num_rows_ - row_);
}

inline const std::byte* FitLoop::gather(std::size_t column, std::int64_t begin, std::int64_t rows) {
  const Column& source = data_.columns[column];
  if (order_.empty()) return source.row(begin);
  if (staging_.empty()) return source.row(order_[static_cast<std::size_t>(begin)]);  // a window
  Tensor& batch = staging_[column];
  copy_rows(
      source.values.raw(), source.row_bytes,
      std::span(order_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)),
      batch.mutable_raw());
  return batch.raw();
}

void FitLoop::bind_batch(Execution& execution, std::int64_t begin, std::int64_t rows) {
  for (std::size_t c = 0; c < ports_.size(); ++c) {
    execution.bind(ports_[c], gather(c, begin, rows));
  }
}

// To the mean of the epoch.
void FitLoop::add_loss(const Execution& execution, double loss, std::int64_t rows) {
  const double weight = has_denominator_ ? read_scalar(execution.output(1), session_.loss_dtype())
                                         : static_cast<double>(rows);
  loss_sum_ += session_.reduces_by_mean() ? loss * weight : loss;
  weight_sum_ += weight;
}

// False: training ends with this step.
bool FitLoop::run_batch(Execution& execution, std::int64_t begin, std::int64_t rows) {
  bind_batch(execution, begin, rows);
  if (schedule_) session_.set_learning_rate(schedule_->rate(step_ / steps_per_update_));
  if (options_.learning_rate) session_.set_learning_rate(options_.learning_rate(step_));
  epoch_rates_.push_back(session_.learning_rate());
  is_inside_step_ = true;
  const double loss = session_.run_step(execution);
  is_inside_step_ = false;
  session_.set_steps(session_.steps() + 1);
  ++step_;
  row_ = begin + rows;
  history_.step_losses.push_back(loss);
  if (options_.on_non_finite == OnNonFinite::kSkip && !std::isfinite(loss)) {
    ++history_.skipped_steps;
  } else {
    add_loss(execution, loss, rows);
  }
  if (!std::isfinite(loss) && epoch_start_) {
    return handle_fault(fmt::format("the training loss is {}", loss));
  }
  if (stop_.load(std::memory_order_relaxed)) {
    history_.stop_reason = "stop() was called";
    return false;
  }
  if (options_.max_seconds > 0 && is_time_over()) return false;
  if (countdown_ > 0) {
    --countdown_;
    if (countdown_ == 0 && !call_step_callback(loss)) return false;
  }
  if (checkpoint_steps_ > 0 && step_ % checkpoint_steps_ == 0) save_checkpoint();
  return true;
}

// After the last step. False, where it does not throw.
bool FitLoop::handle_fault(const std::string& fault_seen) {
  const double rate = session_.learning_rate();
  const std::int64_t bad_step = step_;
  is_inside_step_ = true;  // there is no checkpoint if the steps fail when they are done again
  const std::string fault = go_back_and_find_fault();
  is_inside_step_ = false;
  session_.set_learning_rate(rate);
  const std::int64_t batch = bad_step - epoch_first_step_;
  std::string what = fmt::format("{} at epoch {}, step {} (batch {}, {})", fault_seen, epoch_,
                                 bad_step, batch, describe_rows(batch - 1));
  if (!fault.empty()) what += "; " + fault;
  if (options_.on_non_finite == OnNonFinite::kStop) {
    history_.stop_reason = what;
    return false;
  }
  throw ConvergenceError(
      {.what = what,
       .detail = fmt::format("Learning rate {:g}. The weights are those before step {}: the last "
                             "finite ones.",
                             rate, step_ + 1),
       .mend = fmt::format("Try learning rate {:g}, or scale the inputs.", rate / 10)});
}

// "row 7", "rows 7, 3, 0, ...", of the data as it was given.
std::string FitLoop::describe_rows(std::int64_t batch) const {
  constexpr std::int64_t kListed = 4;
  const std::int64_t begin = batch * batch_size_;
  const std::int64_t count = std::min(batch_size_, num_rows_ - begin);
  std::string text = count == 1 ? "row" : "rows";
  for (std::int64_t i = 0; i < std::min(count, kListed); ++i) {
    const auto place = static_cast<std::size_t>(begin + i);
    text += fmt::format("{} {}", i > 0 ? "," : "", order_.empty() ? begin + i : order_[place]);
  }
  return count > kListed ? text + ", ..." : text;
}

// The steps of this epoch once more, as long as `is_wanted(number of steps done)`.
template <class F>
void FitLoop::replay(F&& is_wanted) {
  epoch_start_->restore(session_);
  loss_sum_ = 0;
  weight_sum_ = 0;
  std::int64_t done = 0;
  for (; is_wanted(done); ++done) {
    const std::int64_t begin = done * batch_size_;
    const std::int64_t rows = std::min(batch_size_, num_rows_ - begin);
    Execution& execution = rows == batch_size_ ? *full_ : *tail_;
    bind_batch(execution, begin, rows);
    session_.set_learning_rate(epoch_rates_[static_cast<std::size_t>(done)]);
    const double loss = session_.run_step(execution);
    session_.set_steps(session_.steps() + 1);
    add_loss(execution, loss, rows);
  }
}

// Puts the state back to the last finite one, by doing the epoch's steps again from its start (to
// the bit what they were), then goes on from there with one kernel per node and names the first
// value that is not finite. Kernels may round differently then: it can be that nothing is found.
std::string FitLoop::go_back_and_find_fault() {
  const std::int64_t bad = step_ - epoch_first_step_ - 1;
  std::int64_t good = 0;  // steps after which all was finite
  bool is_finite = true;
  replay([&](std::int64_t done) {
    is_finite = is_finite && runtime::all_finite(session_.state_views());
    if (is_finite) good = done;
    return is_finite && done < bad;
  });
  if (!is_finite) replay([&](std::int64_t done) { return done < good; });
  step_ = epoch_first_step_ + good;
  row_ = good * batch_size_;

  runtime::Executor executor = session_.make_unfused();
  const auto& views = session_.state_views();
  for (std::size_t i = 0; i < views.size(); ++i) executor.set_state(i, views[i]);
  executor.cells() = session_.step_executor().cells();
  for (std::int64_t done = good; done <= bad; ++done, ++executor.cells().step) {
    const std::int64_t begin = done * batch_size_;
    const std::int64_t rows = std::min(batch_size_, num_rows_ - begin);
    Execution& execution = executor.prepare(batch_dims(rows));
    bind_batch(execution, begin, rows);
    session_.set_learning_rate(epoch_rates_[static_cast<std::size_t>(done)]);
    execution.bind(session_.learning_rate_port(), session_.learning_rate_cell());
    const auto found = execution.run_until_non_finite();
    if (!found) continue;
    // Plans have nodes of their own; values keep their names.
    const ir::Value* value = session_.graph().model->graph->find(found->value);
    const bool is_known = value != nullptr && value->producer != nullptr;
    return fmt::format("the first value that is not finite is '{}', of {} in step {}", found->value,
                       is_known ? value->producer->describe() : found->op_type,
                       epoch_first_step_ + done + 1);
  }
  return "";
}

bool FitLoop::call_step_callback(double loss) {
  countdown_ = options_.every_n_steps;
  if (!options_.on_step_end) return true;
  if (!options_.on_step_end({.epoch = epoch_, .step = step_, .loss = loss})) return true;
  history_.stop_reason = "a callback asked to stop";
  return false;
}

bool FitLoop::is_time_over() {
  if (Clock::now() < deadline_) return false;
  history_.stop_reason = fmt::format("the time of {:g} s is over", options_.max_seconds);
  return true;
}

void FitLoop::validate(EpochLog& log) {
  if (validation_ && log.epoch % options_.validation_every == 0) validation_->run(stop_, log);
}

void FitLoop::mark_best(EpochLog& log) {
  if (validation_ && !log.val_loss) return;
  const double loss = monitored(options_, log);
  const double delta = options_.early_stopping ? options_.early_stopping->min_delta : 0;
  const bool first = !history_.best_epoch;
  if (first || loss < best_loss_) {
    log.is_best = true;
    history_.best_epoch = log.epoch;
    is_new_best_ = true;
    if (best_) best_->take(session_);
  }
  const bool improved = first || loss < best_loss_ - delta;
  best_loss_ = log.is_best ? loss : best_loss_;
  epochs_without_improvement_ = improved ? 0 : epochs_without_improvement_ + 1;
}

// Whether there was no improvement for as long as the options wait.
bool FitLoop::notice_early_stop() {
  const bool has_waited = options_.early_stopping && epochs_without_improvement_ > 0 &&
                          epochs_without_improvement_ >= options_.early_stopping->patience;
  if (!has_waited) return false;
  history_.stop_reason =
      fmt::format("no improvement for {} epochs", options_.early_stopping->patience);
  return true;
}

}  // namespace onnxgrad::train

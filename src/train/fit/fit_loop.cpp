#include "train/fit/fit_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <numeric>

#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "train/fit/array_feed.h"
#include "train/fit/chunk_feed.h"
#include "train/fit/fit_history.h"
#include "train/fit/options.h"
#include "train/fit/worker_check.h"

namespace onnxgrad::train {
namespace {

// Batches that are whole blocks are kept from one snapshot to the next, up to this many.
constexpr std::int64_t kMostKept = 256;

// A model with a fixed batch takes that many rows; a smaller batch is filled up.
void choose_fixed_batch(const Session& session, FitOptions& options) {
  const std::int64_t fixed = session.batch().fixed_rows();
  if (fixed == 0) return;
  const std::string why = "The batch dimension is not opened: " + session.batch().obstacle + ".";
  if (session.workers() != nullptr) {
    throw OptionError({.what = fmt::format("several workers cannot share batches of {} rows, which "
                                           "the file fixes",
                                           fixed),
                       .detail = why,
                       .hint = "Export the model with a dynamic batch, in PyTorch "
                               "dynamic_shapes={\"x\": {0: \"batch\"}}."});
  }
  if (options.batch_size > fixed) {
    throw OptionError({.what = fmt::format("batch_size is {}, but the file fixes its batch at {}",
                                           options.batch_size, fixed),
                       .detail = why,
                       .hint = fmt::format("Omit batch_size, with accumulate={} for an update "
                                           "after as many rows.",
                                           (options.batch_size + fixed - 1) / fixed)});
  }
  if (options.batch_size <= 0) options.batch_size = fixed;
}

}  // namespace

FitLoop::FitLoop(Session& session, const FitOptions& options, StopFlag& stop, History& history)
    : session_(session),
      step_(session_.step()),
      options_(options),
      stop_(stop),
      stop_scope_(stop, options.on_interrupt),
      history_(history),
      binder_(step_),
      rates_(options_, step_),
      best_(options_, step_, history) {
  history_ = {};
  check_fit_options(options_);
  choose_fixed_batch(session, options_);
}

FitLoop::FitLoop(Session& session, const Dataset& data, const FitOptions& options, StopFlag& stop,
                 History& history)
    : FitLoop(session, options, stop, history) {
  feed_ = std::make_unique<ArrayFeed>(session_, data, options_);
  prepare();
}

FitLoop::FitLoop(Session& session, DataSource& source, const FitOptions& options, StopFlag& stop,
                 History& history)
    : FitLoop(session, options, stop, history) {
  feed_ = std::make_unique<ChunkFeed>(session_, source, options_, stop_);
  prepare();
}

void FitLoop::prepare() {
  if (step_.workers() != nullptr) check_workers();
  if (has_stopped()) return;
  feed_->open_validation(validation_);
  best_.check_monitor(validation_.has_value(), validation_ && validation_->counts_correct_rows());
  if (const RowBlock* block = feed_->known_block()) binder_.prepare(*block, options_.drop_last);
  if (goes_back(options_.on_non_finite)) {
    const bool counts_steps = !feed_->gives_single_batches();
    faults_.emplace(step_, binder_, counts_steps ? options_.snapshot_every_steps : 0);
  }
  reserve_history();
  if (options_.discard) {
    before_.emplace(step_);
    before_->take();
  }
  rates_.prepare(*feed_, /*has_block=*/false, stop_);
  if (has_stopped()) return;
  checkpoints_.emplace(FitParts{.session = session_,
                                .options = options_,
                                .feed = *feed_,
                                .progress = progress_,
                                .rates = rates_,
                                .best = best_,
                                .history = history_});
  is_stopped_ = any_worker(!checkpoints_->open(block_, stop_));
  if (options_.every_n_steps > 0) {
    countdown_ = options_.every_n_steps - progress_.step % options_.every_n_steps;
  }
}

void FitLoop::reserve_history() {
  // All at once unless that is a lot; then a little at a time.
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 22;
  constexpr std::int64_t kMostEpochs = std::int64_t{1} << 16;
  const std::int64_t most = options_.max_history > 0 ? options_.max_history : kMostEpochs;
  const std::int64_t per_epoch = std::min(feed_->num_batches().value_or(0), kMostSteps) + 1;
  history_.epochs.reserve(static_cast<std::size_t>(std::min(options_.epochs, most) + 1));
  if (options_.keep_step_losses) {
    const std::int64_t epochs = std::min(options_.epochs, kMostSteps / per_epoch + 1);
    history_.step_losses.reserve(static_cast<std::size_t>(per_epoch * epochs));
  }
  if (faults_) faults_->reserve(per_epoch);
}

// Restores what a fit changes temporarily, however it ends: schedules, and all of a trial.
struct FitLoop::RunEnder {
  explicit RunEnder(FitLoop& ended) : loop(ended) {}
  ~RunEnder() {
    loop.rates_.end_fit();
    if (loop.before_) loop.before_->restore();
  }
  RunEnder(const RunEnder&) = delete;
  RunEnder& operator=(const RunEnder&) = delete;
  FitLoop& loop;
};

// Before the first step: while rows were counted, or read to resume.
bool FitLoop::has_stopped() {
  is_stopped_ = any_worker(is_stopped_ || wants_stop());
  return is_stopped_;
}

// They are about to do the same: the first line that differs from the first worker's is an error on
// all of them.
void FitLoop::check_workers() const {
  check_same(fingerprint_of(session_.session(), options_, *feed_), *step_.workers());
}

void FitLoop::run() {
  if (is_stopped_) {
    if (interruption_ != nullptr) std::rethrow_exception(interruption_);
    end_with(reason_to_stop());
    return;
  }
  const RunEnder ender{*this};
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(options_.max_seconds));
  try {
    run_epochs();
  } catch (...) {
    // The other workers may be elsewhere: what is written together is the last whole checkpoint.
    if (step_.workers() == nullptr) checkpoints_->end_fit();
    throw;
  }
  checkpoints_->end_fit();
  append_part_of_epoch();
  step_.unify_state();
  if (interruption_ != nullptr) std::rethrow_exception(interruption_);
  if (best_.restore()) {
    history_.kept_epoch = history_.best_epoch;
  } else if (progress_.row == 0 && progress_.epoch > 1) {
    history_.kept_epoch = progress_.epoch - 1;
  }
}

void FitLoop::run_epochs() {
  if (notice_early_stop() || has_done_steps()) return;  // the resumed fit had already ended
  while (progress_.epoch <= options_.epochs) {
    EpochLog log;
    if (!run_epoch(log)) return;
    append_epoch(history_, log, options_.max_history);
    ++progress_.epoch;
    progress_.row = 0;
    notice_early_stop();
    if (progress_.epoch <= options_.epochs) has_done_steps();
    if (any_worker(options_.on_epoch_end && options_.on_epoch_end(log))) {
      end_with("a callback asked to stop");
    }
    if (any_worker(wants_stop())) end_with(reason_to_stop());
    if (!history_.stop_reason.empty()) return;
    checkpoints_->end_epoch(log);
  }
}

// A fit that ends within an epoch has its loss in the history too; checkpoints continue without it.
void FitLoop::append_part_of_epoch() {
  if (history_.stop_reason.empty() || progress_.row == 0 || std::isnan(progress_.loss.mean()))
    return;
  EpochLog log;
  fill_log(log);
  log.seconds = progress_.clock.seconds();
  append_epoch(history_, log, options_.max_history);
}

// Returns false, for its callers; the first reason is kept.
bool FitLoop::end_with(std::string reason) {
  if (history_.stop_reason.empty()) history_.stop_reason = std::move(reason);
  return false;
}

// False: stopped early.
bool FitLoop::run_epoch(EpochLog& log) {
  progress_.clock.begin(feed_->waited_s());
  const Clock::time_point began = Clock::now();
  const double waited_before = network_wait();
  if (!train_epoch()) return false;
  const double waited = network_wait() - waited_before;
  const double computed = seconds_since(began) - waited;
  if (progress_.epoch == 1) note_unchanged_weights();
  fill_log(log);
  step_.average_statistics();
  if (validation_ && log.epoch % options_.validation_every == 0)
    validation_->run(reading_stop(), log);
  rates_.end_epoch(log.val_loss.value_or(log.train_loss), progress_);
  if (!validation_ || log.val_loss) best_.add(log);
  log.seconds = progress_.clock.seconds();
  if (step_.workers() != nullptr) share_times(computed, waited, log);
  return true;
}

double FitLoop::network_wait() const {
  return step_.workers() == nullptr ? 0 : step_.workers()->communicator().seconds_waited();
}

// Those of the first worker, so that all have the same history; and what each has computed and
// waited, in seconds, for who is slow.
void FitLoop::share_times(double computed, double waited, EpochLog& log) const {
  const Workers& workers = *step_.workers();
  const auto size = static_cast<std::size_t>(workers.size());
  std::vector<double> times(4 + size, 0);
  if (workers.rank() == 0)
    std::ranges::copy(std::array{log.seconds, log.rows_per_s, log.data_wait_s}, times.begin());
  times[3] = waited;
  times[4 + static_cast<std::size_t>(workers.rank())] = computed;
  workers.add_up(std::span(times));
  log.seconds = times[0];
  log.rows_per_s = times[1];
  log.data_wait_s = times[2];
  log.network_wait_s = times[3] / workers.size();
  const std::span<const double> of_ranks = std::span(times).subspan(4);
  const auto slowest = std::ranges::max_element(of_ranks);
  log.slowest_rank = slowest - of_ranks.begin();
  log.slowest_host = workers.communicator().hosts()[static_cast<std::size_t>(log.slowest_rank)];
  const double others = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0) - *slowest;
  log.slowest_lag_s = *slowest - others / (workers.size() - 1);
}

namespace {

// Why a worker wants to end, as numbers whose sums over many workers show each reason.
constexpr double kStopped = 1;
constexpr double kTimeOver = 1 << 10;
constexpr double kCallback = 1 << 20;

}  // namespace

// All workers end with the same step: each tells the others its wish in the next one.
double FitLoop::wish_to_stop() {
  double wish = 0;
  if (wants_stop()) wish += kStopped;
  if (options_.max_seconds > 0 && Clock::now() >= deadline_) wish += kTimeOver;
  if (callback_stops_) wish += kCallback;
  return wish;
}

bool FitLoop::ends_by_wish(const runtime::Execution& plan) {
  const double wish = step_.signal(plan);
  if (!(wish > 0)) return false;
  if (wish >= kCallback) {
    end_with("a callback asked to stop");
  } else if (wish >= kTimeOver) {
    end_with(fmt::format("the time limit of {:g} s was reached", options_.max_seconds));
  } else {
    end_with(reason_to_stop());
  }
  return true;
}

// What an interrupt throws waits until all workers have ended.
bool FitLoop::wants_stop() {
  if (step_.workers() == nullptr) return stop_.is_set();
  if (interruption_ != nullptr) return true;
  try {
    return stop_.is_set();
  } catch (...) {
    interruption_ = std::current_exception();
    return true;
  }
}

// Of one of several workers: the same on all of them.
std::string FitLoop::reason_to_stop() const {
  return step_.workers() == nullptr ? stop_.reason() : "a worker was stopped";
}

// Weights whose gradient is zero in all steps: training continues, but that is worth a warning.
void FitLoop::note_unchanged_weights() {
  if (!faults_ || options_.discard || step_.learning_rate() <= 0) return;
  if (faults_->num_steps() < step_.graph().steps_per_update) return;
  const auto names = faults_->unchanged_weights();
  if (names.empty()) return;
  const bool is_all = names.size() == step_.graph().weights.size();
  history_.notes.push_back(fmt::format(
      "{} changed in epoch 1: {}. Their gradients are zero (after a Relu whose inputs are all "
      "negative, or before a step such as Round), or the learning rate {:g} is too small.",
      is_all ? "no weight has" : "some weights have not", base::quote_list(names),
      step_.learning_rate()));
}

void FitLoop::fill_log(EpochLog& log) const {
  const double seconds = progress_.clock.seconds();
  log.epoch = progress_.epoch;
  progress_.loss.write_to(log, step_.graph());
  log.learning_rate = step_.learning_rate();
  log.steps = progress_.step;
  log.rows = progress_.row;
  log.rows_per_s = static_cast<double>(progress_.row) / std::max(seconds, 1e-9);
  log.data_wait_s = progress_.clock.wait(feed_->waited_s());
}

// The steps of an epoch. False: stopped early.
bool FitLoop::train_epoch() {
  const EpochEnder ender{*feed_};
  if (progress_.row == 0) {  // else the epoch was begun by the resumed fit
    progress_.block_first_row = 0;
    progress_.loss.clear();
    progress_.clock.seconds_before = progress_.clock.wait_before = 0;
    progress_.epoch_first_step = progress_.step;
    feed_->begin_epoch(progress_.epoch);
  }
  const bool is_whole = run_blocks();
  // The last update may have overflowed, which no loss has shown yet.
  const bool is_finite = check_state();
  block_ = nullptr;
  if (faults_) faults_->forget_batches();
  return is_whole && is_finite;
}

// False: stopped before the epoch's end.
bool FitLoop::run_blocks() {
  bool is_first = true;
  while (block_ != nullptr || (block_ = feed_->next(reading_stop())) != nullptr) {
    if (!begin_block(std::exchange(is_first, false)) || !run_block()) return false;
    // Its rows are needed to roll back, so this is checked before they are gone.
    if (!feed_->gives_single_batches() && !check_state()) return false;
    progress_.block_first_row += block_->rows;
    block_ = nullptr;
  }
  if (any_worker(wants_stop())) return end_with(reason_to_stop());
  if (any_worker(callback_stops_)) return end_with("a callback asked to stop");
  if (progress_.row > 0) return true;
  throw DataError({.what = fmt::format("epoch {} has no rows", progress_.epoch),
                   .hint = options_.drop_last
                               ? "Use smaller batches, or keep the last one."
                               : "Give data with rows; an exhausted iterator yields none a "
                                 "second time."});
}

// False: the state is not finite, and training ends.
bool FitLoop::begin_block(bool is_first) {
  if (!rates_.is_prepared()) rates_.prepare(*feed_, /*has_block=*/true, stop_);
  binder_.prepare(*block_, options_.drop_last);
  if (!faults_) return true;
  if (!feed_->gives_single_batches() || is_first) {
    faults_->take_snapshot(progress_);
  } else {
    const std::int64_t steps = options_.snapshot_every_steps;
    const std::int64_t most = steps > 0 ? std::min(steps, kMostKept) : kMostKept;
    if (faults_->num_steps() >= most || 2 * faults_->kept_bytes() >= options_.buffer_bytes) {
      if (!check_state()) return false;
      faults_->take_snapshot(progress_);
    }
  }
  if (feed_->gives_single_batches()) faults_->keep_batch(*block_);
  return true;
}

// False: stopped before the block's end.
bool FitLoop::run_block() {
  const std::int64_t batch_rows = block_->batch_rows;
  const std::int64_t rows = block_->rows;
  std::int64_t begin = progress_.row - progress_.block_first_row;
  while (begin + batch_rows <= rows) {
    const std::int64_t quiet = num_quiet_steps((rows - begin) / batch_rows);
    const bool goes_on = quiet > 0 ? run_quiet_steps(begin, quiet) : run_batch(begin, batch_rows);
    if (!goes_on) return false;
    begin += std::max<std::int64_t>(quiet, 1) * batch_rows;
  }
  return options_.drop_last || begin >= rows || run_batch(begin, rows - begin);
}

// How many of the next `most` steps do nothing but update the weights and add to the loss.
std::int64_t FitLoop::num_quiet_steps(std::int64_t most) const {
  const bool is_watched = rates_.may_change() || options_.keep_step_losses || countdown_ > 0 ||
                          options_.on_non_finite == OnNonFinite::kSkip ||
                          options_.max_seconds > 0 || step_.has_log_results() ||
                          step_.graph().ports.denominator.has_value() ||
                          step_.executor().cells().collectives != nullptr;
  if (is_watched) return 0;
  if (options_.max_steps > 0) most = std::min(most, options_.max_steps - progress_.step);
  most = std::min(most, checkpoints_->steps_before_due());
  return faults_ ? std::min(most, faults_->steps_before_snapshot()) : most;
}

// The same as run_batch() for steps that are quiet, in series as long as they are short.
bool FitLoop::run_quiet_steps(std::int64_t begin, std::int64_t count) {
  const std::int64_t rows = block_->batch_rows;
  const auto counted = static_cast<double>(rows);
  const double share = step_.graph().is_mean ? counted : 1;
  const bool in_series = step_.runs_series() && binder_.is_in_place(*block_);
  while (count > 0) {
    const std::int64_t most = std::min(count, in_series ? series_.steps : 1);
    const std::span<const double> losses =
        in_series ? run_series(begin, most) : run_step(binder_.bind(*block_, begin, rows), rows);
    for (const double loss : losses) progress_.loss.add(loss, counted, share);
    const double last = losses.back();
    if (!std::isfinite(last) && faults_) return handle_loss(last);
    if (stop_.is_set()) return end_with(stop_.reason());
    const auto done = static_cast<std::int64_t>(losses.size());
    count -= done;
    begin += done * rows;
  }
  return true;
}

// A series of batches takes some ten microseconds: then the stop flag is read.
std::span<const double> FitLoop::run_series(std::int64_t begin, std::int64_t steps) {
  const Clock::time_point start = Clock::now();
  const runtime::StepSeries series = binder_.series(*block_, begin, steps);
  const auto losses = count_steps(block_->batch_rows, [&] {
    return step_.run_series(binder_.full_plan(), series, series_.losses);
  });
  const double seconds = seconds_since(start);
  constexpr double kShort = 5e-5;
  if (seconds > 2 * kShort) {
    series_.steps = std::max<std::int64_t>(steps / 2, 1);
  } else if (seconds < kShort && steps == series_.steps) {
    series_.steps = std::min(2 * steps, static_cast<std::int64_t>(kLongestSeries));
  }
  return losses;
}

std::span<const double> FitLoop::run_step(runtime::Execution& plan, std::int64_t rows) {
  return count_steps(rows, [&]() -> std::size_t {
    series_.losses[0] = step_.run(plan);
    return 1;
  });
}

// Runs steps of so many rows each; returns their losses.
template <class F>
std::span<const double> FitLoop::count_steps(std::int64_t rows, F&& run) {
  progress_.is_inside_step = true;
  const std::size_t done = run();
  progress_.is_inside_step = false;
  progress_.step += static_cast<std::int64_t>(done);
  progress_.row += static_cast<std::int64_t>(done) * rows;
  if (faults_) faults_->note_steps(done);
  return std::span(series_.losses).first(done);
}

// False: training ends with this step.
bool FitLoop::run_batch(std::int64_t begin, std::int64_t rows) {
  if (has_done_steps()) return false;
  runtime::Execution& plan = binder_.bind(*block_, begin, rows);
  rates_.set_rate(progress_);
  const bool has_workers = step_.workers() != nullptr;
  if (has_workers) step_.set_signal(wish_to_stop());
  const double loss = run_step(plan, rows).front();
  if (options_.keep_step_losses) history_.step_losses.push_back(loss);
  const bool is_finite = std::isfinite(loss);
  if (options_.on_non_finite == OnNonFinite::kSkip && !is_finite) {
    ++history_.skipped_steps;
  } else {
    progress_.loss.add(step_, plan, loss, rows);
  }
  if (!is_finite && faults_) return handle_loss(loss);
  if (has_workers ? ends_by_wish(plan) : stop_.is_set()) return end_with(reason_to_stop());
  if (!has_workers && options_.max_seconds > 0 && is_time_over()) return false;
  if (countdown_ > 0) {
    --countdown_;
    if (countdown_ == 0 && !call_step_callback(loss, plan)) {
      if (!has_workers) return false;
      callback_stops_ = true;
    }
  }
  if (checkpoints_->is_due_at_step()) {
    if (!check_state()) return false;
    checkpoints_->save();
  }
  if (faults_ && faults_->is_snapshot_due()) {
    if (!check_state()) return false;
    faults_->take_snapshot(progress_);
  }
  return true;
}

// False: the state is not finite, and training ends.
bool FitLoop::check_state() {
  const bool has_rows = block_ != nullptr || feed_->gives_single_batches();
  if (!faults_ || !has_rows || step_.is_state_finite()) return true;
  return handle_fault("a weight is not finite");
}

bool FitLoop::handle_loss(double loss) {
  return handle_fault(std::isnan(loss) ? "the training loss is nan"  // without its sign
                                       : fmt::format("the training loss is {}", loss));
}

// After the last step. False, if it does not throw.
bool FitLoop::handle_fault(const std::string& fault_seen) {
  const double rate = step_.learning_rate();
  const std::string what = faults_->go_back(fault_seen, block_, progress_);
  if (options_.on_non_finite == OnNonFinite::kStop) return end_with(what);
  const char* const clip = step_.takes_whole_batch() ? "" : ", a (smaller) clip_norm";
  throw ConvergenceError(
      {.what = what,
       .detail = fmt::format("Learning rate {:g}. The weights are those before step {}: the last "
                             "finite ones.",
                             rate, progress_.step + 1),
       .hint =
           fmt::format("Try lr={:g}{}, or scale the inputs.", rate > 1 ? 0.001 : rate / 10, clip)});
}

// Of the whole fit, if it does not end before; 0: not known yet.
std::int64_t FitLoop::total_steps() const {
  const std::int64_t of_epochs = feed_->num_batches().value_or(0) * options_.epochs;
  const std::int64_t most = options_.max_steps;
  return most > 0 && (of_epochs == 0 || most < of_epochs) ? most : of_epochs;
}

bool FitLoop::call_step_callback(double loss, const runtime::Execution& plan) {
  countdown_ = options_.every_n_steps;
  if (!options_.on_step_end) return true;
  const StepLog log{.epoch = progress_.epoch,
                    .step = progress_.step,
                    .total_steps = total_steps(),
                    .loss = loss,
                    .grad_norm = step_.gradient_norm(plan)};
  if (!options_.on_step_end(log)) return true;
  if (step_.workers() != nullptr) return false;  // see wish_to_stop()
  return end_with("a callback asked to stop");
}

bool FitLoop::is_time_over() {
  if (Clock::now() < deadline_) return false;
  end_with(fmt::format("the time limit of {:g} s was reached", options_.max_seconds));
  return true;
}

bool FitLoop::has_done_steps() {
  if (options_.max_steps == 0 || progress_.step < options_.max_steps) return false;
  end_with(fmt::format("all of max_steps={} are done", options_.max_steps));
  return true;
}

// Whether there was no improvement for as long as the options allow.
bool FitLoop::notice_early_stop() {
  if (!best_.has_waited()) return false;
  end_with(fmt::format("no improvement for {} epochs", options_.early_stopping->patience));
  return true;
}

}  // namespace onnxgrad::train

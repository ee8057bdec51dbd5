#include "train/fit/fit_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/rounding.h"
#include "onnxgrad/option_error.h"
#include "train/fit/array_feed.h"
#include "train/fit/chunk_feed.h"
#include "train/fit/options.h"
#include "train/fit/worker_check.h"

namespace onnxgrad::train {
namespace {

// A model with a fixed batch takes that many rows; a smaller batch is filled up.
void choose_fixed_batch(const Session& session, FitOptions& options) {
  const std::int64_t fixed = session.batch().fixed_rows();
  if (fixed == 0) return;
  const std::string why = session.batch().why_fixed();
  if (session.workers().has_others()) {
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
                                           base::ceil_div(options.batch_size, fixed))});
  }
  if (options.batch_size <= 0) options.batch_size = fixed;
}

}  // namespace

FitLoop::FitLoop(Session& session, const FitOptions& options, StopFlag& stop, History& history)
    : scope_(session),
      session_(session),
      step_(session_.runner()),
      options_(options),
      stop_(stop, options_, step_, history),
      history_(history),
      binder_(step_),
      rates_(options_, step_),
      report_({.step = step_, .options = options_, .progress = progress_, .history = history}) {
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
  feed_ = std::make_unique<ChunkFeed>(session_, source, options_, stop_.reading_flag());
  prepare();
}

void FitLoop::prepare() {
  check_workers();
  if (has_stopped()) return;
  report_.open_validation(*feed_);
  if (!options_.augment.empty()) binder_.augment(options_.augment, options_.seed);
  if (const RowBlock* block = feed_->known_block()) binder_.prepare(*block, options_.drop_last);
  losses_.emplace(LossPolicy::Parts{.step = step_,
                                    .binder = binder_,
                                    .feed = *feed_,
                                    .options = options_,
                                    .progress = progress_,
                                    .stop = stop_,
                                    .history = history_});
  reserve_history();
  if (options_.discard) {
    before_.emplace(step_);
    before_->take();
  }
  rates_.prepare(*feed_, /*has_block=*/false, stop_.flag());
  if (has_stopped()) return;
  checkpoints_.emplace(FitParts{.session = session_,
                                .options = options_,
                                .feed = *feed_,
                                .progress = progress_,
                                .rates = rates_,
                                .best = report_.best(),
                                .history = history_});
  is_stopped_ = step_.workers().any(!checkpoints_->open(block_, stop_.flag()));
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
  losses_->reserve(per_epoch);
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
  is_stopped_ = stop_.is_wanted();
  return is_stopped_;
}

// Checks that all workers are about to do the same: the first line that differs from the first
// worker's is an error on all of them.
void FitLoop::check_workers() const {
  if (!step_.workers().has_others()) return;
  check_same(fingerprint_of(session_, options_, *feed_), step_.workers());
}

void FitLoop::run() {
  if (is_stopped_) {
    stop_.rethrow_interruption();
    stop_.end();
    return;
  }
  const RunEnder ender{*this};
  stop_.begin();
  try {
    run_epochs();
  } catch (...) {
    // The other workers may be elsewhere: what is written together is the last whole checkpoint.
    if (!step_.workers().has_others()) checkpoints_->end_fit();
    throw;
  }
  checkpoints_->end_fit();
  report_.append_part(feed_->waited_s());
  step_.state().unify();
  stop_.rethrow_interruption();
  if (report_.best().restore()) {
    history_.kept_epoch = history_.best_epoch;
  } else if (progress_.row == 0 && progress_.epoch > 1) {
    history_.kept_epoch = progress_.epoch - 1;
  }
}

void FitLoop::run_epochs() {
  if (report_.stops_early(stop_) || has_done_steps()) return;  // the resumed fit had already ended
  while (progress_.epoch <= options_.epochs) {
    EpochLog log;
    if (!run_epoch(log)) return;
    report_.append(log);
    ++progress_.epoch;
    progress_.row = 0;
    report_.stops_early(stop_);
    if (progress_.epoch <= options_.epochs) has_done_steps();
    if (step_.workers().any(options_.on_epoch_end && options_.on_epoch_end(log))) {
      stop_.end_by_callback();
    }
    if (stop_.is_wanted()) stop_.end();
    if (stop_.has_ended()) return;
    checkpoints_->end_epoch(log);
  }
}

// False: stopped early.
bool FitLoop::run_epoch(EpochLog& log) {
  progress_.clock.begin(feed_->waited_s());
  report_.begin_steps();
  if (!train_epoch()) return false;
  report_.end_steps();
  if (progress_.epoch == 1) losses_->note_unchanged_weights();
  report_.fill(log, feed_->waited_s());
  step_.state().average_statistics();
  report_.validate(log, stop_.reading_flag());
  rates_.end_epoch(log.val_loss.value_or(log.train_loss), progress_);
  report_.finish(log);
  return true;
}

// The steps of an epoch. False: stopped early.
bool FitLoop::train_epoch() {
  const EpochEnder ender{*feed_};
  binder_.begin_epoch(progress_.epoch);
  step_.state().set_epoch(progress_.epoch);
  if (progress_.row == 0) {  // else the epoch was begun by the resumed fit
    progress_.block_first_row = 0;
    progress_.loss.clear();
    progress_.clock.seconds_before = progress_.clock.wait_before = 0;
    progress_.epoch_first_step = progress_.step;
    feed_->begin_epoch(progress_.epoch);
  }
  const bool is_whole = run_blocks();
  // The last update may have overflowed, which no loss has shown yet.
  const bool is_finite = losses_->check_state(block_);
  block_ = nullptr;
  losses_->end_epoch();
  return is_whole && is_finite;
}

// False: stopped before the epoch's end.
bool FitLoop::run_blocks() {
  bool is_first = true;
  while (block_ != nullptr || (block_ = feed_->next(stop_.reading_flag())) != nullptr) {
    if (!begin_block(std::exchange(is_first, false)) || !run_block()) return false;
    // Its rows are needed to roll back, so this is checked before they are gone.
    if (!feed_->gives_single_batches() && !losses_->check_state(block_)) return false;
    progress_.block_first_row += block_->rows;
    block_ = nullptr;
  }
  if (stop_.is_wanted()) return stop_.end();
  if (stop_.is_wanted_by_callback()) return stop_.end_by_callback();
  if (progress_.row > 0) return true;
  throw DataError({.what = fmt::format("epoch {} has no rows", progress_.epoch),
                   .hint = options_.drop_last
                               ? "Use smaller batches, or keep the last one."
                               : "Give data with rows; an exhausted iterator yields none a "
                                 "second time."});
}

// False: the state is not finite, and training ends.
bool FitLoop::begin_block(bool is_first) {
  if (!rates_.is_prepared()) rates_.prepare(*feed_, /*has_block=*/true, stop_.flag());
  binder_.prepare(*block_, options_.drop_last);
  return losses_->begin_block(*block_, is_first);
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

// Number of steps, of the next `most`, that only update the weights and add to the loss.
std::int64_t FitLoop::num_quiet_steps(std::int64_t most) const {
  const bool is_watched = rates_.may_change() || options_.keep_step_losses || countdown_ > 0 ||
                          losses_->skips() || options_.max_seconds > 0 || step_.has_log_results() ||
                          step_.graph().ports.denominator.has_value() ||
                          step_.workers().has_others();
  if (is_watched) return 0;
  if (options_.max_steps > 0) most = std::min(most, options_.max_steps - progress_.step);
  most = std::min(most, checkpoints_->steps_before_due());
  return losses_->steps_before_snapshot(most);
}

// Runs quiet steps as run_batch() does, in series as long as they are short.
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
    if (losses_->is_fault(last)) return losses_->handle_loss(last, block_);
    if (stop_.flag().is_set()) return stop_.end();
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
  losses_->note_steps(done);
  return std::span(series_.losses).first(done);
}

// False: training ends with this step.
bool FitLoop::run_batch(std::int64_t begin, std::int64_t rows) {
  if (has_done_steps()) return false;
  runtime::Execution& plan = binder_.bind(*block_, begin, rows);
  rates_.set_rate(progress_);
  stop_.begin_step();
  const double loss = run_step(plan, rows).front();
  if (options_.keep_step_losses) history_.step_losses.push_back(loss);
  if (losses_->counts(loss)) progress_.loss.add(step_, plan, loss, rows);
  if (losses_->is_fault(loss)) return losses_->handle_loss(loss, block_);
  if (stop_.ends_with_step(plan)) return false;
  const bool is_counted = countdown_ > 0;
  if (is_counted) --countdown_;
  if (is_counted && countdown_ == 0 && !call_step_callback(loss, plan)) return false;
  if (checkpoints_->is_due_at_step()) {
    if (!losses_->check_state(block_)) return false;
    checkpoints_->save();
  }
  return losses_->end_step(block_);
}

// Number of steps of the whole fit, if it does not end before; 0: not known yet.
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
  return !options_.on_step_end(log) || stop_.note_callback();
}

bool FitLoop::has_done_steps() {
  if (options_.max_steps == 0 || progress_.step < options_.max_steps) return false;
  stop_.end_with(fmt::format("all of max_steps={} are done", options_.max_steps));
  return true;
}

}  // namespace onnxgrad::train

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
  series_.width = step_.results().size();
  series_.results.resize(kLongestSeries * series_.width);
  series_.rates.resize(kLongestSeries);
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
  const std::int64_t whole = (rows - begin) / batch_rows;
  if (!run_steps(begin, batch_rows, whole)) return false;
  begin += whole * batch_rows;
  return options_.drop_last || begin >= rows || run_steps(begin, rows - begin, 1);
}

// Runs so many batches. False: training ends with one of them.
bool FitLoop::run_steps(std::int64_t begin, std::int64_t rows, std::int64_t count) {
  const bool in_series = count > 0 && binder_.makes_series(*block_, rows);
  while (count > 0) {
    if (has_done_steps()) return false;
    const Clock::time_point start = Clock::now();
    const std::int64_t most = steps_until_due(count);
    const std::span<const double> rates = next_rates(most);
    const std::int64_t steps = rates.empty() ? most : std::ssize(rates);
    const std::size_t done = in_series ? run_series(begin, rows, steps, rates)
                                       : run_one_by_one(begin, rows, steps, rates);
    choose_length(steps, seconds_since(start));
    note_results(done, rows);
    if (!end_steps(done, binder_.plan(*block_, rows))) return false;
    count -= static_cast<std::int64_t>(done);
    begin += static_cast<std::int64_t>(done) * rows;
  }
  return true;
}

// The stop flag is read after these steps: after some ten microseconds on the host, or where it
// takes the host that long to look at a device, after some ten milliseconds.
void FitLoop::choose_length(std::int64_t steps, double seconds) {
  const double enough = binder_.is_on_host() ? 5e-5 : 2e-2;
  if (seconds > 2 * enough) {
    series_.steps = std::max<std::int64_t>(steps / 2, 1);
  } else if (seconds < enough && steps == series_.steps) {
    series_.steps = std::min(2 * steps, static_cast<std::int64_t>(kLongestSeries));
  }
}

// Number of the next steps, at most `most`, of which only the last may have something due after it.
std::int64_t FitLoop::steps_until_due(std::int64_t most) const {
  most = std::min(most, series_.steps);
  if (countdown_ > 0) most = std::min(most, countdown_);
  if (options_.max_steps > 0) most = std::min(most, options_.max_steps - progress_.step);
  // Workers decide together after each step. On the host, others of these cost more than their
  // series would save.
  const bool is_timed = options_.max_seconds > 0 || rates_.calls_function();
  if (step_.workers().has_others() || (is_timed && binder_.is_on_host())) most = 1;
  return losses_->steps_until_snapshot(std::min(most, checkpoints_->steps_until_due()));
}

// Empty: as before.
std::span<const double> FitLoop::next_rates(std::int64_t steps) {
  if (!rates_.may_change()) return {};
  const auto rates = std::span(series_.rates).first(static_cast<std::size_t>(steps));
  return rates.first(rates_.fill(progress_, rates));
}

std::size_t FitLoop::run_series(std::int64_t begin, std::int64_t rows, std::int64_t steps,
                                std::span<const double> rates) {
  runtime::StepSeries series = binder_.series(*block_, begin, rows, steps);
  series.ends_at_fault = losses_->goes_back();
  return count_steps(rows, rates, [&] {
    return step_.run_series(binder_.plan(*block_, rows), series, rates, series_.results);
  });
}

// Steps that are no series for the engine, each with its batch bound; up to a fault.
std::size_t FitLoop::run_one_by_one(std::int64_t begin, std::int64_t rows, std::int64_t steps,
                                    std::span<const double> rates) {
  std::size_t done = 0;
  try {
    while (done < static_cast<std::size_t>(steps)) {
      const auto place = static_cast<std::int64_t>(done);
      runtime::Execution& plan = binder_.bind(*block_, begin + place * rows, rows);
      if (!rates.empty()) step_.set_learning_rate(rates[done]);
      stop_.begin_step();
      const std::span<double> row = series_.of(done);
      count_steps(rows, {}, [&]() -> std::size_t {
        step_.read_results(plan, step_.run(plan), row);
        return 1;
      });
      ++done;
      if (losses_->is_fault(row[0])) break;
    }
  } catch (...) {
    note_results(done, rows);
    throw;
  }
  return done;
}

// Runs steps of so many rows each; returns their number.
template <class F>
std::size_t FitLoop::count_steps(std::int64_t rows, std::span<const double> rates, F&& run) {
  progress_.is_inside_step = true;
  const std::size_t done = run();
  progress_.is_inside_step = false;
  progress_.step += static_cast<std::int64_t>(done);
  progress_.row += static_cast<std::int64_t>(done) * rows;
  losses_->note_steps(done, rates);
  return done;
}

void FitLoop::note_results(std::size_t steps, std::int64_t rows) {
  for (std::size_t i = 0; options_.keep_step_losses && i < steps; ++i) {
    history_.step_losses.push_back(series_.of(i)[0]);
  }
  if (series_.width == 1 && !losses_->skips()) {
    const auto counted = static_cast<double>(rows);
    const double share = step_.graph().is_mean ? counted : 1;
    for (std::size_t i = 0; i < steps; ++i) progress_.loss.add(series_.results[i], counted, share);
    return;
  }
  for (std::size_t i = 0; i < steps; ++i) {
    const StepResults::Row results = series_.of(i);
    if (losses_->counts(results[0])) progress_.loss.add(step_, results, rows);
  }
}

// After steps, of which only the last may have ended with a fault. False: training ends.
bool FitLoop::end_steps(std::size_t steps, const runtime::Execution& plan) {
  const StepResults::Row last = series_.of(steps - 1);
  if (losses_->is_fault(last[0])) return losses_->handle_loss(last[0], block_);
  if (stop_.ends_with_step(plan)) return false;
  const bool is_counted = countdown_ > 0;
  if (is_counted) countdown_ -= static_cast<std::int64_t>(steps);
  if (is_counted && countdown_ == 0 && !call_step_callback(last)) return false;
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

bool FitLoop::call_step_callback(StepResults::Row results) {
  countdown_ = options_.every_n_steps;
  if (!options_.on_step_end) return true;
  const StepLog log{.epoch = progress_.epoch,
                    .step = progress_.step,
                    .total_steps = total_steps(),
                    .loss = results[0],
                    .grad_norm = step_.results().gradient_norm(results)};
  return !options_.on_step_end(log) || stop_.note_callback();
}

bool FitLoop::has_done_steps() {
  if (options_.max_steps == 0 || progress_.step < options_.max_steps) return false;
  stop_.end_with(fmt::format("all of max_steps={} are done", options_.max_steps));
  return true;
}

}  // namespace onnxgrad::train

#include "train/fit/fit_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "runtime/finite.h"
#include "train/fit/array_feed.h"
#include "train/fit/chunk_feed.h"
#include "train/fit/fit_history.h"

namespace onnxgrad::train {
namespace {

// Batches that are blocks of their own are kept from one snapshot to the next, up to so many.
constexpr std::int64_t kMostKept = 256;

bool goes_back(OnNonFinite policy) {
  return policy == OnNonFinite::kRaise || policy == OnNonFinite::kStop;
}

}  // namespace

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

FitLoop::FitLoop(Session& session, const FitOptions& options, StopFlag& stop, History& history)
    : session_(session),
      fit_(session),
      options_(options),
      stop_(stop),
      stop_scope_(stop, options.on_interrupt),
      history_(history),
      binder_(session),
      first_rate_(session.learning_rate()),
      steps_per_update_(session.steps_per_update()) {
  history_ = {};
  check_fit_options(options_);
}

FitLoop::FitLoop(Session& session, const Dataset& data, const FitOptions& options, StopFlag& stop,
                 History& history)
    : FitLoop(session, options, stop, history) {
  feed_ = std::make_unique<ArrayFeed>(session_, binder_.data_ports(), data, options_);
  prepare();
}

FitLoop::FitLoop(Session& session, DataSource& source, const FitOptions& options, StopFlag& stop,
                 History& history)
    : FitLoop(session, options, stop, history) {
  const auto ports = binder_.data_ports();
  feed_ = std::make_unique<ChunkFeed>(
      session_, std::vector<runtime::Port>(ports.begin(), ports.end()), source, options_, stop_);
  prepare();
}

void FitLoop::prepare() {
  if (has_stopped()) return;
  feed_->open_validation(validation_);
  if (const RowBlock* block = feed_->known_block()) binder_.prepare(*block, options_.drop_last);
  if (goes_back(options_.on_non_finite)) search_.emplace(session_, binder_);
  reserve_history();
  const bool restores_best = options_.early_stopping && options_.early_stopping->restore_best;
  if (restores_best || options_.keep_best) best_.emplace(session_);
  if (options_.discard) {
    before_.emplace(session_);
    before_->take(session_);
  }
  countdown_ = options_.every_n_steps;
  if (search_ && !feed_->gives_single_batches()) snapshot_steps_ = options_.snapshot_every_steps;
  prepare_schedule(first_rate_);
  if (!has_stopped()) open_checkpoints();
}

// Called again when the first block has told the size of batches that are taken as they come.
void FitLoop::prepare_schedule(double rate) {
  first_rate_ = rate;
  if (!options_.schedule) return;
  if (needs_updates(*options_.schedule) && !feed_->num_batches()) {
    if (feed_->num_rows() && block_ == nullptr) return;
    if (!feed_->count_batches(stop_)) {
      if (stop_.is_set()) return;
      throw DataError({.what = "the schedule needs to know how many rows there are, and they can "
                               "be read once",
                       .hint = "Say it: onnxgrad.data.Batches(batches, rows=1000); or give a "
                               "function that returns a new iterator."});
    }
  }
  std::optional<std::int64_t> updates;
  if (const auto batches = feed_->num_batches()) {
    updates = options_.epochs * *batches / steps_per_update_;
  }
  schedule_.emplace(*options_.schedule, first_rate_, updates, options_.epochs);
  if (!schedule_state_.empty()) schedule_->load_state(schedule_state_);
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
  if (search_) search_->reserve(per_epoch);
}

// What ends with the fit, whatever ends it: schedules, and trials altogether.
struct FitLoop::RunEnder {
  explicit RunEnder(FitLoop& ended) : loop(ended) {}
  ~RunEnder() {
    if (loop.schedule_) loop.session_.set_learning_rate(loop.first_rate_);
    if (loop.before_) loop.before_->restore(loop.session_);
  }
  RunEnder(const RunEnder&) = delete;
  RunEnder& operator=(const RunEnder&) = delete;
  FitLoop& loop;
};

// Before the first step: while rows were counted, or read to resume.
bool FitLoop::has_stopped() {
  is_stopped_ = is_stopped_ || stop_.is_set();
  return is_stopped_;
}

void FitLoop::run() {
  if (is_stopped_) {
    end_with(stop_.reason());
    return;
  }
  const RunEnder ender{*this};
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
    if (!run_epoch(log)) return;
    append_epoch(history_, log, options_.max_history);
    ++epoch_;
    row_ = 0;
    notice_early_stop();
    if (options_.on_epoch_end && options_.on_epoch_end(log)) end_with("a callback asked to stop");
    if (stop_.is_set()) end_with(stop_.reason());
    if (!history_.stop_reason.empty()) return;
    // After the callbacks, which may have changed the learning rate.
    if (saving == nullptr || (saved_time_ && seconds_since(*saved_time_) < saving->min_seconds)) {
      continue;
    }
    if (saving->every_steps == 0 || (log.is_best && saving->keep_best)) save_checkpoint();
  }
}

// False, for the sake of its callers; the first reason is kept.
bool FitLoop::end_with(std::string reason) {
  if (history_.stop_reason.empty()) history_.stop_reason = std::move(reason);
  return false;
}

// False: stopped before its end.
bool FitLoop::run_epoch(EpochLog& log) {
  epoch_began_ = Clock::now();
  feed_waited_ = feed_->waited_s();
  if (!train_epoch()) return false;
  if (epoch_ == 1) note_unchanged_weights();
  fill_log(log);
  if (validation_ && log.epoch % options_.validation_every == 0) validation_->run(stop_, log);
  if (schedule_) {
    schedule_->end_epoch(log.val_loss.value_or(log.train_loss), step_ / steps_per_update_);
  }
  mark_best(log);
  log.seconds = seconds_before_ + seconds_since(epoch_began_);
  return true;
}

// Weights whose gradient is zero in all steps: training goes on, but that is worth a word.
void FitLoop::note_unchanged_weights() {
  if (!search_ || options_.discard || session_.learning_rate() <= 0) return;
  if (search_->num_steps() < steps_per_update_) return;
  const auto names = search_->unchanged_weights();
  if (names.empty()) return;
  const bool is_all = names.size() == session_.graph().weights.size();
  history_.notes.push_back(fmt::format(
      "{} changed in epoch 1: {}. Their gradients are zero (behind a Relu whose inputs are all "
      "negative, or before a step such as Round), or the learning rate {:g} is too small.",
      is_all ? "no weight has" : "some weights have not", base::quote_list(names),
      session_.learning_rate()));
}

double FitLoop::data_wait_s() const { return waited_before_ + feed_->waited_s() - feed_waited_; }

void FitLoop::fill_log(EpochLog& log) const {
  const double seconds = seconds_before_ + seconds_since(epoch_began_);
  log.epoch = epoch_;
  loss_.tell(session_, log);
  log.learning_rate = session_.learning_rate();
  log.steps = step_;
  log.rows = row_;
  log.rows_per_s = static_cast<double>(row_) / std::max(seconds, 1e-9);
  log.data_wait_s = data_wait_s();
}

// The steps of an epoch. False: stopped before its end.
bool FitLoop::train_epoch() {
  const EpochEnder ender{*feed_};
  if (row_ == 0) {  // else the epoch was begun by the fit that is resumed
    block_first_row_ = 0;
    loss_.clear();
    seconds_before_ = waited_before_ = 0;
    epoch_first_step_ = step_;
    feed_->begin_epoch(epoch_);
  }
  const bool is_whole = run_blocks();
  // The last update may have overflowed, which no loss has shown yet.
  const bool is_finite = check_state();
  block_ = nullptr;
  if (search_) search_->forget_batches();
  return is_whole && is_finite;
}

// False: stopped before the epoch's end.
bool FitLoop::run_blocks() {
  bool is_first = true;
  while (block_ != nullptr || (block_ = feed_->next(stop_)) != nullptr) {
    if (!begin_block(std::exchange(is_first, false)) || !run_block()) return false;
    // Its rows are needed for going back, so that is found before they are gone.
    if (!feed_->gives_single_batches() && !check_state()) return false;
    block_first_row_ += block_->rows;
    block_ = nullptr;
  }
  if (stop_.is_set()) return end_with(stop_.reason());
  if (row_ > 0) return true;
  throw DataError({.what = fmt::format("epoch {} has no rows", epoch_),
                   .hint = options_.drop_last
                               ? "Take smaller batches, or keep the last one."
                               : "Give data with rows; an iterator that is used up gives none a "
                                 "second time."});
}

// False: the state is not finite, and training ends.
bool FitLoop::begin_block(bool is_first) {
  if (options_.schedule && !schedule_) prepare_schedule(first_rate_);
  binder_.prepare(*block_, options_.drop_last);
  if (!search_) return true;
  if (!feed_->gives_single_batches() || is_first) {
    take_snapshot();
  } else {
    const std::int64_t steps = options_.snapshot_every_steps;
    const std::int64_t most = steps > 0 ? std::min(steps, kMostKept) : kMostKept;
    if (search_->num_steps() >= most || search_->kept_bytes() >= options_.block_bytes) {
      if (!check_state()) return false;
      take_snapshot();
    }
  }
  if (feed_->gives_single_batches()) search_->keep_batch(*block_);
  return true;
}

void FitLoop::take_snapshot() {
  search_->take_snapshot(row_ - block_first_row_, loss_);
  snapshot_step_ = step_;
  snapshot_row_ = row_;
}

// False: stopped before the block's end.
bool FitLoop::run_block() {
  const std::int64_t batch_rows = block_->batch_rows;
  const std::int64_t rows = block_->rows;
  std::int64_t begin = row_ - block_first_row_;
  for (; begin + batch_rows <= rows; begin += batch_rows) {
    if (!run_batch(begin, batch_rows)) return false;
  }
  return options_.drop_last || begin >= rows || run_batch(begin, rows - begin);
}

// False: training ends with this step.
bool FitLoop::run_batch(std::int64_t begin, std::int64_t rows) {
  runtime::Execution& execution = binder_.bind(*block_, begin, rows);
  if (schedule_) session_.set_learning_rate(schedule_->rate(step_ / steps_per_update_, epoch_ - 1));
  if (options_.learning_rate) session_.set_learning_rate(options_.learning_rate(step_));
  if (search_) search_->note_rate(session_.learning_rate());
  is_inside_step_ = true;
  const double loss = session_.run_step(execution);
  is_inside_step_ = false;
  session_.set_steps(session_.steps() + 1);
  ++step_;
  row_ += rows;
  if (options_.keep_step_losses) history_.step_losses.push_back(loss);
  const bool is_finite = std::isfinite(loss);
  if (options_.on_non_finite == OnNonFinite::kSkip && !is_finite) {
    ++history_.skipped_steps;
  } else {
    loss_.add(session_, execution, loss, rows);
  }
  if (!is_finite && search_) {
    return handle_fault(std::isnan(loss) ? "the training loss is nan"  // no word of its sign
                                         : fmt::format("the training loss is {}", loss));
  }
  if (stop_.is_set()) return end_with(stop_.reason());
  if (options_.max_seconds > 0 && is_time_over()) return false;
  if (countdown_ > 0) {
    --countdown_;
    if (countdown_ == 0 && !call_step_callback(loss, execution)) return false;
  }
  if (checkpoint_steps_ > 0 && step_ % checkpoint_steps_ == 0) {
    if (!check_state()) return false;
    save_checkpoint();
  }
  if (snapshot_steps_ > 0 && search_->num_steps() >= snapshot_steps_) {
    if (!check_state()) return false;
    take_snapshot();
  }
  return true;
}

// False: the state is not finite, and training ends.
bool FitLoop::check_state() {
  const bool has_rows = block_ != nullptr || feed_->gives_single_batches();
  if (!search_ || !has_rows || runtime::all_finite(session_.state_views())) return true;
  return handle_fault("a weight is not finite");
}

// After the last step. False, where it does not throw.
bool FitLoop::handle_fault(const std::string& fault_seen) {
  const double rate = session_.learning_rate();
  const std::int64_t bad_step = step_;
  is_inside_step_ = true;  // there is no checkpoint if the steps fail when they are done again
  const FaultSearch::Finding finding = search_->go_back(block_);
  is_inside_step_ = false;
  session_.set_learning_rate(finding.rate);
  std::string what = fmt::format("{} at epoch {}, step {} (batch {}, {})", fault_seen, epoch_,
                                 bad_step, bad_step - epoch_first_step_,
                                 search_->describe_rows(block_, search_->num_steps() - 1));
  if (!finding.text.empty()) {
    what += fmt::format("; {} in step {}", finding.text, snapshot_step_ + finding.step + 1);
  }
  step_ = snapshot_step_ + finding.good_steps;
  row_ = snapshot_row_ + finding.good_rows;
  loss_ = finding.loss;
  if (options_.on_non_finite == OnNonFinite::kStop) return end_with(what);
  const char* const clip = session_.takes_whole_batch() ? "" : ", a (smaller) clip_norm";
  throw ConvergenceError(
      {.what = what,
       .detail = fmt::format("Learning rate {:g}. The weights are those before step {}: the last "
                             "finite ones.",
                             rate, step_ + 1),
       .hint = fmt::format("Try lr={:g}{}, or scale the inputs.", rate / 10, clip)});
}

bool FitLoop::call_step_callback(double loss, const runtime::Execution& execution) {
  countdown_ = options_.every_n_steps;
  if (!options_.on_step_end) return true;
  const StepLog log{.epoch = epoch_,
                    .step = step_,
                    .loss = loss,
                    .grad_norm = gradient_norm(session_, execution)};
  if (!options_.on_step_end(log)) return true;
  return end_with("a callback asked to stop");
}

bool FitLoop::is_time_over() {
  if (Clock::now() < deadline_) return false;
  end_with(fmt::format("the time of {:g} s is over", options_.max_seconds));
  return true;
}

void FitLoop::mark_best(EpochLog& log) {
  if (validation_ && !log.val_loss) return;
  const double loss = monitored(options_, log);
  if (std::isnan(loss)) {  // never the best
    ++epochs_without_improvement_;
    return;
  }
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
  end_with(fmt::format("no improvement for {} epochs", options_.early_stopping->patience));
  return true;
}

}  // namespace onnxgrad::train

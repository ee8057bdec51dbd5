// How a fit becomes a checkpoint, and goes on from one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "onnxgrad/option_error.h"
#include "runtime/finite.h"
#include "train/fit/fit_history.h"
#include "train/fit/fit_loop.h"

namespace onnxgrad::train {
namespace {

constexpr std::string_view kBest = "best";
constexpr std::string_view kOption = "option:";  // in the metadata

[[noreturn]] void refuse(const Checkpoint& checkpoint, const std::string& what,
                         const std::string& hint) {
  throw CheckpointError({.what = what, .where = {.file = checkpoint.path}, .hint = hint});
}

void set_row(Checkpoint& checkpoint, std::string_view name, const std::vector<double>& numbers) {
  checkpoint.set(fmt::format("{}{}", kReservedPrefix, name),
                 Tensor::from(numbers, Dims{static_cast<std::int64_t>(numbers.size())}));
}

std::string option_of(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.metadata.find(fmt::format("{}{}", kOption, name));
  return found == checkpoint.metadata.end() ? "" : found->second;
}

std::string early_stopping_text(const FitOptions& options) {
  if (!options.early_stopping) return options.keep_best ? "none, keep_best" : "none";
  const EarlyStopping& given = *options.early_stopping;
  const std::string monitor = given.monitor.empty() ? "the loss" : given.monitor;
  return fmt::format("{}, patience {}, min_delta {}{}{}", monitor, given.patience, given.min_delta,
                     given.maximize ? ", maximize" : "",
                     given.restore_best || options.keep_best ? ", best restored" : "");
}

std::string metrics_text(const std::vector<Metric>& metrics) {
  std::vector<std::string> names;
  for (const Metric& metric : metrics) names.push_back(metric.name);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::string number_or_none(std::optional<std::int64_t> number) {
  return number ? std::to_string(*number) : "not known";
}

}  // namespace

// What the order of the rows, the numbers and the end depend on, under the names that users know.
// The first one that differs is named, so what explains the others comes first.
std::vector<std::pair<std::string, std::string>> FitLoop::fixed_options() const {
  const bool has_windows = options_.sampling == Sampling::kWindows;
  const bool has_arrays = feed_->known_block() != nullptr;
  return {{"data", has_arrays ? "arrays" : "chunks"},
          {"windows", has_windows ? "1" : "0"},
          {"validation", fmt::format("{}", options_.validation_fraction)},
          {"training_rows", number_or_none(feed_->num_rows())},
          {"batch_size", options_.batch_size == FitOptions::kAsTheyCome
                             ? "as they come"
                             : std::to_string(options_.batch_size)},
          {"block_bytes", has_arrays ? "none" : std::to_string(options_.block_bytes)},
          {"shuffle", options_.shuffle ? "1" : "0"},
          {"drop_last", options_.drop_last ? "1" : "0"},
          {"seed", std::to_string(options_.seed)},
          {"validation_every", std::to_string(options_.validation_every)},
          {"class_weights", class_weights_text(options_)},
          {"grad_norm", session_.graph().has_gradient_norm ? "1" : "0"},
          {"metrics", metrics_text(options_.metrics)},
          {"early_stopping", early_stopping_text(options_)},
          {"schedule", options_.schedule ? schedule_text(*options_.schedule) : "none"}};
}

void FitLoop::open_checkpoints() {
  if (options_.checkpoint) {
    const CheckpointOptions& wanted = *options_.checkpoint;
    if (wanted.folder.empty()) {
      throw OptionError({.what = "checkpoints need a folder",
                         .hint = "Give CheckpointOptions::folder, a folder of their own."});
    }
    if (wanted.keep < 1 || wanted.every_steps < 0) {
      throw OptionError({.what = fmt::format("checkpoints: keep is {}, every_steps {}, expected at "
                                             "least 1 and 0",
                                             wanted.keep, wanted.every_steps),
                         .hint = "Keep one or more; 0 steps stand for the end of each epoch."});
    }
    checkpoint_steps_ = wanted.every_steps;
    checkpoints_.emplace(
        wanted.folder,
        CheckpointFolder::Options{.keep = wanted.keep, .keep_best = wanted.keep_best},
        [this](const std::string& path, const std::string& problem) {
          if (options_.on_checkpoint) options_.on_checkpoint({.path = path, .problem = problem});
        });
  }
  const auto found = find_checkpoint();
  const std::int64_t steps = found ? found->get_int("session/steps") : session_.steps();
  if (checkpoints_) checkpoints_->begin(steps, found ? &*found : nullptr);
  if (found) resume_from(*found);
}

std::optional<Checkpoint> FitLoop::find_checkpoint() {
  namespace fs = std::filesystem;
  const std::string& path = options_.resume;
  if (path.empty()) return std::nullopt;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return read_checkpoint(path);
  std::optional<Checkpoint> found;
  const bool is_own = checkpoints_ && fs::equivalent(path, checkpoints_->path(), ignored);
  if (is_own) {
    found = checkpoints_->take_newest();
  } else if (fs::exists(path, ignored) || !options_.resume_if_any) {
    found = newest_checkpoint(path, [this](const std::string& file, const std::string& problem) {
      if (options_.on_checkpoint) options_.on_checkpoint({.path = file, .problem = problem});
    });
  }
  if (!found && !options_.resume_if_any) {
    throw CheckpointError({.what = "there is no whole checkpoint to resume from",
                           .where = {.file = path},
                           .hint = "Begin anew without resuming."});
  }
  return found;
}

void FitLoop::check_fit(const Checkpoint& checkpoint) const {
  if (checkpoint.find(fmt::format("{}fit/epoch", kReservedPrefix)) == nullptr) {
    refuse(checkpoint, "the checkpoint is of a session, not of a fit",
           "Load it into the session, then train without resuming.");
  }
  for (const auto& [name, value] : fixed_options()) {
    const std::string stored = option_of(checkpoint, name);
    if (stored == value) continue;
    refuse(checkpoint, fmt::format("{} is {} in the checkpoint, {} now", name, stored, value),
           "Resume with the data and options of the first run.");
  }
}

// Goes to the place in the data, with the same rows before it. False: stopped while reading.
bool FitLoop::seek_rows(const Checkpoint& checkpoint, std::int64_t epoch, std::int64_t row) {
  if (row > 0) {
    feed_->begin_epoch(epoch);
    while ((block_ = feed_->next(stop_)) != nullptr && block_first_row_ + block_->rows < row) {
      block_first_row_ += block_->rows;
    }
    if (stop_.is_set()) return false;
    if (block_ == nullptr) {
      refuse(checkpoint,
             fmt::format("epoch {} has {} rows, the checkpoint was made after {}", epoch,
                         block_first_row_, row),
             "Give the data of the first run; an iterator that is used up gives no rows again: "
             "give a list, or a function that returns a new iterator.");
    }
  }
  const auto stored = checkpoint.metadata.find("data_hash");
  if (stored == checkpoint.metadata.end() || stored->second != feed_->checksum(row)) {
    refuse(checkpoint, "the checkpoint was written with other training or validation rows",
           "Resume with the data of the first run, in the same order.");
  }
  return true;
}

void FitLoop::resume_from(const Checkpoint& checkpoint) {
  check_fit(checkpoint);
  const std::int64_t epoch = checkpoint.get_int("fit/epoch");
  const std::int64_t row = checkpoint.get_int("fit/row");
  const std::int64_t step = checkpoint.get_int("fit/step");
  const std::int64_t epoch_steps = checkpoint.get_int("fit/epoch_steps");
  const std::int64_t skipped = checkpoint.get_int("fit/skipped_steps");
  const std::int64_t waited = checkpoint.get_int("fit/epochs_without_improvement");
  if (epoch < 1 || row < 0 || row > feed_->num_rows().value_or(row) || epoch_steps < 0 ||
      step < epoch_steps || skipped < 0 || waited < 0) {
    refuse(checkpoint,
           fmt::format("the checkpoint is at epoch {}, row {}, step {}", epoch, row, step),
           "Use another checkpoint: this file was not written by onnxgrad.");
  }
  if (!seek_rows(checkpoint, epoch, row)) {
    is_stopped_ = true;
    return;
  }
  History history;
  read_history(checkpoint, options_, session_.graph().target_losses, history);
  EpochLoss loss;
  if (!loss.set_state(session_, checkpoint.get_doubles("fit/epoch_loss"))) {
    refuse(checkpoint, "the losses of the epoch in the checkpoint are not those of these targets",
           "Use another checkpoint: this file was not written by onnxgrad.");
  }
  const double seconds = checkpoint.get_double("fit/seconds");
  const double data_wait = checkpoint.get_double("fit/data_wait_s");
  const double best_loss = checkpoint.get_double("fit/best_loss");
  if (best_ && history.best_epoch && !best_->take_from(checkpoint, kBest, session_)) {
    refuse(checkpoint, "the checkpoint has no copy of the best weights",
           "Resume without restore_best, as in the first run.");
  }
  prepare_schedule(checkpoint.get_double("fit/first_rate"));
  if (options_.schedule) {
    schedule_state_ = checkpoint.get_doubles("fit/schedule_state");
    if (schedule_) schedule_->load_state(schedule_state_);
  }
  restore_session(session_, checkpoint);
  history_.epochs.insert(history_.epochs.end(), history.epochs.begin(), history.epochs.end());
  history_.epoch_stride = history.epoch_stride;
  history_.step_losses.insert(history_.step_losses.end(), history.step_losses.begin(),
                              history.step_losses.end());
  history_.best_epoch = history.best_epoch;
  history_.skipped_steps = skipped;
  epoch_ = epoch;
  row_ = row;
  step_ = step;
  epoch_first_step_ = step - epoch_steps;
  epochs_without_improvement_ = waited;
  loss_ = std::move(loss);
  seconds_before_ = seconds;
  waited_before_ = data_wait;
  best_loss_ = best_loss;
  if (countdown_ > 0) countdown_ -= step_ % options_.every_n_steps;
  saved_at_ = {session_.steps(), epoch_, row_};
}

Checkpoint FitLoop::make_checkpoint() const {
  Checkpoint checkpoint = checkpoint_of(session_);
  const bool is_within = row_ > 0;  // an epoch
  for (const auto& [name, value] : fixed_options()) {
    checkpoint.metadata[fmt::format("{}{}", kOption, name)] = value;
  }
  checkpoint.set_int("fit/epoch", epoch_);
  checkpoint.set_int("fit/row", row_);
  checkpoint.set_int("fit/step", step_);
  checkpoint.set_int("fit/epoch_steps", is_within ? step_ - epoch_first_step_ : 0);
  checkpoint.set_int("fit/skipped_steps", history_.skipped_steps);
  checkpoint.set_int("fit/epochs_without_improvement", epochs_without_improvement_);
  set_row(checkpoint, "fit/epoch_loss", is_within ? loss_.state() : EpochLoss().state());
  checkpoint.set_double("fit/seconds",
                        is_within ? seconds_before_ + seconds_since(epoch_began_) : 0);
  checkpoint.set_double("fit/data_wait_s", is_within ? data_wait_s() : 0);
  checkpoint.set_double("fit/best_loss", best_loss_);
  checkpoint.set_double("fit/first_rate", first_rate_);
  if (options_.schedule) {
    const std::vector<double> state = schedule_ ? schedule_->state() : schedule_state_;
    set_row(checkpoint, "fit/schedule_state", state);
  }
  if (best_ && history_.best_epoch) best_->add_to(checkpoint, kBest, session_);
  write_history(checkpoint, options_, history_, step_);
  checkpoint.metadata["epoch"] = std::to_string(epoch_);
  checkpoint.metadata["data_hash"] = feed_->checksum(row_);
  return checkpoint;
}

void FitLoop::save_checkpoint() {
  const bool is_best = is_new_best_ && row_ == 0;
  saved_time_ = Clock::now();
  CheckpointLog log;
  try {
    if (search_ && !runtime::all_finite(session_.state_views())) {
      throw CheckpointError({.what = "the weights are not finite",
                             .where = {.file = checkpoints_->path()},
                             .hint = "Resume from the checkpoint before, with a smaller rate."});
    }
    Checkpoint checkpoint = make_checkpoint();
    log.path = checkpoints_->save(checkpoint, session_.steps(), is_best);
    saved_at_ = {session_.steps(), epoch_, row_};
    is_new_best_ = is_new_best_ && !is_best;
  } catch (const CheckpointError& error) {
    log = {.path = checkpoints_->path(), .problem = error.what()};
  }
  history_.checkpoint_problem = log.problem;
  if (options_.on_checkpoint) options_.on_checkpoint(log);
}

// Where training ends, however it does. A step that failed half way may have changed the state.
void FitLoop::save_last_checkpoint() {
  const std::array<std::int64_t, 3> here{session_.steps(), epoch_, row_};
  if (checkpoints_ && !is_inside_step_ && saved_at_ != here) save_checkpoint();
}

}  // namespace onnxgrad::train

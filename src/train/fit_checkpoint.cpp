// How a fit becomes a checkpoint, and goes on from one.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "onnxgrad/option_error.h"
#include "train/fit_loop.h"

namespace onnxgrad::train {
namespace {

constexpr std::size_t kNumColumns = 6;  // of numbers that every epoch has
constexpr std::string_view kBest = "best";
constexpr std::string_view kEpochStart = "epoch_start";

// Bits of "history/flags".
constexpr std::int64_t kHasLoss = 1;
constexpr std::int64_t kHasAccuracy = 2;
constexpr std::int64_t kIsBest = 4;
constexpr std::int64_t kHasMetrics = 8;

std::string copy_name(std::string_view purpose, std::string_view state_name) {
  return fmt::format("{}{}/{}", kReservedPrefix, purpose, state_name);
}

[[noreturn]] void refuse(const Checkpoint& checkpoint, const std::string& what,
                         const std::string& mend) {
  throw CheckpointError({.what = what, .where = {.file = checkpoint.path}, .mend = mend});
}

void add_column(Checkpoint& checkpoint, std::string_view name, const auto& values) {
  checkpoint.set(fmt::format("{}{}", kReservedPrefix, name),
                 Tensor::from(values, Dims{static_cast<std::int64_t>(values.size())}));
}

}  // namespace

std::string checksum_of(const PreparedData& data, const PreparedData* validation) {
  base::Checksum checksum;
  const auto add = [&checksum](const PreparedData& rows) {
    for (const Column& column : rows.columns) {
      checksum.update(fmt::format("{} {}{}\n", column.name, dtype_name(column.values.dtype()),
                                  column.values.dims().to_string()));
      checksum.update(
          std::span(column.values.raw(), static_cast<std::size_t>(column.values.size_bytes())));
    }
  };
  add(data);
  checksum.update(std::string_view("\nvalidation\n"));
  if (validation != nullptr) add(*validation);
  return checksum.hex();
}

void StateSnapshot::add_to(Checkpoint& checkpoint, std::string_view purpose,
                           const Session& session) const {
  const NamedTensors state = session.state_view();
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    checkpoint.set(copy_name(purpose, state[i].name), copies_[i]);
  }
  checkpoint.set_int(fmt::format("fit/{}_steps", purpose), steps_);
}

bool StateSnapshot::take_from(const Checkpoint& checkpoint, std::string_view purpose,
                              const Session& session) {
  const NamedTensors state = session.state_view();
  std::vector<const Tensor*> stored;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Tensor* tensor = checkpoint.find(copy_name(purpose, state[i].name));
    if (tensor == nullptr) return false;
    if (tensor->dtype() != copies_[i].dtype() || tensor->dims() != copies_[i].dims()) return false;
    stored.push_back(tensor);
  }
  steps_ = checkpoint.get_int(fmt::format("fit/{}_steps", purpose));
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    std::memcpy(copies_[i].mutable_raw(), stored[i]->raw(),
                static_cast<std::size_t>(copies_[i].size_bytes()));
  }
  return true;
}

// What the order of the rows and the numbers depend on, under the names that users know.
std::vector<std::pair<std::string, std::int64_t>> FitLoop::fixed_options() const {
  return {{"windows", options_.sampling == Sampling::kWindows ? 1 : 0},
          {"training_rows", num_rows_},
          {"batch_size", batch_size_},
          {"shuffle", options_.shuffle ? 1 : 0},
          {"drop_last", options_.drop_last ? 1 : 0},
          {"seed", static_cast<std::int64_t>(options_.seed)},
          {"validation_every", options_.validation_every},
          {"schedule", schedule_ ? 1 : 0}};
}

void FitLoop::open_checkpoints() {
  if (options_.checkpoint) {
    const CheckpointOptions& wanted = *options_.checkpoint;
    if (wanted.folder.empty()) throw OptionError("checkpoints need a folder");
    if (wanted.keep < 1 || wanted.every_steps < 0) {
      throw OptionError(
          fmt::format("checkpoints: keep is {}, every_steps {}, expected at least 1 "
                      "and 0",
                      wanted.keep, wanted.every_steps));
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
                           .mend = "Begin anew without resuming."});
  }
  return found;
}

void FitLoop::check_fit(const Checkpoint& checkpoint) const {
  if (checkpoint.find(fmt::format("{}fit/epoch", kReservedPrefix)) == nullptr) {
    refuse(checkpoint, "the checkpoint is of a session, not of a fit",
           "Load it into the session, then train without resuming.");
  }
  for (const auto& [name, value] : fixed_options()) {
    const std::int64_t stored = checkpoint.get_int("fit/" + name);
    if (stored == value) continue;
    refuse(checkpoint, fmt::format("{} is {} in the checkpoint, {} now", name, stored, value),
           "Resume with the data and options of the first run.");
  }
  const auto hash = checkpoint.metadata.find("data_hash");
  if (hash == checkpoint.metadata.end() || hash->second != data_hash_) {
    refuse(checkpoint, "the checkpoint was written with other training or validation rows",
           "Resume with the data of the first run.");
  }
}

void FitLoop::resume_from(const Checkpoint& checkpoint) {
  check_fit(checkpoint);
  read_history(checkpoint);
  const std::int64_t epoch = checkpoint.get_int("fit/epoch");
  const std::int64_t row = checkpoint.get_int("fit/row");
  const std::int64_t step = checkpoint.get_int("fit/step");
  const std::int64_t skipped = checkpoint.get_int("fit/skipped_steps");
  const std::int64_t waited = checkpoint.get_int("fit/epochs_without_improvement");
  const std::int64_t done = (row + batch_size_ - 1) / batch_size_;  // steps of the epoch
  const std::vector<double> rates = checkpoint.get_doubles("fit/epoch_rates");
  if (epoch < 1 || row < 0 || row > num_rows_ || step < done || skipped < 0 || waited < 0 ||
      static_cast<std::int64_t>(rates.size()) != done) {
    refuse(checkpoint,
           fmt::format("the checkpoint is at epoch {}, row {}, step {}", epoch, row, step),
           "The file was not written by onnxgrad.");
  }
  const double loss_sum = checkpoint.get_double("fit/loss_sum");
  const double weight_sum = checkpoint.get_double("fit/weight_sum");
  const double seconds = checkpoint.get_double("fit/seconds");
  const double best_loss = checkpoint.get_double("fit/best_loss");
  if (best_ && history_.best_epoch && !best_->take_from(checkpoint, kBest, session_)) {
    refuse(checkpoint, "the checkpoint has no copy of the best weights",
           "Resume without restore_best, as in the first run.");
  }
  if (epoch_start_ && row > 0 && !epoch_start_->take_from(checkpoint, kEpochStart, session_)) {
    refuse(checkpoint, "the checkpoint has no copy of the weights at the epoch's start",
           "Resume with on_non_finite = kIgnore, as in the first run.");
  }
  prepare_schedule(checkpoint.get_double("fit/first_rate"));
  if (schedule_) schedule_->load_state(checkpoint.get_doubles("fit/schedule_state"));
  restore_session(session_, checkpoint);
  epoch_ = epoch;
  row_ = row;
  step_ = step;
  epoch_first_step_ = step - done;
  epoch_rates_.assign(rates.begin(), rates.end());
  history_.skipped_steps = skipped;
  epochs_without_improvement_ = waited;
  loss_sum_ = loss_sum;
  weight_sum_ = weight_sum;
  seconds_before_ = seconds;
  best_loss_ = best_loss;
  if (countdown_ > 0) countdown_ -= step_ % options_.every_n_steps;
  saved_at_ = {session_.steps(), epoch_, row_};
}

void FitLoop::read_history(const Checkpoint& checkpoint) {
  const auto flags = checkpoint.get_ints("history/flags");
  const auto steps = checkpoint.get_ints("history/steps");
  const auto rows = checkpoint.get_ints("history/rows");
  std::vector<std::vector<double>> columns;
  for (const char* name :
       {"train_loss", "val_loss", "val_accuracy", "lr", "seconds", "rows_per_s"}) {
    columns.push_back(checkpoint.get_doubles(fmt::format("history/{}", name)));
  }
  for (const Metric& metric : options_.metrics) {
    columns.push_back(checkpoint.get_doubles(fmt::format("history/metric/{}", metric.name)));
  }
  const auto has_other_size = [&](const auto& column) { return column.size() != flags.size(); };
  if (has_other_size(steps) || has_other_size(rows) ||
      std::ranges::any_of(columns, has_other_size)) {
    refuse(checkpoint, "the columns of the checkpoint's history differ in length",
           "The file was not written by onnxgrad.");
  }
  History history;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    EpochLog log{.epoch = static_cast<std::int64_t>(i) + 1,
                 .train_loss = columns[0][i],
                 .learning_rate = columns[3][i],
                 .seconds = columns[4][i],
                 .rows_per_s = columns[5][i],
                 .steps = steps[i],
                 .is_best = (flags[i] & kIsBest) != 0};
    if ((flags[i] & kHasLoss) != 0) log.val_loss = columns[1][i];
    if ((flags[i] & kHasAccuracy) != 0) log.val_accuracy = columns[2][i];
    log.rows = rows[i];
    for (std::size_t m = 0; m < options_.metrics.size() && (flags[i] & kHasMetrics) != 0; ++m) {
      log.val_metrics.emplace_back("val_" + options_.metrics[m].name, columns[kNumColumns + m][i]);
    }
    if (log.is_best) history.best_epoch = log.epoch;
    history.epochs.push_back(log);
  }
  history.step_losses = checkpoint.get_doubles("history/step_losses");
  history_.epochs.insert(history_.epochs.end(), history.epochs.begin(), history.epochs.end());
  history_.step_losses.insert(history_.step_losses.end(), history.step_losses.begin(),
                              history.step_losses.end());
  history_.best_epoch = history.best_epoch;
}

void FitLoop::write_history(Checkpoint& checkpoint) const {
  std::vector<std::int64_t> flags;
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> rows;
  std::vector<std::vector<double>> columns(kNumColumns + options_.metrics.size());
  for (const EpochLog& log : history_.epochs) {
    flags.push_back((log.val_loss ? kHasLoss : 0) | (log.val_accuracy ? kHasAccuracy : 0) |
                    (log.is_best ? kIsBest : 0) | (log.val_metrics.empty() ? 0 : kHasMetrics));
    steps.push_back(log.steps);
    rows.push_back(log.rows);
    const double values[] = {log.train_loss,
                             log.val_loss.value_or(0),
                             log.val_accuracy.value_or(0),
                             log.learning_rate,
                             log.seconds,
                             log.rows_per_s};
    for (std::size_t i = 0; i < kNumColumns; ++i) columns[i].push_back(values[i]);
    for (std::size_t m = 0; m < options_.metrics.size(); ++m) {
      const bool is_there = m < log.val_metrics.size();
      columns[kNumColumns + m].push_back(is_there ? log.val_metrics[m].second : 0);
    }
  }
  add_column(checkpoint, "history/flags", flags);
  add_column(checkpoint, "history/steps", steps);
  add_column(checkpoint, "history/rows", rows);
  const char* const names[] = {"train_loss", "val_loss", "val_accuracy",
                               "lr",         "seconds",  "rows_per_s"};
  for (std::size_t i = 0; i < kNumColumns; ++i) {
    add_column(checkpoint, fmt::format("history/{}", names[i]), columns[i]);
  }
  for (std::size_t m = 0; m < options_.metrics.size(); ++m) {
    add_column(checkpoint, fmt::format("history/metric/{}", options_.metrics[m].name),
               columns[kNumColumns + m]);
  }
  // Where training went back to the start of the epoch there are more.
  const std::span<const double> losses = history_.step_losses;
  add_column(checkpoint, "history/step_losses", losses.first(static_cast<std::size_t>(step_)));
}

Checkpoint FitLoop::make_checkpoint() const {
  Checkpoint checkpoint = checkpoint_of(session_);
  for (const auto& [name, value] : fixed_options()) checkpoint.set_int("fit/" + name, value);
  checkpoint.set_int("fit/epoch", epoch_);
  checkpoint.set_int("fit/row", row_);
  checkpoint.set_int("fit/step", step_);
  checkpoint.set_int("fit/skipped_steps", history_.skipped_steps);
  checkpoint.set_int("fit/epochs_without_improvement", epochs_without_improvement_);
  checkpoint.set_double("fit/loss_sum", row_ > 0 ? loss_sum_ : 0);
  checkpoint.set_double("fit/weight_sum", row_ > 0 ? weight_sum_ : 0);
  checkpoint.set_double("fit/seconds",
                        row_ > 0 ? seconds_before_ + seconds_since(epoch_began_) : 0);
  checkpoint.set_double("fit/best_loss", best_loss_);
  checkpoint.set_double("fit/first_rate", first_rate_);
  const std::span<const double> rates = epoch_rates_;
  const std::int64_t done = row_ > 0 ? step_ - epoch_first_step_ : 0;
  add_column(checkpoint, "fit/epoch_rates", rates.first(static_cast<std::size_t>(done)));
  if (schedule_) add_column(checkpoint, "fit/schedule_state", schedule_->state());
  if (best_ && history_.best_epoch) best_->add_to(checkpoint, kBest, session_);
  if (epoch_start_ && row_ > 0) epoch_start_->add_to(checkpoint, kEpochStart, session_);
  write_history(checkpoint);
  checkpoint.metadata["epoch"] = std::to_string(epoch_);
  checkpoint.metadata["data_hash"] = data_hash_;
  return checkpoint;
}

void FitLoop::save_checkpoint() {
  const bool is_best = is_new_best_ && row_ == 0;
  CheckpointLog log;
  try {
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

#include "train/fit/fit_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <utility>

#include "onnxgrad/option_error.h"
#include "train/fit/fault_search.h"
#include "train/fit/fit_history.h"
#include "train/fit/options.h"
#include "train/optimizers/averages.h"
#include "train/session/session_checkpoint.h"

namespace onnxgrad::train {
namespace {

using Texts = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kOption = "option:";  // in the metadata

[[noreturn]] void refuse_position(const Checkpoint& checkpoint, const std::string& what,
                                  const std::string& hint) {
  throw CheckpointError({.what = what, .where = {.file = checkpoint.path}, .hint = hint});
}

void set_row(Checkpoint& checkpoint, std::string_view name, const std::vector<double>& numbers) {
  checkpoint.set(fmt::format("{}{}", kReservedPrefix, name),
                 Tensor::from(numbers, Dims{static_cast<std::int64_t>(numbers.size())}));
}

// An option that the checkpoint does not have is newer than it: the fit had its default.
std::string option_of(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.metadata.find(fmt::format("{}{}", kOption, name));
  if (found != checkpoint.metadata.end()) return found->second;
  for (const auto& [option, value] : fit_option_rows().fixed(FitOptions{})) {
    if (option == name) return value;
  }
  return "";
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

// Options that determine the order of the rows, the results and the end, by the names that users
// know. The first one that differs is reported, so causes come before effects.
Texts FitCheckpoints::fixed_options() const {
  const FitOptions& options = fit_.options;
  const bool has_arrays = fit_.feed.known_block() != nullptr;
  const bool has_norm = fit_.session.runner().graph().ports.gradient_norm.has_value();
  Texts texts{{"data", has_arrays ? "arrays" : "chunks"}};
  for (auto& text : fit_option_rows().fixed(options)) {
    if (!has_arrays || text.first != "buffer_bytes") texts.push_back(std::move(text));
  }
  const Texts others{{"validation", fmt::format("{}", options.validation_fraction)},
                     {"training_rows", number_or_none(fit_.feed.num_rows())},
                     {"batch_size", options.batch_size == FitOptions::kAsTheyCome
                                        ? "as they come"
                                        : std::to_string(options.batch_size)},
                     {"seed", std::to_string(options.seed)},
                     {"class_weights", class_weights_text(options)},
                     {"augment", augment_text(options.augment)},
                     {"grad_norm", has_norm ? "true" : "false"},
                     {"metrics", metrics_text(options.metrics)},
                     {"early_stopping", early_stopping_text(options)},
                     {"schedule", options.schedule ? schedule_text(*options.schedule) : "none"}};
  texts.insert(texts.end(), others.begin(), others.end());
  return texts;
}

// Runs `action` on the first worker only; a failure is an error on all workers.
template <class Action>
void FitCheckpoints::on_first_worker(Action&& action) {
  std::exception_ptr failure;
  std::string problem;
  if (is_first_worker()) {
    try {
      action();
    } catch (const CheckpointError& error) {
      failure = std::current_exception();
      problem = error.problem().what;
    }
  }
  problem = fit_.session.workers().communicator().broadcast_text(problem, 0);
  if (failure != nullptr) std::rethrow_exception(failure);
  if (problem.empty()) return;
  throw CheckpointError(
      {.what = problem, .hint = "See the message of the first worker, which has the details."});
}

bool FitCheckpoints::open(const RowBlock*& block, StopFlag& stop) {
  if (fit_.options.checkpoint) {
    const CheckpointOptions& wanted = *fit_.options.checkpoint;
    if (wanted.folder.empty()) {
      throw OptionError({.what = "checkpoints need a folder",
                         .hint = "Give CheckpointOptions::folder, a dedicated folder."});
    }
    if (wanted.keep < 1 || wanted.every_steps < 0) {
      throw OptionError({.what = fmt::format("checkpoints: keep is {}, every_steps {}, expected at "
                                             "least 1 and 0",
                                             wanted.keep, wanted.every_steps),
                         .hint = "Keep one or more; 0 steps means the end of each epoch."});
    }
    steps_ = wanted.every_steps;
    writes_ = true;
    on_first_worker([&] {
      folder_.emplace(wanted.folder,
                      CheckpointFolder::Options{.keep = wanted.keep, .keep_best = wanted.keep_best},
                      [this](const std::string& path, const std::string& problem) {
                        if (!fit_.options.on_checkpoint) return;
                        fit_.options.on_checkpoint({.path = path, .problem = problem});
                      });
    });
  }
  const auto found = find_for_all();
  const std::int64_t steps =
      found ? found->get_int("session/steps") : fit_.session.runner().steps();
  on_first_worker([&] {
    if (folder_) folder_->begin(steps, found ? &*found : nullptr);
  });
  return !found || resume(*found, block, stop);
}

// The first worker looks for it; the others read the same file.
std::optional<Checkpoint> FitCheckpoints::find_for_all() {
  if (fit_.options.resume.empty()) return std::nullopt;
  const Workers& workers = fit_.session.workers();
  std::optional<Checkpoint> found;
  on_first_worker([&] { found = find(); });
  const std::string path =
      workers.communicator().broadcast_text(found ? found->path : std::string(), 0);
  if (!is_first_worker() && !path.empty()) found = read_checkpoint(path);
  has_part_ = found && take_part(*found, workers.rank(), workers.size());
  return found;
}

bool FitCheckpoints::is_first_worker() const { return fit_.session.workers().rank() == 0; }

std::optional<Checkpoint> FitCheckpoints::find() {
  namespace fs = std::filesystem;
  const FitOptions& options = fit_.options;
  const std::string& path = options.resume;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return read_checkpoint(path);
  std::optional<Checkpoint> found;
  const bool is_own = folder_ && fs::equivalent(path, folder_->path(), ignored);
  if (is_own) {
    found = folder_->take_newest();
  } else if (fs::exists(path, ignored) || !options.resume_if_any) {
    found = newest_checkpoint(path, [&](const std::string& file, const std::string& problem) {
      if (options.on_checkpoint) options.on_checkpoint({.path = file, .problem = problem});
    });
  }
  if (!found && !options.resume_if_any) {
    throw CheckpointError({.what = "there is no complete checkpoint to resume from",
                           .where = {.file = path},
                           .hint = "Start over without resuming."});
  }
  return found;
}

void FitCheckpoints::check_fit(const Checkpoint& checkpoint) const {
  if (checkpoint.find(fmt::format("{}fit/epoch", kReservedPrefix)) == nullptr) {
    refuse_position(checkpoint, "the checkpoint is of a session, not of a fit",
                    "Load it into the session, then train without resuming.");
  }
  for (const auto& [name, value] : fixed_options()) {
    const std::string stored = option_of(checkpoint, name);
    if (stored == value) continue;
    refuse_position(checkpoint,
                    fmt::format("{} is {} in the checkpoint, {} now", name, stored, value),
                    "Resume with the data and options of the first run.");
  }
}

// Advances to the position in the data, checking the rows before it. False: stopped while reading.
bool FitCheckpoints::seek_rows(const Checkpoint& checkpoint, const FitProgress& place,
                               const RowBlock*& block, StopFlag& stop) {
  std::int64_t& first_row = fit_.progress.block_first_row;
  if (place.row > 0) {
    fit_.feed.begin_epoch(place.epoch);
    while ((block = fit_.feed.next(stop)) != nullptr && first_row + block->rows < place.row) {
      first_row += block->rows;
    }
    if (stop.is_set()) return false;
    if (block == nullptr) {
      refuse_position(checkpoint,
                      fmt::format("epoch {} has {} rows, the checkpoint was made after {}",
                                  place.epoch, first_row, place.row),
                      "Give the data of the first run; an exhausted iterator yields no rows: "
                      "give a list, or a function that returns a new iterator.");
    }
  }
  const auto stored = checkpoint.metadata.find("data_hash");
  if (stored == checkpoint.metadata.end() || stored->second != fit_.feed.checksum(place.row)) {
    refuse_position(checkpoint,
                    "the checkpoint was written with different training or validation rows",
                    "Resume with the data of the first run, in the same order.");
  }
  return true;
}

bool FitCheckpoints::resume(const Checkpoint& checkpoint, const RowBlock*& block, StopFlag& stop) {
  check_fit(checkpoint);
  FitProgress place{.epoch = checkpoint.get_int("fit/epoch"),
                    .row = checkpoint.get_int("fit/row"),
                    .step = checkpoint.get_int("fit/step")};
  const std::int64_t epoch_steps = checkpoint.get_int("fit/epoch_steps");
  const std::int64_t skipped = checkpoint.get_int("fit/skipped_steps");
  const std::int64_t waited = checkpoint.get_int("fit/epochs_without_improvement");
  if (place.epoch < 1 || place.row < 0 || place.row > fit_.feed.num_rows().value_or(place.row) ||
      epoch_steps < 0 || place.step < epoch_steps || skipped < 0 || waited < 0) {
    refuse_position(checkpoint,
                    fmt::format("the checkpoint is at epoch {}, row {}, step {}", place.epoch,
                                place.row, place.step),
                    "Use another checkpoint: this file was not written by onnxgrad.");
  }
  if (!seek_rows(checkpoint, place, block, stop)) return false;
  const StepGraph& graph = fit_.session.runner().graph();
  History history;
  read_history(checkpoint, fit_.options, graph.target_losses, history);
  if (!place.loss.set_state(checkpoint.get_doubles("fit/epoch_loss"), graph.target_losses.size())) {
    refuse_position(checkpoint,
                    "the losses of the epoch in the checkpoint are not those of these targets",
                    "Use another checkpoint: this file was not written by onnxgrad.");
  }
  place.epoch_first_step = place.step - epoch_steps;
  place.block_first_row = fit_.progress.block_first_row;
  place.clock.seconds_before = checkpoint.get_double("fit/seconds");
  place.clock.wait_before = checkpoint.get_double("fit/data_wait_s");
  fit_.best.take_weights(checkpoint, history.best_epoch.has_value());
  const std::optional<double> new_rate = changed_rate(checkpoint);
  fit_.rates.set_first_rate(new_rate.value_or(checkpoint.get_double("fit/first_rate")));
  fit_.rates.prepare(fit_.feed, block != nullptr, stop);
  if (fit_.options.schedule) fit_.rates.resume(checkpoint.get_doubles("fit/schedule_state"));
  fit_.best.take_numbers(checkpoint);
  restore_session(fit_.session, checkpoint);
  if (new_rate) take_rate(checkpoint, *new_rate);
  if (!has_part_) fit_.session.runner().state().keep_own_part();
  History& own = fit_.history;
  own.epochs.insert(own.epochs.end(), history.epochs.begin(), history.epochs.end());
  own.epoch_stride = history.epoch_stride;
  own.step_losses.insert(own.step_losses.end(), history.step_losses.begin(),
                         history.step_losses.end());
  own.best_epoch = history.best_epoch;
  own.skipped_steps = skipped;
  fit_.progress = std::move(place);
  saved_at_ = here();
  return true;
}

// The learning rate given now, if it is neither that of the first run nor, without a schedule, the
// one that a callback had set there.
std::optional<double> FitCheckpoints::changed_rate(const Checkpoint& checkpoint) const {
  const double given = fit_.rates.first_rate();
  if (given == checkpoint.get_double("fit/first_rate")) return std::nullopt;
  const bool is_latest = given == checkpoint.get_double("session/learning_rate");
  if (is_latest && !fit_.options.schedule) return std::nullopt;
  return given;
}

// Continues with another rate, from which a schedule then starts.
void FitCheckpoints::take_rate(const Checkpoint& checkpoint, double rate) {
  fit_.session.runner().set_learning_rate(rate);
  fit_.history.notes.push_back(
      fmt::format("the learning rate is {:g} from the checkpoint on, as given now; the first run "
                  "had {:g}",
                  rate, checkpoint.get_double("fit/first_rate")));
}

std::array<std::int64_t, 3> FitCheckpoints::here() const {
  return {fit_.session.runner().steps(), fit_.progress.epoch, fit_.progress.row};
}

Checkpoint FitCheckpoints::make(bool of_worker) const {
  const FitProgress& now = fit_.progress;
  const bool is_within = now.row > 0;  // an epoch
  Checkpoint checkpoint = checkpoint_of(fit_.session, of_worker);
  for (const auto& [name, value] : fixed_options()) {
    checkpoint.metadata[fmt::format("{}{}", kOption, name)] = value;
  }
  checkpoint.set_int("fit/epoch", now.epoch);
  checkpoint.set_int("fit/row", now.row);
  checkpoint.set_int("fit/step", now.step);
  checkpoint.set_int("fit/epoch_steps", is_within ? now.step - now.epoch_first_step : 0);
  checkpoint.set_int("fit/skipped_steps", fit_.history.skipped_steps);
  set_row(checkpoint, "fit/epoch_loss", is_within ? now.loss.state() : EpochLoss().state());
  checkpoint.set_double("fit/seconds", is_within ? now.clock.seconds() : 0);
  checkpoint.set_double("fit/data_wait_s", is_within ? now.clock.wait(fit_.feed.waited_s()) : 0);
  checkpoint.set_double("fit/first_rate", fit_.rates.first_rate());
  if (fit_.options.schedule) set_row(checkpoint, "fit/schedule_state", fit_.rates.state());
  fit_.best.add_to(checkpoint);
  write_history(checkpoint, fit_.options, fit_.history, now.step);
  checkpoint.metadata["epoch"] = std::to_string(now.epoch);
  checkpoint.metadata["data_hash"] = data_hash_;
  return checkpoint;
}

void FitCheckpoints::end_epoch(const EpochLog& log) {
  if (!writes_) return;
  const CheckpointOptions& wanted = *fit_.options.checkpoint;
  const bool is_early = saved_time_ && seconds_since(*saved_time_) < wanted.min_seconds;
  if (fit_.session.workers().any(is_first_worker() && is_early)) return;
  if (wanted.every_steps == 0 || (log.is_best && wanted.keep_best)) save();
}

void FitCheckpoints::save() {
  const bool is_best = fit_.best.is_unsaved() && fit_.progress.row == 0;
  StateStore& state = fit_.session.runner().state();
  saved_time_ = Clock::now();
  data_hash_ = fit_.feed.checksum(fit_.progress.row);  // over the rows of all workers
  CheckpointLog log;
  log.problem = write_parts();
  // A checkpoint has the states that one worker would have; then each worker continues with its
  // own.
  std::vector<Tensor> own;
  if (fit_.session.has_own_state()) {
    own = state.make_copies();
    state.save_to(own);
  }
  state.unify();
  const bool is_finite = !goes_back(fit_.options.on_non_finite) || state.is_finite();
  if (is_first_worker() && log.problem.empty()) log = write(is_finite, is_best);
  if (!own.empty()) state.restore_from(own);
  dist::Communicator& all = fit_.session.workers().communicator();
  log.path = all.broadcast_text(log.path, 0);  // the same history everywhere
  log.problem = all.broadcast_text(log.problem, 0);
  if (log.problem.empty()) {
    saved_at_ = here();
    if (is_best) fit_.best.mark_saved();
  }
  fit_.history.checkpoint_problem = log.problem;
  if (is_first_worker() && fit_.options.on_checkpoint) fit_.options.on_checkpoint(log);
}

// Whether a tensor of this name belongs to a worker's part.
bool FitCheckpoints::is_own(const std::string& name) const {
  const StepRunner& step = fit_.session.runner();
  const auto begins = [&](std::string_view section) {
    return name.starts_with(fmt::format("{}{}", kReservedPrefix, section));
  };
  if (step.state().outer() != nullptr)
    return begins("state/") || begins("best/") || begins("outer/") || state_of(name).has_value();
  if (begins("state/") || begins("best/")) return true;
  const auto state = state_of(name);
  return state && std::ranges::any_of(step.graph().statistics, [&](const WeightInfo& statistic) {
           return *state == statistic.name || *state == average_of(statistic.name);
         });
}

// The states that differ between workers, before the checkpoint that they belong to. Returns
// why that failed, the same on all workers.
std::string FitCheckpoints::write_parts() {
  if (!fit_.session.has_own_state()) return "";
  const Workers& workers = fit_.session.workers();
  std::string problem;
  try {
    Checkpoint part = make(/*of_worker=*/true);
    std::erase_if(part.tensors, [&](const NamedTensor& entry) { return !is_own(entry.name); });
    const std::string name = checkpoint_name(fit_.session.runner().steps());
    write_checkpoint(part_path(fmt::format("{}/{}", fit_.options.checkpoint->folder, name),
                               workers.rank(), workers.size()),
                     part, base::Existing::kReplaceOwn);
  } catch (const CheckpointError& error) {
    problem = error.what();
  }
  for (const std::string& text : workers.communicator().all_gather_texts(problem)) {
    if (!text.empty()) return text;
  }
  return "";
}

CheckpointLog FitCheckpoints::write(bool is_finite, bool is_best) {
  try {
    if (!is_finite) {
      throw CheckpointError({.what = "the weights are not finite",
                             .where = {.file = folder_->path()},
                             .hint = "Resume from the previous checkpoint, with a smaller rate."});
    }
    Checkpoint checkpoint = make();
    if (fit_.session.has_own_state()) {
      set_workers(checkpoint, fit_.session.workers().size());
    }
    return {.path = folder_->save(checkpoint, fit_.session.runner().steps(), is_best)};
  } catch (const CheckpointError& error) {
    return {.path = folder_->path(), .problem = error.what()};
  }
}

void FitCheckpoints::end_fit() {
  if (writes_ && !fit_.progress.is_inside_step && saved_at_ != here()) save();
}

}  // namespace onnxgrad::train

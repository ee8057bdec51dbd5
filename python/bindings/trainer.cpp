// Trainer: fit() runs without the interpreter lock; callbacks take it.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "interrupt.h"
#include "onnxgrad/tables.h"
#include "onnxgrad/trainer.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

/// Calls a Python function of one argument from a thread that does not hold the lock.
template <class Log>
auto locked(nb::handle function) {
  return [function](const Log& log) {
    const nb::gil_scoped_acquire lock;
    const bool stop = nb::cast<bool>(function(log));
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return stop;
  };
}

// `data` and `validation` are either rows or a source of them.
void fit(Trainer& trainer, const Dataset* data, DataSource* source, FitOptions options,
         const Dataset* validation, DataSource* validation_source, const nb::object& on_epoch_end,
         const nb::object& on_step_end, const nb::object& on_checkpoint,
         const nb::object& on_row_weights, const std::vector<int>& signals) {
  options.validation = validation;
  options.validation_source = validation_source;
  if (!on_epoch_end.is_none()) options.on_epoch_end = locked<EpochLog>(on_epoch_end);
  if (!on_step_end.is_none()) options.on_step_end = locked<StepLog>(on_step_end);
  if (!on_checkpoint.is_none()) {
    options.on_checkpoint = [function = nb::handle(on_checkpoint)](const CheckpointLog& log) {
      const nb::gil_scoped_acquire lock;
      function(log.path, log.problem);
    };
  }
  if (!on_row_weights.is_none()) {
    options.on_row_weights = [function = nb::handle(on_row_weights)](std::int64_t epoch) {
      const nb::gil_scoped_acquire lock;
      return nb::cast<std::vector<double>>(function(epoch));
    };
  }
  std::exception_ptr raised;  // by a handler of Python, such as that of Ctrl-C
  options.on_interrupt = [&raised] {
    const nb::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return false;  // the handler has returned: training continues
    raised = std::make_exception_ptr(nb::python_error());
    return true;
  };
  {
    std::optional<InterruptGuard> guard;
    if (!signals.empty()) guard.emplace(trainer, signals);
    const nb::gil_scoped_release unlocked;
    data != nullptr ? trainer.fit(*data, options) : trainer.fit(*source, options);
  }
  if (raised) std::rethrow_exception(raised);
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void bind_logs(nb::module_& module) {
  nb::class_<EpochLog>(module, "EpochLog")
      .def_ro("epoch", &EpochLog::epoch)
      .def_ro("train_loss", &EpochLog::train_loss)
      .def_ro("val_loss", &EpochLog::val_loss)
      .def_ro("val_accuracy", &EpochLog::val_accuracy)
      .def_ro("val_metrics", &EpochLog::val_metrics)
      .def_ro("target_losses", &EpochLog::target_losses)
      .def_ro("grad_norm", &EpochLog::grad_norm)
      .def_ro("noise_scale", &EpochLog::noise_scale)
      .def_ro("learning_rate", &EpochLog::learning_rate)
      .def_ro("seconds", &EpochLog::seconds)
      .def_ro("rows_per_s", &EpochLog::rows_per_s)
      .def_ro("steps", &EpochLog::steps)
      .def_ro("rows", &EpochLog::rows)
      .def_ro("data_wait_s", &EpochLog::data_wait_s)
      .def_ro("is_best", &EpochLog::is_best)
      .def_ro("network_wait_s", &EpochLog::network_wait_s)
      .def_ro("slowest_rank", &EpochLog::slowest_rank)
      .def_ro("slowest_host", &EpochLog::slowest_host)
      .def_ro("slowest_lag_s", &EpochLog::slowest_lag_s);
  nb::class_<StepLog>(module, "StepLog")
      .def_ro("epoch", &StepLog::epoch)
      .def_ro("step", &StepLog::step)
      .def_ro("total_steps", &StepLog::total_steps)
      .def_ro("loss", &StepLog::loss)
      .def_ro("grad_norm", &StepLog::grad_norm);
  nb::class_<History>(module, "History")
      .def_ro("epochs", &History::epochs)
      .def_prop_ro("num_epochs", [](const History& history) { return history.epochs.size(); })
      .def_ro("stop_reason", &History::stop_reason)
      .def_ro("notes", &History::notes)
      .def_ro("best_epoch", &History::best_epoch)
      .def_ro("kept_epoch", &History::kept_epoch)
      .def_ro("skipped_steps", &History::skipped_steps)
      .def_ro("checkpoint_problem", &History::checkpoint_problem);
}

void bind_options(nb::module_& module) {
  nb::class_<EarlyStopping>(module, "EarlyStopping")
      .def(
          "__init__",
          [](EarlyStopping* place, std::int64_t patience, double min_delta, bool restore_best,
             const std::string& monitor, bool maximize) {
            new (place) EarlyStopping{.patience = patience,
                                      .min_delta = min_delta,
                                      .restore_best = restore_best,
                                      .monitor = monitor,
                                      .maximize = maximize};
          },
          "patience"_a, "min_delta"_a, "restore_best"_a, "monitor"_a, "maximize"_a)
      .def_ro("monitor", &EarlyStopping::monitor);
  nb::class_<CheckpointOptions>(module, "CheckpointOptions")
      .def(
          "__init__",
          [](CheckpointOptions* place, const std::string& folder, std::int64_t every_steps,
             std::int64_t keep, bool keep_best, double min_seconds) {
            new (place) CheckpointOptions{.folder = folder,
                                          .every_steps = every_steps,
                                          .keep = keep,
                                          .keep_best = keep_best,
                                          .min_seconds = min_seconds};
          },
          "folder"_a, "every_steps"_a, "keep"_a, "keep_best"_a, "min_seconds"_a = 0.0);
  nb::class_<ClassWeights>(module, "ClassWeights")
      .def(
          "__init__",
          [](ClassWeights* place, const std::optional<Tensor>& labels,
             const std::vector<double>& weights, bool balanced) {
            new (place) ClassWeights{
                .labels = labels.value_or(Tensor{}), .weights = weights, .balanced = balanced};
          },
          "labels"_a.none(), "weights"_a, "balanced"_a);
  // Fields that are rows of the table of options are set by make_fit_options.
  nb::class_<FitOptions>(module, "FitOptions")
      .def_rw("batch_size", &FitOptions::batch_size)
      .def_ro_static("as_they_come", &FitOptions::kAsTheyCome)
      .def_rw("seed", &FitOptions::seed)
      .def_rw("epochs", &FitOptions::epochs)
      .def_rw("row_weights", &FitOptions::row_weights)
      .def_rw("augment", &FitOptions::augment)
      .def_rw("validation_fraction", &FitOptions::validation_fraction)
      .def_rw("metrics", &FitOptions::metrics)
      .def_rw("class_weights", &FitOptions::class_weights, nb::arg().none())
      .def_rw("discard", &FitOptions::discard)
      .def_rw("early_stopping", &FitOptions::early_stopping, nb::arg().none())
      .def_rw("schedule", &FitOptions::schedule, nb::arg().none())
      .def_rw("every_n_steps", &FitOptions::every_n_steps)
      .def_rw("checkpoint", &FitOptions::checkpoint, nb::arg().none())
      .def_rw("resume", &FitOptions::resume)
      .def_rw("resume_if_any", &FitOptions::resume_if_any);
  module.def("fit_option_table", &fit_option_table);
  module.def("make_fit_options", &make_fit_options, "type"_a, "options"_a);
}

void bind_augmentations(nb::module_& module) {
  const nb::class_<RandomFlip> flip(module, "RandomFlip");
  const nb::class_<RandomCrop> crop(module, "RandomCrop");
  const nb::class_<GaussianNoise> noise(module, "GaussianNoise");
  const nb::class_<Mixup> mixup(module, "Mixup");
  const nb::class_<CutMix> cutmix(module, "CutMix");
  module.def("augmentation_table", &augmentation_table);
  module.def("make_augmentation", &make_augmentation, "type"_a, "options"_a);
  module.def(
      "augmented_rows",
      [](const std::vector<Tensor>& inputs, const std::optional<Tensor>& target,
         const std::vector<Augmentation>& augmentations, std::uint64_t seed, std::int64_t epoch) {
        return augmented_rows(inputs, target.value_or(Tensor{}), augmentations, seed, epoch);
      },
      "inputs"_a, "target"_a.none(), "augmentations"_a, "seed"_a, "epoch"_a, Unlocked());
}

}  // namespace

void bind_trainer(nb::module_& module) {
  bind_augmentations(module);
  bind_logs(module);
  bind_options(module);
  module.def("window_starts", &window_starts, "rows"_a, "batch_size"_a, "seed"_a, "epoch"_a);
  nb::class_<Trainer>(module, "Trainer")
      .def(nb::init<std::shared_ptr<TrainingSession>>(), "session"_a)
      .def("choose_loss", nb::overload_cast<const Tensor&>(&Trainer::choose_loss), "target"_a,
           Unlocked())
      .def("choose_loss_by_rows", nb::overload_cast<const Dataset&>(&Trainer::choose_loss),
           "data"_a, Unlocked())
      .def("choose_loss_by_chunk", nb::overload_cast<DataSource&>(&Trainer::choose_loss),
           "source"_a, nb::keep_alive<0, 2>(), Unlocked())
      .def("fit", &fit, "data"_a.none(), "source"_a.none(), "options"_a, "validation"_a.none(),
           "validation_source"_a.none(), "on_epoch_end"_a.none(), "on_step_end"_a.none(),
           "on_checkpoint"_a.none(), "on_row_weights"_a.none(), "signals"_a)
      .def("evaluate",
           nb::overload_cast<const Dataset&, std::int64_t, const std::vector<Metric>&, bool>(
               &Trainer::evaluate),
           "data"_a, "batch_size"_a, "metrics"_a, "allow_nan"_a, Unlocked())
      .def("evaluate",
           nb::overload_cast<DataSource&, std::int64_t, const std::vector<Metric>&, bool>(
               &Trainer::evaluate),
           "data"_a, "batch_size"_a, "metrics"_a, "allow_nan"_a, Unlocked())
      .def("stop", &Trainer::stop)
      .def("reset", &Trainer::reset, Unlocked())
      .def_prop_ro("history", &Trainer::history)
      .def("trained_model", &Trainer::trained_model, "kind"_a = WeightKind::kEvaluated, Unlocked())
      .def("save", &Trainer::save, "path"_a, "kind"_a = WeightKind::kEvaluated, Unlocked());
}

}  // namespace onnxgrad::python

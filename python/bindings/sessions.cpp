// InferenceSession and TrainingSession.
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "device_tensor_caster.h"
#include "onnxgrad/training_session.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

using Names = std::vector<std::string>;

void bind_inference(nb::module_& module) {
  nb::class_<EngineOptions>(module, "EngineOptions")
      .def(
          "__init__",
          [](EngineOptions* place, const std::string& device, int threads, std::uint64_t seed,
             std::int64_t memory_limit_bytes, bool fuse, const std::string& math,
             bool deterministic, std::function<void(const std::string&)> warn) {
            new (place) EngineOptions{.device = device,
                                      .threads = threads,
                                      .seed = seed,
                                      .memory_limit_bytes = memory_limit_bytes,
                                      .fuse = fuse,
                                      .math = math,
                                      .deterministic = deterministic,
                                      .warn = std::move(warn)};
          },
          "device"_a = EngineOptions{}.device, "threads"_a = EngineOptions{}.threads,
          "seed"_a = EngineOptions{}.seed,
          "memory_limit_bytes"_a = EngineOptions{}.memory_limit_bytes,
          "fuse"_a = EngineOptions{}.fuse, "math"_a = EngineOptions{}.math,
          "deterministic"_a = EngineOptions{}.deterministic, "warn"_a = nb::none());
  nb::class_<InferenceSession>(module, "InferenceSession")
      .def(nb::init<const Model&, const EngineOptions&>(), "model"_a, "engine"_a, Unlocked())
      .def_prop_ro("inputs", &InferenceSession::inputs)
      .def_prop_ro("overridable_inputs", &InferenceSession::overridable_inputs)
      .def_prop_ro("outputs", &InferenceSession::outputs)
      .def(
          "run",
          [](InferenceSession& session, const Names& output_names, const NamedTensors& feeds) {
            return session.run(output_names, feeds);
          },
          "output_names"_a, "feeds"_a, Unlocked())
      .def(
          "run_on_device",
          [](InferenceSession& session, const Names& output_names,
             const NamedDeviceTensors& feeds) {
            return session.run_on_device(output_names, feeds);
          },
          "output_names"_a, "feeds"_a, Unlocked())
      .def("plan_summary", &InferenceSession::plan_summary)
      .def("set_profiling", &InferenceSession::set_profiling, "on"_a)
      .def("profile", &InferenceSession::profile, Unlocked())
      .def("memory", &InferenceSession::memory);
  module.def(
      "pack_values", [](const std::vector<Tensor>& elements) { return pack_values(elements); },
      "elements"_a);
  module.def("pack_nothing", &pack_nothing);
  module.def("unpack_values", &unpack_values, "packed"_a);
}

void bind_measures(nb::module_& module) {
  nb::class_<KernelTime>(module, "KernelTime")
      .def_ro("op_type", &KernelTime::op_type)
      .def_ro("node", &KernelTime::node)
      .def_ro("kernel", &KernelTime::kernel)
      .def_ro("calls", &KernelTime::calls)
      .def_ro("total_s", &KernelTime::total_s)
      .def_ro("flops", &KernelTime::flops)
      .def_ro("threads", &KernelTime::threads);
  nb::class_<Profile>(module, "Profile")
      .def_ro("kernels", &Profile::kernels)
      .def_ro("trace_json", &Profile::trace_json)
      .def("to_text", &Profile::to_text);
  nb::class_<MemoryReport>(module, "MemoryReport")
      .def_ro("weights", &MemoryReport::weights)
      .def_ro("optimizer_state", &MemoryReport::optimizer_state)
      .def_ro("activations", &MemoryReport::activations)
      .def_ro("scratch", &MemoryReport::scratch)
      .def_ro("constants", &MemoryReport::constants)
      .def_ro("dynamic", &MemoryReport::dynamic)
      .def_ro("evaluation", &MemoryReport::evaluation)
      .def_ro("snapshots", &MemoryReport::snapshots)
      .def_ro("file", &MemoryReport::file)
      .def_ro("host", &MemoryReport::host)
      .def_ro("device", &MemoryReport::device)
      .def_ro("recomputed_values", &MemoryReport::recomputed_values)
      .def_ro("recomputed_bytes", &MemoryReport::recomputed_bytes)
      .def_ro("recomputed_flops", &MemoryReport::recomputed_flops);
}

std::tuple<double, std::optional<Tensor>, std::vector<Tensor>> as_tuple(StepResult result) {
  std::optional<Tensor> row_losses;
  if (result.row_losses.is_defined()) row_losses = std::move(result.row_losses);
  return {result.loss, std::move(row_losses), std::move(result.outputs)};
}

void bind_training(nb::module_& module) {
  nb::enum_<WeightKind>(module, "WeightKind")
      .value("evaluated", WeightKind::kEvaluated)
      .value("trained", WeightKind::kTrained)
      .value("average", WeightKind::kAverage);
  nb::class_<EvaluationResult>(module, "EvaluationResult")
      .def_ro("loss", &EvaluationResult::loss)
      .def_ro("accuracy", &EvaluationResult::accuracy)
      .def_ro("rows", &EvaluationResult::rows)
      .def_ro("metrics", &EvaluationResult::metrics);
  nb::class_<TrainingSession>(module, "TrainingSession")
      .def(
          "__init__",
          [](TrainingSession* place, const Model& model, const Loss& loss,
             const std::optional<Optimizer>& optimizer, Names trainable, Names frozen, bool untie,
             Names outputs, const UpdateOptions& update, Names stop_gradient,
             TrainingMode training_mode, BatchOpening open_batch, const MixedPrecision& precision,
             bool skip_non_finite, bool evaluation_only, const EngineOptions& engine,
             const std::optional<WorkerOptions>& workers) {
            const TrainingOptions options{.trainable = std::move(trainable),
                                          .frozen = std::move(frozen),
                                          .untie = untie,
                                          .outputs = std::move(outputs),
                                          .update = update,
                                          .stop_gradient = std::move(stop_gradient),
                                          .training_mode = training_mode,
                                          .open_batch = open_batch,
                                          .precision = precision,
                                          .skip_non_finite = skip_non_finite,
                                          .evaluation_only = evaluation_only,
                                          .workers = workers.value_or(WorkerOptions{}),
                                          .engine = engine};
            if (optimizer) {
              new (place) TrainingSession(model, loss, *optimizer, options);
            } else {
              new (place) TrainingSession(model, options);
            }
          },
          "model"_a, "loss"_a, "optimizer"_a.none(), "trainable"_a, "frozen"_a, "untie"_a,
          "outputs"_a, "update"_a, "stop_gradient"_a, "training_mode"_a, "open_batch"_a,
          "precision"_a, "skip_non_finite"_a, "evaluation_only"_a, "engine"_a, "workers"_a.none(),
          Unlocked())
      .def(
          "step",
          [](TrainingSession& session, const NamedTensors& feeds) {
            return as_tuple(session.step(feeds));
          },
          "feeds"_a, Unlocked())
      .def(
          "step_with_device_feeds",
          [](TrainingSession& session, const NamedDeviceTensors& feeds) {
            return as_tuple(session.step(feeds));
          },
          "feeds"_a, Unlocked())
      .def("evaluate", nb::overload_cast<const NamedTensors&>(&TrainingSession::evaluate),
           "feeds"_a, Unlocked())
      .def("evaluate_with_device_feeds",
           nb::overload_cast<const NamedDeviceTensors&>(&TrainingSession::evaluate), "feeds"_a,
           Unlocked())
      .def(
          "predict_on_device",
          [](TrainingSession& session, const NamedDeviceTensors& feeds, const Names& output_names) {
            return session.predict_on_device(feeds, output_names);
          },
          "feeds"_a, "output_names"_a, Unlocked())
      .def(
          "predict",
          [](TrainingSession& session, const NamedTensors& feeds, const Names& output_names) {
            return session.predict(feeds, output_names);
          },
          "feeds"_a, "output_names"_a, Unlocked())
      .def_prop_ro("inputs", &TrainingSession::inputs)
      .def_prop_ro("outputs", &TrainingSession::outputs)
      .def_prop_ro("loss", &TrainingSession::loss)
      .def_prop_ro("trained_weights", &TrainingSession::trained_weights)
      .def_prop_ro("weights_line", &TrainingSession::weights_line)
      .def_prop_ro("batch_line", &TrainingSession::batch_line)
      .def_prop_ro("fixed_batch", &TrainingSession::fixed_batch)
      .def(
          "pattern_warnings",
          [](const TrainingSession& session, const Names& patterns) {
            return session.pattern_warnings(patterns);
          },
          "patterns"_a)
      .def(
          "freeze",
          [](TrainingSession& session, const Names& patterns) { session.freeze(patterns); },
          "patterns"_a, Unlocked())
      .def(
          "unfreeze",
          [](TrainingSession& session, const Names& patterns) { session.unfreeze(patterns); },
          "patterns"_a, Unlocked())
      .def("use_sample_weights", &TrainingSession::use_sample_weights, "name"_a, "of_places"_a,
           Unlocked())
      .def("encode_target", &TrainingSession::encode_target, "labels"_a, "output"_a, Unlocked())
      .def_prop_rw("learning_rate", &TrainingSession::learning_rate,
                   &TrainingSession::set_learning_rate)
      .def_prop_ro("steps", &TrainingSession::steps)
      .def("weights", &TrainingSession::weights, Unlocked())
      .def("state", &TrainingSession::state, Unlocked())
      .def("load_state", &TrainingSession::load_state, "state"_a, Unlocked())
      .def("save", &TrainingSession::save, "path"_a, Unlocked())
      .def("load", &TrainingSession::load, "path"_a, Unlocked())
      .def("reset", &TrainingSession::reset, Unlocked())
      .def("trained_model", &TrainingSession::trained_model, "kind"_a = WeightKind::kEvaluated,
           Unlocked())
      .def_prop_ro("has_average", &TrainingSession::has_average)
      .def_prop_rw("uses_average", &TrainingSession::uses_average, &TrainingSession::use_average)
      .def(
          "with_training_info",
          [](const TrainingSession& session, std::int64_t target_opset, bool inline_functions) {
            return session.with_training_info(
                {.target_opset = target_opset, .inline_functions = inline_functions});
          },
          "target_opset"_a, "inline_functions"_a, Unlocked())
      .def("plan_summary", &TrainingSession::plan_summary)
      .def("set_profiling", &TrainingSession::set_profiling, "on"_a)
      .def("profile", &TrainingSession::profile, Unlocked())
      .def("memory", &TrainingSession::memory)
      .def_prop_ro("num_compiled", &TrainingSession::num_compiled)
      .def_prop_ro("num_cached", &TrainingSession::num_cached);
}

}  // namespace

void bind_sessions(nb::module_& module) {
  bind_inference(module);
  bind_measures(module);
  bind_training(module);
}

}  // namespace onnxgrad::python

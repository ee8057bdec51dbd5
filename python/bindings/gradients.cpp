// Gradient graphs and training steps as models.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/gradient.h"
#include "onnxgrad/model_forms.h"
#include "onnxgrad/training_info.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {

namespace {

using Names = std::vector<std::string>;
using Derivative = Model (*)(const Model&, const DerivativeOptions&);

template <Derivative kDerivative>
void bind_derivative(nb::module_& module, const char* name) {
  module.def(
      name,
      [](const Model& model, Names wrt, Names outputs, bool keep_outputs, Names stop_gradient,
         std::int64_t target_opset, bool inline_functions) {
        Names zeros;
        Model result = kDerivative(
            model, {.wrt = std::move(wrt),
                    .outputs = std::move(outputs),
                    .keep_outputs = keep_outputs,
                    .stop_gradient = std::move(stop_gradient),
                    .write = {.target_opset = target_opset, .inline_functions = inline_functions},
                    .zeros = &zeros});
        return std::pair(std::move(result), std::move(zeros));
      },
      "model"_a, "wrt"_a, "outputs"_a, "keep_outputs"_a, "stop_gradient"_a, "target_opset"_a,
      "inline_functions"_a, Unlocked());
}

}  // namespace

void bind_gradients(nb::module_& module) {
  nb::enum_<TrainingMode>(module, "TrainingMode")
      .value("auto", TrainingMode::kAuto)
      .value("on", TrainingMode::kOn)
      .value("off", TrainingMode::kOff);
  nb::enum_<BatchOpening>(module, "BatchOpening")
      .value("auto", BatchOpening::kAuto)
      .value("on", BatchOpening::kOn)
      .value("off", BatchOpening::kOff);
  module.def("open_batch", &open_batch, "model"_a, Unlocked());
  module.def("to_inference", &to_inference, "model"_a, Unlocked());
  nb::enum_<Precision>(module, "Precision")
      .value("float32", Precision::kFloat32)
      .value("bf16", Precision::kBfloat16)
      .value("fp16", Precision::kFloat16);
  nb::class_<MixedPrecision>(module, "MixedPrecision")
      .def(
          "__init__",
          [](MixedPrecision* place, Precision type, Names float32_nodes, double loss_scale,
             std::int64_t growth_interval) {
            new (place) MixedPrecision{.type = type,
                                       .float32_nodes = std::move(float32_nodes),
                                       .loss_scale = loss_scale,
                                       .growth_interval = growth_interval};
          },
          "type"_a, "float32_nodes"_a, "loss_scale"_a, "growth_interval"_a);
  module.def(
      "gradient",
      [](const Model& model, Names wrt, Names outputs, bool fill_grad, bool keep_outputs,
         Names stop_gradient, std::int64_t target_opset, bool inline_functions) {
        Names zeros;
        Model result = gradient(
            model, {.wrt = std::move(wrt),
                    .outputs = std::move(outputs),
                    .fill_grad = fill_grad,
                    .keep_outputs = keep_outputs,
                    .stop_gradient = std::move(stop_gradient),
                    .write = {.target_opset = target_opset, .inline_functions = inline_functions},
                    .zeros = &zeros});
        return std::pair(std::move(result), std::move(zeros));
      },
      "model"_a, "wrt"_a, "outputs"_a, "fill_grad"_a, "keep_outputs"_a, "stop_gradient"_a,
      "target_opset"_a, "inline_functions"_a, Unlocked());
  bind_derivative<vjp>(module, "vjp");
  bind_derivative<jvp>(module, "jvp");
  bind_derivative<hvp>(module, "hvp");
  bind_derivative<hessian>(module, "hessian");
  module.def("has_training_info", &has_training_info, "model"_a);
  module.def(
      "add_training_info",
      [](const Model& model, const Loss& loss, const Optimizer& optimizer, Names trainable,
         Names frozen, bool untie, const UpdateOptions& update, Names stop_gradient,
         TrainingMode training_mode, const MixedPrecision& precision,
         std::optional<Schedule> schedule, std::int64_t updates, std::int64_t epochs,
         std::int64_t target_opset, bool inline_functions) {
        return add_training_info(
            model, loss, optimizer,
            {.trainable = std::move(trainable),
             .frozen = std::move(frozen),
             .untie = untie,
             .update = update,
             .stop_gradient = std::move(stop_gradient),
             .training_mode = training_mode,
             .precision = precision,
             .schedule = std::move(schedule),
             .updates = updates,
             .epochs = epochs},
            {.target_opset = target_opset, .inline_functions = inline_functions});
      },
      "model"_a, "loss"_a, "optimizer"_a, "trainable"_a, "frozen"_a, "untie"_a, "update"_a,
      "stop_gradient"_a, "training_mode"_a, "precision"_a, "schedule"_a, "updates"_a, "epochs"_a,
      "target_opset"_a, "inline_functions"_a, Unlocked());
  module.def(
      "training_step",
      [](const Model& model, const Loss& loss, const Optimizer& optimizer, Names trainable,
         Names frozen, bool untie, const UpdateOptions& update, bool gradients, Names stop_gradient,
         TrainingMode training_mode, const MixedPrecision& precision,
         std::optional<Schedule> schedule, std::int64_t updates, std::int64_t epochs,
         std::int64_t target_opset, bool inline_functions) {
        return training_step(
            model, loss, optimizer,
            {.trainable = std::move(trainable),
             .frozen = std::move(frozen),
             .untie = untie,
             .update = update,
             .gradients = gradients,
             .stop_gradient = std::move(stop_gradient),
             .training_mode = training_mode,
             .precision = precision,
             .schedule = std::move(schedule),
             .updates = updates,
             .epochs = epochs,
             .write = {.target_opset = target_opset, .inline_functions = inline_functions}});
      },
      "model"_a, "loss"_a, "optimizer"_a, "trainable"_a, "frozen"_a, "untie"_a, "update"_a,
      "gradients"_a, "stop_gradient"_a, "training_mode"_a, "precision"_a, "schedule"_a, "updates"_a,
      "epochs"_a, "target_opset"_a, "inline_functions"_a, Unlocked());
}

}  // namespace onnxgrad::python

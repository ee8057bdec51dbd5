// ForwardBackward and its contexts.
#include "onnxgrad/forward_backward.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "device_tensor_caster.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

using Names = std::vector<std::string>;
using Context = ForwardBackward::Context;

std::pair<NamedTensors, NamedTensors> backward(ForwardBackward& runner,
                                               const std::vector<std::optional<Tensor>>& gradients,
                                               const std::optional<Context>& context) {
  std::vector<Tensor> given;
  for (const auto& gradient : gradients) given.push_back(gradient.value_or(Tensor()));
  auto result = context ? runner.backward(given, *context) : runner.backward(given);
  return {std::move(result.weights), std::move(result.inputs)};
}

using DeviceGradients = std::pair<std::vector<std::pair<std::string, DeviceTensor>>,
                                  std::vector<std::pair<std::string, DeviceTensor>>>;

// A gradient is an array in any memory, or None.
DeviceGradients backward_on_device(ForwardBackward& runner,
                                   const std::vector<std::optional<nb::object>>& gradients,
                                   const std::optional<Context>& context) {
  std::vector<DeviceTensor> given;
  for (const auto& gradient : gradients) {
    if (!gradient) {
      given.emplace_back();
    } else if (nb::isinstance<DeviceTensor>(*gradient)) {
      given.push_back(nb::cast<DeviceTensor>(*gradient));
    } else {
      given.emplace_back(tensor_from_python(*gradient));
    }
  }
  const InterruptibleCall unlocked;
  auto result =
      context ? runner.backward_on_device(given, *context) : runner.backward_on_device(given);
  DeviceGradients pairs;
  for (auto& [name, tensor] : result.weights) pairs.first.emplace_back(name, tensor);
  for (auto& [name, tensor] : result.inputs) pairs.second.emplace_back(name, tensor);
  return pairs;
}

using GraphOf = Model (ForwardBackward::*)(const WriteOptions&) const;

template <GraphOf kGraph>
Model write_graph(const ForwardBackward& runner, std::int64_t target_opset, bool inline_functions) {
  return (runner.*kGraph)({.target_opset = target_opset, .inline_functions = inline_functions});
}

}  // namespace

void bind_forward_backward(nb::module_& module) {
  nb::class_<Context>(module, "ForwardContext")
      .def_prop_ro("saved_bytes", &Context::saved_bytes)
      .def("saved", &Context::saved)
      .def(
          "__eq__",
          [](const Context& self, nb::handle other) {
            return nb::isinstance<Context>(other) && self == nb::cast<const Context&>(other);
          },
          "other"_a)
      .def("__hash__",
           [](const Context& context) { return std::hash<const void*>()(context.data().get()); });
  nb::class_<ForwardBackward>(module, "ForwardBackward")
      .def(
          "__init__",
          [](ForwardBackward* place, const Model& model, Names weights, Names frozen, bool untie,
             Names inputs, bool input_gradients, Names stop_gradient, TrainingMode training_mode,
             const MixedPrecision& precision, const EngineOptions& engine) {
            new (place) ForwardBackward(model, {.weights = std::move(weights),
                                                .frozen = std::move(frozen),
                                                .untie = untie,
                                                .inputs = std::move(inputs),
                                                .input_gradients = input_gradients,
                                                .stop_gradient = std::move(stop_gradient),
                                                .training_mode = training_mode,
                                                .precision = precision,
                                                .engine = engine});
          },
          "model"_a, "weights"_a, "frozen"_a, "untie"_a, "inputs"_a, "input_gradients"_a,
          "stop_gradient"_a, "training_mode"_a, "precision"_a, "engine"_a, Unlocked())
      .def(
          "forward",
          [](ForwardBackward& runner, const NamedTensors& inputs, bool training) {
            auto result = runner.forward(inputs, training);
            return std::pair(std::move(result.outputs), std::move(result.context));
          },
          "inputs"_a, "training"_a, Unlocked())
      .def("backward", &backward, "output_gradients"_a, "context"_a.none(), Unlocked())
      .def(
          "forward_on_device",
          [](ForwardBackward& runner, const NamedDeviceTensors& inputs, bool training) {
            auto result = runner.forward_on_device(inputs, training);
            return std::pair(std::move(result.outputs), std::move(result.context));
          },
          "inputs"_a, "training"_a, Unlocked())
      .def("backward_on_device", &backward_on_device, "output_gradients"_a, "context"_a.none())
      .def("discard", &ForwardBackward::discard, "context"_a, Unlocked())
      .def_prop_ro("contexts", &ForwardBackward::contexts)
      .def_prop_ro("inputs", &ForwardBackward::inputs)
      .def_prop_ro("outputs", &ForwardBackward::outputs)
      .def_prop_ro("weight_infos", &ForwardBackward::weight_infos)
      .def_prop_ro("gradient_inputs", &ForwardBackward::gradient_inputs)
      .def("weights", &ForwardBackward::weights)
      .def("set_weights", &ForwardBackward::set_weights, "weights"_a, Unlocked())
      .def("memory", &ForwardBackward::memory)
      .def("trained_model", &ForwardBackward::trained_model, Unlocked())
      .def("inference_graph", &write_graph<&ForwardBackward::inference_graph>, "target_opset"_a,
           "inline_functions"_a, Unlocked())
      .def("forward_graph", &write_graph<&ForwardBackward::forward_graph>, "target_opset"_a,
           "inline_functions"_a, Unlocked())
      .def("backward_graph", &write_graph<&ForwardBackward::backward_graph>, "target_opset"_a,
           "inline_functions"_a, Unlocked());
}

}  // namespace onnxgrad::python

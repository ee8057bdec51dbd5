#include "onnxgrad/forward_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "api/call_guard.h"
#include "api/model_impl.h"
#include "onnxgrad/version.h"
#include "ops/older_bodies.h"
#include "train/session/forward_backward.h"

namespace onnxgrad {

using api::CallGuard;

struct ForwardBackward::Impl {
  Impl(const Model& source_model, const ForwardBackwardOptions& options)
      : model(api::untied(source_model, options.untie)),
        runner(model.impl().pass_source(), options) {}

  Model model;
  train::SplitRunner runner;
  mutable api::Gate busy;
};

namespace {

Model write(const ir::Model& graph, const WriteOptions& options) {
  ir::Model model = onnx_io::to_target_opset(graph, options.target_opset, options.inline_functions,
                                             ops::older_body);
  model.producer_name = "onnxgrad";
  model.producer_version = version();
  return api::wrap(std::move(model));
}

}  // namespace

ForwardBackward::ForwardBackward(const Model& model, const ForwardBackwardOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
ForwardBackward::~ForwardBackward() = default;
ForwardBackward::ForwardBackward(ForwardBackward&&) noexcept = default;
ForwardBackward& ForwardBackward::operator=(ForwardBackward&&) noexcept = default;

namespace {

std::vector<Tensor> on_host(const std::vector<DeviceTensor>& tensors) {
  std::vector<Tensor> result;
  for (const DeviceTensor& tensor : tensors) result.push_back(tensor.to_host());
  return result;
}

NamedTensors on_host(const NamedDeviceTensors& tensors) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    result.push_back({.name = name, .tensor = tensor.to_host()});
  }
  return result;
}

Tensor ones_like(const Tensor& tensor) {
  const Tensor one = Tensor::scalar_of(tensor.dtype(), 1);
  if (tensor.num_elements() == 1) return one.reshaped(tensor.dims());
  Tensor ones = Tensor::empty(tensor.dtype(), tensor.dims());
  const auto size = static_cast<std::size_t>(one.size_bytes());
  for (std::byte* place = ones.mutable_raw(); place != ones.raw() + ones.size_bytes();
       place += size) {
    std::copy_n(one.raw(), size, place);
  }
  return ones;
}

ForwardBackward::Context last_context(const train::SplitRunner& runner) {
  if (!runner.contexts().empty()) return runner.contexts().back();
  throw Error(
      {.what = "no forward pass is open", .hint = "Call forward() in training mode first."});
}

ForwardBackward::Gradients backward_on_host(train::SplitRunner& runner,
                                            std::span<const DeviceTensor> output_gradients,
                                            const ForwardBackward::Context& context) {
  ForwardBackward::Gradients result;
  runner.backward(
      output_gradients, context, [&result](const ForwardBackward::DeviceGradients& gradients) {
        result = {.weights = on_host(gradients.weights), .inputs = on_host(gradients.inputs)};
      });
  return result;
}

std::vector<DeviceTensor> placed(std::span<const Tensor> tensors) {
  std::vector<DeviceTensor> result;
  for (const Tensor& tensor : tensors) result.emplace_back(tensor);
  return result;
}

}  // namespace

ForwardBackward::DeviceResult ForwardBackward::forward_on_device(const NamedDeviceTensors& inputs,
                                                                 bool training) {
  const CallGuard guard(impl_->busy);
  return impl_->runner.forward(inputs, training);
}

ForwardBackward::Result ForwardBackward::forward(const NamedTensors& inputs, bool training) {
  NamedDeviceTensors feeds;
  for (const auto& [name, tensor] : inputs) {
    feeds.push_back({.name = name, .tensor = DeviceTensor(tensor)});
  }
  const CallGuard guard(impl_->busy);
  Result result;
  impl_->runner.forward(feeds, training, [&result](const DeviceResult& computed) {
    result = {.outputs = on_host(computed.outputs), .context = computed.context};
  });
  return result;
}

ForwardBackward::DeviceGradients ForwardBackward::backward_on_device(
    std::span<const DeviceTensor> output_gradients) {
  const CallGuard guard(impl_->busy);
  return impl_->runner.backward(output_gradients, last_context(impl_->runner));
}

ForwardBackward::DeviceGradients ForwardBackward::backward_on_device(
    std::span<const DeviceTensor> output_gradients, const Context& context) {
  const CallGuard guard(impl_->busy);
  return impl_->runner.backward(output_gradients, context);
}

ForwardBackward::Gradients ForwardBackward::backward(std::span<const Tensor> output_gradients) {
  const CallGuard guard(impl_->busy);
  return backward_on_host(impl_->runner, placed(output_gradients), last_context(impl_->runner));
}

ForwardBackward::Gradients ForwardBackward::backward(std::span<const Tensor> output_gradients,
                                                     const Context& context) {
  const CallGuard guard(impl_->busy);
  return backward_on_host(impl_->runner, placed(output_gradients), context);
}

ForwardBackward::OutputsAndGradients ForwardBackward::run(std::span<const Tensor> inputs) {
  const CallGuard guard(impl_->busy);
  const std::vector<ValueInfo>& declared = impl_->runner.inputs();
  if (inputs.size() != declared.size()) {
    throw DataError({.what = fmt::format("{} inputs were given, the model has {}", inputs.size(),
                                         declared.size()),
                     .hint = "Give one for each input, in their order."});
  }
  NamedDeviceTensors feeds;
  feeds.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    feeds.push_back({.name = declared[i].name, .tensor = DeviceTensor(inputs[i])});
  }
  OutputsAndGradients result;
  impl_->runner.forward(feeds, /*training=*/true, [&](const DeviceResult& computed) {
    result.outputs = on_host(computed.outputs);
    const std::array<DeviceTensor, 1> ones{DeviceTensor(ones_like(result.outputs.front()))};
    result.gradients = backward_on_host(impl_->runner, ones, computed.context);
  });
  return result;
}

std::vector<ForwardBackward::Context> ForwardBackward::contexts() const {
  const CallGuard guard(impl_->busy);
  return impl_->runner.contexts();
}

void ForwardBackward::discard(const Context& context) {
  const CallGuard guard(impl_->busy);
  impl_->runner.discard(context);
}

const std::vector<ValueInfo>& ForwardBackward::inputs() const { return impl_->runner.inputs(); }

const std::vector<ValueInfo>& ForwardBackward::outputs() const { return impl_->runner.outputs(); }

const std::vector<WeightInfo>& ForwardBackward::weight_infos() const {
  return impl_->runner.graphs().weights;
}

const std::vector<std::string>& ForwardBackward::gradient_inputs() const {
  return impl_->runner.graphs().gradient_inputs;
}

NamedTensors ForwardBackward::weights() const {
  const CallGuard guard(impl_->busy);
  return impl_->runner.weights();
}

void ForwardBackward::set_weights(const NamedTensors& weights) {
  const CallGuard guard(impl_->busy);
  impl_->runner.set_weights(weights);
}

MemoryReport ForwardBackward::memory() const {
  const CallGuard guard(impl_->busy);
  return impl_->runner.memory();
}

Model ForwardBackward::trained_model() const {
  return api::with_trained_weights(impl_->model, weights());
}

Model ForwardBackward::inference_graph(const WriteOptions& options) const {
  return write(*impl_->runner.graphs().inference, options);
}

Model ForwardBackward::forward_graph(const WriteOptions& options) const {
  return write(*impl_->runner.graphs().forward, options);
}

Model ForwardBackward::backward_graph(const WriteOptions& options) const {
  return write(*impl_->runner.graphs().backward, options);
}

}  // namespace onnxgrad

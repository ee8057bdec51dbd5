#include "train/session/forward_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "base/memory_budget.h"
#include "device/device_tensor.h"
#include "train/graphs/outputs.h"
#include "train/graphs/stop_gradient.h"
#include "train/tools/engine.h"
#include "train/tools/feeds.h"

namespace onnxgrad {

std::int64_t ForwardBackward::Context::saved_bytes() const {
  std::int64_t total = 0;
  if (data_ == nullptr) return total;
  for (std::size_t i = data_->num_outputs; i < data_->kept.size(); ++i) {
    if (data_->kept[i].is_defined()) total += data_->kept[i].size_bytes();
  }
  return total;
}

NamedTensors ForwardBackward::Context::saved() const {
  NamedTensors result;
  if (data_ == nullptr) return result;
  for (std::size_t i = 0; i < data_->kept.size(); ++i) {
    if (!data_->kept[i].is_defined()) continue;
    result.push_back({.name = (*data_->names)[i], .tensor = data_->kept[i].to_host()});
  }
  return result;
}

namespace train {
namespace {

// Outputs of the model, saved values, and results for weights are in separate blocks, so that each
// is freed when no longer needed: this many results for each block.
std::vector<std::size_t> blocks_of(std::initializer_list<std::size_t> counts) {
  std::vector<std::size_t> blocks;
  std::size_t number = 0;
  for (const std::size_t count : counts) blocks.insert(blocks.end(), count, number++);
  return blocks;
}

Source stopped(Source source, const ForwardBackwardOptions& options) {
  source.working = with_stops(source.working, builtin_ops(), options.stop_gradient);
  return source;
}

std::string describe_type(DataType dtype, const Dims& dims) {
  return fmt::format("{}{}", dtype_name(dtype), dims.to_string());
}

}  // namespace

SplitRunner::SplitRunner(Source source, ForwardBackwardOptions options)
    : source_(stopped(std::move(source), options)),
      options_(std::move(options)),
      backend_(backend_for(options_.engine)),
      sizes_(options_.engine.warn) {
  // Passes read what others computed: one stream orders them.
  if (!is_on_host()) backend_.options.stream = backend_.engine->device.make_stream();
  split(false);
  const base::MemoryBudgetScope scope(backend_.options.budget ? backend_.options.budget
                                                              : base::current_budget());
  weight_infos_ = split_.weights;
  weight_infos_.insert(weight_infos_.end(), split_.statistics.begin(), split_.statistics.end());
  for (const WeightInfo& weight : weight_infos_) {
    weights_.push_back(placed(source_.working->graph->find(weight.name)->initializer));
  }
}

// A copy in the memory of the device.
DeviceTensor SplitRunner::placed(const Tensor& tensor) const {
  return is_on_host() ? DeviceTensor(tensor.clone())
                      : device::copy_to(backend_.engine->device, tensor);
}

// Results share memory with feeds on the host.
std::vector<DeviceTensor> SplitRunner::run(runtime::Executor& executor,
                                           const std::vector<DeviceTensor>& feeds) const {
  if (!is_on_host()) return executor.run_on_device(feeds);
  std::vector<Tensor> on_host;
  on_host.reserve(feeds.size());
  for (const DeviceTensor& feed : feeds) on_host.push_back(feed.to_host());
  std::vector<DeviceTensor> results;
  for (Tensor& result : executor.run_keeping(on_host)) results.emplace_back(std::move(result));
  return results;
}

void SplitRunner::split(bool repeat_cheap) {
  is_split_ = false;
  inference_.reset();  // their memory is needed
  forward_.reset();
  backward_.reset();
  repeats_cheap_ = repeat_cheap;
  split_ = split_graph(*source_.working, builtin_ops(),
                       {.weights = options_.weights,
                        .frozen = options_.frozen,
                        .inputs = options_.inputs,
                        .input_gradients = options_.input_gradients,
                        .training_mode = options_.training_mode,
                        .custom_gradients = source_.gradients.get(),
                        .precision = options_.precision,
                        .repeat_cheap = repeat_cheap});
  make_executors();
  is_split_ = true;
}

void SplitRunner::make_executors() {
  const runtime::Engine& engine = *backend_.engine;
  const std::size_t num_outputs = split_.outputs.size();
  runtime::ExecutorOptions inference = backend_.options;
  inference.output_blocks = blocks_of({num_outputs});
  inference_.emplace(split_.inference, engine, inference);
  runtime::ExecutorOptions forward = backend_.options;
  const std::size_t num_statistics = split_.statistics.size();
  const std::size_t num_saved =
      split_.forward->graph->outputs.size() - num_outputs - num_statistics;
  forward.output_blocks = blocks_of({num_outputs, num_saved, num_statistics});
  forward_.emplace(split_.forward, engine, forward);
  runtime::ExecutorOptions backward = backend_.options;
  backward.output_blocks = blocks_of({split_.weights.size(), split_.gradient_inputs.size()});
  for (std::size_t i = 0; i < split_.backward_inputs.size(); ++i) {
    if (split_.backward_inputs[i].gives_shape) backward.shape_inputs.push_back(i);
  }
  backward_.emplace(split_.backward, engine, backward);

  reads_input_.assign(forward_->inputs().size(), false);
  reads_output_.assign(forward_->outputs().size(), false);
  inputs_.clear();
  outputs_.clear();
  for (const BackwardInput& input : split_.backward_inputs) {
    if (input.kind == BackwardInput::Kind::kForwardInput) reads_input_[input.index] = true;
    if (input.kind == BackwardInput::Kind::kSaved) reads_output_[input.index] = true;
  }
  for (std::size_t i = 0; i < split_.num_model_inputs; ++i) {
    inputs_.push_back(value_info(forward_->inputs()[i].name, forward_->inputs()[i].type));
  }
  describe_map_inputs(source_.file.model.get(), inputs_);
  for (std::size_t i = 0; i < num_outputs; ++i) {
    outputs_.push_back(value_info(split_.outputs[i].name, inference_->outputs()[i].type));
  }
  std::vector<std::string> names;
  for (const runtime::Port& port : forward_->outputs()) names.push_back(port.name);
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
}

// The first pass that does not fit into the budget decides that cheap values are not saved.
ForwardBackward::DeviceResult SplitRunner::forward(const NamedDeviceTensors& inputs, bool training,
                                                   const TakeResult& take) {
  if (!is_split_) split(repeats_cheap_);  // there was no memory for it
  if (!training || !backend_.options.fits_budget || repeats_cheap_ || !open_.empty()) {
    return run_forward(inputs, training, take);
  }
  try {
    return run_forward(inputs, training, take);
  } catch (const DeviceError&) {
    split(true);  // and again, with less
  }
  return run_forward(inputs, training, take);
}

// Makes the backward plan; only results are allocated besides.
void SplitRunner::prepare_backward(const Context::Data& data) {
  backward_->prepare_for(backward_feeds({}, data));
  std::int64_t bytes = 0;
  for (const DeviceTensor& weight : weights_) bytes += weight.size_bytes();
  for (const std::string& name : split_.gradient_inputs) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].name == name) bytes += input_dims_[i].size_bytes(inputs_[i].dtype);
    }
  }
  const auto budget = backend_.engine->device.budget(backend_.options.budget);
  budget->reserve(bytes);
  budget->release(bytes);
}

ForwardBackward::DeviceResult SplitRunner::run_forward(const NamedDeviceTensors& inputs,
                                                       bool training, const TakeResult& take) {
  runtime::Executor& executor = training ? *forward_ : *inference_;
  const std::span<const runtime::Port> ports = executor.inputs();
  const auto ordered = order_feeds(inputs, ports.first(split_.num_model_inputs));
  std::vector<DeviceTensor> feeds;
  for (const DeviceTensor* tensor : ordered) feeds.push_back(*tensor);
  feeds.insert(feeds.end(), weights_.begin(), weights_.end());
  executor.cells().step = passes_;
  std::vector<DeviceTensor> computed = run(executor, feeds);
  std::vector<Dims> dims;
  for (const DeviceTensor* tensor : ordered) dims.push_back(tensor->dims());
  sizes_.look_at(ports.first(split_.num_model_inputs), dims);
  ForwardBackward::DeviceResult result;
  const std::size_t num_outputs = split_.outputs.size();
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const RunnableOutput& output = split_.outputs[i];
    result.outputs.push_back(output.labels.is_defined()
                                 ? DeviceTensor(output.finish(computed[i].to_host()))
                                 : computed[i]);
  }
  if (!training) {
    if (take) take(result);
    return result;
  }
  const std::size_t num_statistics = split_.statistics.size();
  std::vector<DeviceTensor> statistics(computed.end() - static_cast<std::ptrdiff_t>(num_statistics),
                                       computed.end());
  auto data = std::make_shared<Context::Data>();
  data->names = names_;
  data->cells = executor.cells();
  data->num_outputs = num_outputs;
  for (std::size_t i = 0; i < num_outputs; ++i) {
    data->outputs.push_back({.dtype = computed[i].dtype(), .dims = computed[i].dims()});
  }
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    data->inputs.push_back(reads_input_[i] ? feeds[i] : DeviceTensor());
  }
  for (std::size_t i = 0; i < computed.size(); ++i) {
    data->kept.push_back(reads_output_[i] ? std::move(computed[i]) : DeviceTensor());
  }
  input_dims_.clear();
  for (const DeviceTensor& feed : feeds) input_dims_.push_back(feed.dims());
  data->input_dims = input_dims_;
  if (backend_.options.fits_budget) prepare_backward(*data);
  result.context = Context(std::move(data));
  open_.reserve(open_.size() + 1);
  if (take) take(result);
  // From here on nothing throws.
  if (result.context.data()->is_open) open_.push_back(result.context);
  std::ranges::move(statistics, weights_.end() - static_cast<std::ptrdiff_t>(num_statistics));
  ++passes_;
  return result;
}

void SplitRunner::check_open(const Context& context) const {
  const auto& data = context.data();
  const bool is_foreign = data == nullptr || data->names != names_;
  if (!is_foreign && data->is_open) return;
  throw Error({.what = is_foreign ? "this context belongs to no forward pass of this object"
                                  : "the backward pass of this context has been done",
               .hint = "Call forward() again; each context is for one backward pass."});
}

// The gradient of that output, zeros if there is none.
DeviceTensor SplitRunner::checked_gradient(std::span<const DeviceTensor> given, std::size_t output,
                                           const Context::Data& data) const {
  const DataType dtype = data.outputs[output].dtype;
  const Dims& dims = data.outputs[output].dims;
  if (output >= given.size() || !given[output].is_defined()) {
    return DeviceTensor(Tensor::zeros(dtype, dims));
  }
  const DeviceTensor& gradient = given[output];
  if (gradient.dtype() == dtype && gradient.dims() == dims) return gradient;
  Problem problem{.what = fmt::format(
                      "the gradient of output '{}' is {}, expected {}", split_.outputs[output].name,
                      describe_type(gradient.dtype(), gradient.dims()), describe_type(dtype, dims)),
                  .where = {.value = split_.outputs[output].name},
                  .hint = "Give it the type and shape of the output."};
  if (gradient.dtype() != dtype) throw DataError(std::move(problem));
  throw ShapeError(std::move(problem));
}

// Gradients rely on one size for one name of a dimension.
void SplitRunner::check_input_gradient(const DeviceTensor& gradient, const std::string& name,
                                       const Context::Data& data) const {
  const auto input = std::ranges::find(inputs_, name, &ValueInfo::name);
  const Dims& dims = data.input_dims[static_cast<std::size_t>(input - inputs_.begin())];
  if (gradient.dims() == dims) return;
  const ShapeError because(
      {.what = fmt::format("the gradient of '{}' has shape {}, the input {}", name,
                           gradient.dims().to_string(), dims.to_string()),
       .where = {.value = name},
       .hint = "Give arrays of one size where the model has one name."});
  const auto ports = std::span(forward_->inputs()).first(split_.num_model_inputs);
  runtime::check_sizes(ports, std::span(data.input_dims).first(ports.size()), because);
  throw ShapeError(because.problem());
}

std::vector<DeviceTensor> SplitRunner::backward_feeds(
    std::span<const DeviceTensor> output_gradients, const Context::Data& data) const {
  if (output_gradients.size() > split_.outputs.size()) {
    throw DataError({.what = fmt::format("{} gradients were given for {} outputs",
                                         output_gradients.size(), split_.outputs.size()),
                     .hint = "Give one for each output, in their order."});
  }
  for (std::size_t i = 0; i < output_gradients.size(); ++i) {
    if (output_gradients[i].is_defined()) checked_gradient(output_gradients, i, data);
    if (!output_gradients[i].is_defined() || is_floating(data.outputs[i].dtype)) continue;
    throw DataError({.what = fmt::format("output '{}' is {} and has no gradient",
                                         split_.outputs[i].name, dtype_name(data.outputs[i].dtype)),
                     .where = {.value = split_.outputs[i].name},
                     .hint = "Omit its gradient."});
  }
  std::vector<DeviceTensor> feeds;
  for (const BackwardInput& input : split_.backward_inputs) {
    switch (input.kind) {
      case BackwardInput::Kind::kOutputGradient:
        feeds.push_back(checked_gradient(output_gradients, input.index, data));
        break;
      case BackwardInput::Kind::kForwardInput:
        feeds.push_back(data.inputs[input.index]);
        break;
      case BackwardInput::Kind::kSaved:
        feeds.push_back(data.kept[input.index]);
        break;
    }
  }
  return feeds;
}

ForwardBackward::DeviceGradients SplitRunner::backward(
    std::span<const DeviceTensor> output_gradients, const Context& context,
    const TakeGradients& take) {
  check_open(context);
  Context::Data& data = *context.data();
  std::vector<DeviceTensor> gradients;
  {
    const auto feeds = backward_feeds(output_gradients, data);
    backward_->cells() = data.cells;
    gradients = run(*backward_, feeds);
  }
  for (std::size_t i = 0; i < split_.gradient_inputs.size(); ++i) {
    check_input_gradient(gradients[split_.weights.size() + i], split_.gradient_inputs[i], data);
  }
  ForwardBackward::DeviceGradients result;
  std::size_t next = 0;
  for (const WeightInfo& weight : split_.weights) {
    result.weights.push_back({.name = weight.name, .tensor = std::move(gradients[next++])});
  }
  for (const std::string& name : split_.gradient_inputs) {
    result.inputs.push_back({.name = name, .tensor = std::move(gradients[next++])});
  }
  if (take) take(result);
  discard(context);
  return result;
}

void SplitRunner::discard(const Context& context) {
  check_open(context);
  Context::Data& data = *context.data();
  data.is_open = false;
  data.inputs.clear();
  data.kept.clear();
  std::erase(open_, Context(context));
}

NamedTensors SplitRunner::weights() const {
  NamedTensors result;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    result.push_back({.name = weight_infos_[i].name, .tensor = weights_[i].to_host()});
  }
  return result;
}

void SplitRunner::set_weights(const NamedTensors& weights) {
  std::vector<DeviceTensor> fresh = weights_;
  for (const auto& [name, tensor] : weights) {
    auto found = std::ranges::find(weight_infos_, name, &WeightInfo::name);
    if (found == weight_infos_.end()) {
      found = std::ranges::find_if(weight_infos_, [&name = name](const WeightInfo& weight) {
        return std::ranges::find(weight.aliases, name) != weight.aliases.end();
      });
    }
    if (found == weight_infos_.end()) {
      std::vector<std::string> known;
      for (const WeightInfo& weight : weight_infos_) known.push_back(weight.name);
      throw ModelError({.what = "'" + name + "' is not a differentiated weight",
                        .where = {.value = name},
                        .detail = "Weights: " + base::quote_list(known) + ".",
                        .hint = base::nearest_or(name, known)});
    }
    if (tensor.dtype() != found->dtype || tensor.dims() != found->dims) {
      throw ModelError({.what = fmt::format("weight '{}' is {}, expected {}", name,
                                            describe_type(tensor.dtype(), tensor.dims()),
                                            describe_type(found->dtype, found->dims)),
                        .where = {.value = name},
                        .hint = "Give it the type and shape that it has in the model."});
    }
    fresh[static_cast<std::size_t>(found - weight_infos_.begin())] = placed(tensor);
  }
  weights_ = std::move(fresh);
}

// Bytes of a value of the last forward pass; 0: unknown.
std::int64_t SplitRunner::bytes_of(const ir::Type& type) const {
  std::vector<std::int64_t> dims;
  for (const ir::Dim& dim : type.shape.value_or(ir::SymbolicShape())) {
    std::int64_t value = dim.value();
    for (std::size_t i = 0; i < input_dims_.size() && value < 0; ++i) {
      const auto& shape = forward_->inputs()[i].type.shape;
      for (std::size_t axis = 0; shape && axis < shape->size(); ++axis) {
        if ((*shape)[axis].surely_equals(dim)) value = input_dims_[i][axis];
      }
    }
    if (value < 0) return 0;
    dims.push_back(value);
  }
  return type.is_tensor() && type.shape ? Dims(std::move(dims)).size_bytes(type.dtype) : 0;
}

MemoryReport SplitRunner::memory() const {
  MemoryReport report;
  const device::Device& device = backend_.engine->device;
  for (const DeviceTensor& weight : weights_) {
    const std::int64_t bytes = weight.size_bytes();
    report.weights += device.is_host() ? bytes : device.charged_bytes(bytes);
  }
  for (const auto* executor : {&inference_, &forward_, &backward_}) {
    if (executor->has_value()) add_memory(report, **executor);
  }
  if (source_.file.bytes != nullptr) report.file = std::ssize(source_.file.bytes->memory());
  report.recomputed_values += std::ssize(split_.repeated);
  for (const ir::Type& type : split_.repeated) report.recomputed_bytes += bytes_of(type);
  return report;
}

}  // namespace train
}  // namespace onnxgrad

#include "train/session/forward_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "train/tools/feeds.h"

namespace onnxgrad::train {
namespace {

std::vector<ir::Value*> values_of(const std::vector<RunnableOutput>& outputs) {
  std::vector<ir::Value*> values;
  for (const RunnableOutput& output : outputs) values.push_back(output.value);
  return values;
}

// Reads of a step's state are ordered with the step.
Backend with_stream_of(const StepRunner& step, Backend backend) {
  backend.options.stream = step.executor().stream();
  return backend;
}

}  // namespace

ForwardRunner::ForwardRunner(std::shared_ptr<const ir::Model> model, const StepRunner& step,
                             const Backend& backend)
    : Runner(std::move(model), with_stream_of(step, backend)), step_(step) {
  const auto& inputs = executor().inputs();
  const auto first = std::ranges::find_if(
      inputs, [&](const runtime::Port& port) { return step.state().find(port.name).has_value(); });
  end_data_at(static_cast<std::size_t>(first - inputs.begin()));
  for (auto input = first; input != inputs.end(); ++input) {
    const auto state = step.state().find(input->name);
    ONNXGRAD_ASSERT(state.has_value());
    weights_.push_back(step.evaluated_state(input->name).value());
  }
}

runtime::Execution& ForwardRunner::prepare(const std::vector<Dims>& dims) {
  std::vector<Dims> all = dims;
  const runtime::Executor& owner = step_.executor();
  for (const std::size_t weight : weights_) {
    all.push_back(owner.state()[weight].type.fixed_dims());
  }
  runtime::Execution& plan = prepare_plan(all, step_.graph().loss);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    plan.bind(dims.size() + i, owner.state_address(weights_[i]));
  }
  return plan;
}

std::int64_t ForwardRunner::memory_bytes() const {
  const runtime::MemoryUse use = executor().memory();
  return use.arena + use.constants + use.dynamic + use.slots + use.cells;
}

LossSums& LossSums::operator+=(const LossSums& other) {
  numerator += other.numerator;
  denominator += other.denominator;
  correct += other.correct;
  counted += other.counted;
  return *this;
}

LossSums Evaluation::run(runtime::Execution& plan) const {
  plan.run();
  LossSums sums{.numerator = scalar(plan, ports_.numerator),
                .denominator = scalar(plan, ports_.denominator)};
  if (ports_.correct) {
    sums.correct = scalar(plan, *ports_.correct);
    sums.counted = scalar(plan, *ports_.counted);
  }
  return sums;
}

Prediction::Prediction(const ir::Model& working, std::vector<RunnableOutput> outputs,
                       const StepRunner& step, const Backend& backend)
    : ForwardRunner(build_prediction(working, values_of(outputs), step.graph().state_weights()),
                    step, backend),
      outputs_(std::move(outputs)) {}

runtime::Execution& Prediction::run_plan(const NamedTensors& feeds,
                                         std::span<const NamedDeviceTensor> on_device,
                                         std::span<const std::string> ignored) {
  const auto ordered = order_feeds(feeds, data_ports(), ignored);
  runtime::Execution& plan = bind_all(*this, ordered, on_device);
  plan.run();
  return plan;
}

std::vector<DeviceTensor> Prediction::run_on_device(const PlacedFeeds& feeds,
                                                    std::span<const std::string> ignored) {
  runtime::Execution& plan = run_plan(feeds.all, feeds.on_device, ignored);
  std::vector<DeviceTensor> results;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    results.push_back(outputs_[i].labels.is_defined()
                          ? DeviceTensor(outputs_[i].finish(tensor(plan, i)))
                          : plan.output_on_device(i));
  }
  return results;
}

std::vector<Tensor> Prediction::run(const NamedTensors& feeds,
                                    std::span<const std::string> ignored) {
  runtime::Execution& plan = run_plan(feeds, {}, ignored);
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    results.push_back(outputs_[i].finish(tensor(plan, i)));
  }
  return results;
}

}  // namespace onnxgrad::train

#include "train/precision/loss_scale.h"

#include <utility>

#include "train/tools/collectives.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

// Sum of x * 0: 0 if all elements are finite, else NaN.
Value* sum_of_faults(GraphBuilder& g, std::span<Value* const> values) {
  Value* total = nullptr;
  for (Value* value : values) {
    const bool is_scalar = value->type.has_rank() && value->type.rank() == 0;
    Value* zeros = g.scale(value, 0);
    Value* sum = g.cast(is_scalar ? zeros : g.reduce_sum(zeros, {}, false), DataType::kFloat32);
    total = total == nullptr ? sum : g.add(total, sum);
  }
  return total;
}

}  // namespace

LossScaler::LossScaler(GraphBuilder& g, const MixedPrecision& precision)
    : g_(g), precision_(precision) {
  const auto add = [&](const char* name, Tensor first) {
    Value* value = g.graph().add_input(name, ir::Type::tensor(first.dtype(), first.dims()));
    value->initializer = std::move(first);
    g.graph().initializers.push_back(value);
    return value;
  };
  scale_ = add("loss_scale", Tensor::scalar(static_cast<float>(precision.loss_scale)));
  steps_ = add("steps_since_overflow", Tensor::scalar(std::int64_t{0}));
}

Value* LossScaler::scaled(Value* seed) { return g_.mul(seed, g_.cast(scale_, seed->dtype())); }

void LossScaler::unscale(std::span<Value*> gradients, Value* loss, bool has_workers) {
  g_.set_scope("loss_scale");
  Value* const inverse = g_.div(g_.scalar_like(scale_, 1), scale_);
  for (Value*& gradient : gradients) {
    gradient = g_.mul(gradient, g_.cast(inverse, gradient->dtype()));
  }
  Value* fault = sum_of_faults(g_, gradients);
  Value* loss_fault = sum_of_faults(g_, std::span(&loss, 1));
  if (has_workers) {  // they decide alike
    const auto sums = add_up(g_, {fault, loss_fault});
    fault = sums[0];
    loss_fault = sums[1];
  }
  Value* const zero = g_.scalar_like(fault, 0);
  is_finite_ = g_.equal(g_.add(fault, loss_fault), zero);
  has_overflow_ = g_.op("And", {g_.op("Not", {g_.equal(fault, zero)}), g_.equal(loss_fault, zero)});
  g_.set_scope("");
}

void LossScaler::guard(std::vector<ir::StateBinding>& state) {
  g_.set_scope("loss_scale");
  Value* const one = g_.scalar_like(scale_, 1);
  Value* const is_least = g_.op("LessOrEqual", {scale_, one});
  Value* const is_done = g_.op("Or", {is_finite_, is_least});
  for (ir::StateBinding& binding : state) {
    if (binding.input == binding.output) continue;
    binding.output = g_.where(is_done, binding.output, binding.input);
  }
  Value* const steps = g_.add(steps_, g_.int_scalar(1));
  Value* const grows = g_.op(
      "And",
      {is_finite_, g_.op("GreaterOrEqual", {steps, g_.int_scalar(precision_.growth_interval)})});
  Value* const doubled = g_.op("Min", {g_.scale(scale_, 2), g_.scalar_like(scale_, kMaxLossScale)});
  Value* const halved = g_.op("Max", {g_.scale(scale_, 0.5), one});
  Value* const scale = g_.where(grows, doubled, g_.where(has_overflow_, halved, scale_));
  Value* const restarts = g_.op("Or", {grows, g_.op("Not", {is_finite_})});
  state.push_back({.input = scale_, .output = scale});
  state.push_back({.input = steps_, .output = g_.where(restarts, g_.int_scalar(0), steps)});
  g_.set_scope("");
}

}  // namespace onnxgrad::train

#include "train/optimizers.h"

#include <cmath>
#include <map>
#include <string>

#include "base/check.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::StateBinding;
using ir::Value;

/// Collects what the formulas of all weights share.
class StepWriter {
 public:
  StepWriter(GraphBuilder& g, Value* learning_rate) : g_(g), learning_rate_(learning_rate) {}

  GraphBuilder& g() { return g_; }

  /// A scalar in the type of `like`, cast once per type.
  Value* scalar(Value* x, Value* like) {
    Value*& cast = casts_[{x, like->dtype()}];
    if (cast == nullptr) cast = g_.cast_like(x, like);
    return cast;
  }
  Value* learning_rate(Value* like) { return scalar(learning_rate_, like); }
  Value* learning_rate_double() { return g_.cast(learning_rate_, DataType::kFloat64); }

  /// A slot of the weight's shape that starts as zeros; the caller binds it.
  Value* slot(const std::string& prefix, const Value& weight) {
    return state(prefix + "/" + weight.name,
                 Tensor::zeros(weight.dtype(), weight.initializer.dims()));
  }
  void bind(Value* input, Value* output) { slots_.push_back({.input = input, .output = output}); }

  /// Steps done before this one, and with it, as float64. Counting starts at the first call.
  Value* steps_before() {
    count_steps();
    return g_.cast(count_, DataType::kFloat64);
  }
  Value* steps_after() {
    count_steps();
    return g_.cast(next_count_, DataType::kFloat64);
  }

  std::vector<StateBinding> take_slots() { return std::move(slots_); }

 private:
  Value* state(const std::string& name, Tensor first) {
    Value* value = g_.graph().add_input(name, ir::Type::tensor(first.dtype(), first.dims()));
    value->initializer = std::move(first);
    g_.graph().initializers.push_back(value);
    return value;
  }
  void count_steps() {
    if (count_ != nullptr) return;
    count_ = state(kStepCount, Tensor::scalar(std::int64_t{0}));
    next_count_ = g_.add(count_, g_.int_scalar(1));
    bind(count_, next_count_);
  }

  GraphBuilder& g_;
  Value* learning_rate_;
  std::map<std::pair<Value*, DataType>, Value*> casts_;
  std::vector<StateBinding> slots_;
  Value* count_ = nullptr;
  Value* next_count_ = nullptr;
};

Value* decayed(StepWriter& step, double weight_decay, Value* weight, Value* gradient) {
  if (weight_decay == 0) return gradient;
  GraphBuilder& g = step.g();
  return g.add(gradient, g.scale(weight, weight_decay));
}

class SgdWriter {
 public:
  SgdWriter(StepWriter& step, const Sgd& spec) : step_(step), spec_(spec) {
    if (spec.momentum == 0 || spec.dampening == 0) return;
    // The first step takes the gradient whole: 1 where no step was done, else 1 - dampening.
    GraphBuilder& g = step.g();
    Value* before = step.steps_before();
    gradient_share_ = g.where(g.equal(before, g.scalar_like(before, 0)), g.scalar_like(before, 1),
                              g.scalar_like(before, 1 - spec.dampening));
  }

  Value* update(Value* weight, Value* gradient) {
    GraphBuilder& g = step_.g();
    Value* direction = decayed(step_, spec_.weight_decay, weight, gradient);
    if (spec_.momentum != 0) direction = with_momentum(weight, direction);
    return g.sub(weight, g.mul(step_.learning_rate(weight), direction));
  }

 private:
  Value* with_momentum(Value* weight, Value* gradient) {
    GraphBuilder& g = step_.g();
    Value* old = step_.slot("momentum", *weight);
    Value* share = gradient;
    if (gradient_share_ != nullptr) share = g.mul(step_.scalar(gradient_share_, weight), gradient);
    Value* velocity = g.add(g.scale(old, spec_.momentum), share);
    step_.bind(old, velocity);
    return spec_.nesterov ? g.add(gradient, g.scale(velocity, spec_.momentum)) : velocity;
  }

  StepWriter& step_;
  const Sgd& spec_;
  Value* gradient_share_ = nullptr;
};

class AdamWriter {
 public:
  // The corrections are float64 scalars: 1 - 0.999^1 keeps five digits in float32.
  AdamWriter(StepWriter& step, const Adam& spec) : step_(step), spec_(spec) {
    GraphBuilder& g = step.g();
    Value* t = step.steps_after();
    const auto correction = [&](double beta) {
      Value* one = g.scalar_like(t, 1);
      return g.sub(one, g.pow(g.scalar_like(t, beta), t));
    };
    step_size_ = g.div(step.learning_rate_double(), correction(spec.beta1));
    root_correction_ = g.sqrt(correction(spec.beta2));
  }

  Value* update(Value* weight, Value* raw_gradient) {
    GraphBuilder& g = step_.g();
    Value* gradient = decayed(step_, spec_.weight_decay, weight, raw_gradient);
    Value* m = step_.slot("adam_m", *weight);
    Value* v = step_.slot("adam_v", *weight);
    Value* next_m = g.add(g.scale(m, spec_.beta1), g.scale(gradient, 1 - spec_.beta1));
    Value* next_v =
        g.add(g.scale(v, spec_.beta2), g.scale(g.mul(gradient, gradient), 1 - spec_.beta2));
    step_.bind(m, next_m);
    step_.bind(v, next_v);
    Value* root = g.div(g.sqrt(next_v), step_.scalar(root_correction_, weight));
    Value* denominator = g.add(root, g.scalar_like(weight, spec_.epsilon));
    return g.sub(weight, g.mul(step_.scalar(step_size_, weight), g.div(next_m, denominator)));
  }

 private:
  StepWriter& step_;
  const Adam& spec_;
  Value* step_size_ = nullptr;
  Value* root_correction_ = nullptr;
};

SgdWriter make_writer(StepWriter& step, const Sgd& spec) { return {step, spec}; }
AdamWriter make_writer(StepWriter& step, const Adam& spec) { return {step, spec}; }

void check_range(std::string_view name, double value, bool good, std::string_view range) {
  if (good && std::isfinite(value)) return;
  throw ModelError({.what = "optimizer: " + std::string(name) + " is " + std::to_string(value) +
                            ", expected " + std::string(range)});
}

void check(const Sgd& sgd) {
  check_range("learning_rate", sgd.learning_rate, sgd.learning_rate >= 0, "a number >= 0");
  check_range("momentum", sgd.momentum, sgd.momentum >= 0, "a number >= 0");
  check_range("dampening", sgd.dampening, true, "a number");
  check_range("weight_decay", sgd.weight_decay, sgd.weight_decay >= 0, "a number >= 0");
  if (sgd.nesterov && (sgd.momentum == 0 || sgd.dampening != 0)) {
    throw ModelError({.what = "optimizer: nesterov needs momentum > 0 and dampening 0",
                      .mend = "Pass momentum=0.9, or leave nesterov out."});
  }
}

void check(const Adam& adam) {
  const auto is_decay = [](double beta) { return beta >= 0 && beta < 1; };
  check_range("learning_rate", adam.learning_rate, adam.learning_rate >= 0, "a number >= 0");
  check_range("beta1", adam.beta1, is_decay(adam.beta1), "a number in [0, 1)");
  check_range("beta2", adam.beta2, is_decay(adam.beta2), "a number in [0, 1)");
  check_range("epsilon", adam.epsilon, adam.epsilon >= 0, "a number >= 0");
  check_range("weight_decay", adam.weight_decay, adam.weight_decay >= 0, "a number >= 0");
}

}  // namespace

void check_optimizer(const Optimizer& optimizer) {
  std::visit([](const auto& spec) { check(spec); }, optimizer);
}

std::vector<StateBinding> write_optimizer(GraphBuilder& g, const Optimizer& optimizer,
                                          std::span<Value* const> weights,
                                          std::span<Value* const> gradients, Value* learning_rate) {
  ONNXGRAD_ASSERT(weights.size() == gradients.size());
  StepWriter step(g, learning_rate);
  std::vector<StateBinding> bindings;
  std::visit(
      [&](const auto& spec) {
        auto writer = make_writer(step, spec);
        for (std::size_t i = 0; i < weights.size(); ++i) {
          bindings.push_back(
              {.input = weights[i], .output = writer.update(weights[i], gradients[i])});
        }
      },
      optimizer);
  const auto slots = step.take_slots();
  bindings.insert(bindings.end(), slots.begin(), slots.end());
  return bindings;
}

}  // namespace onnxgrad::train

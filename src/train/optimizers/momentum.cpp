#include <map>

#include "train/optimizers/rules.h"

// Optimizers that step along an average of gradients: gradient descent with momentum, Lion.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

class SgdRule : public UpdateRule {
 public:
  SgdRule(StepWriter& writer, const Sgd& spec) : writer_(writer), spec_(spec) {}

  Value* update(const WeightStep& step) override {
    GraphBuilder& g = writer_.g();
    const bool decoupled = spec_.decoupled_weight_decay;
    Value* direction = decoupled ? step.gradient : writer_.decayed_gradient(step);
    Value* start = decoupled ? writer_.decayed_weight(step) : step.weight;
    if (spec_.rate_in_velocity) return g.add(start, next_velocity(step, direction));
    if (spec_.momentum != 0) direction = with_momentum(step, direction);
    return g.sub(start, g.mul(writer_.rate(step), direction));
  }

 private:
  // v' = momentum v - lr g, or with Nesterov's correction momentum v' - lr g.
  Value* next_velocity(const WeightStep& step, Value* gradient) {
    GraphBuilder& g = writer_.g();
    Value* old = writer_.slot("velocity", step);
    Value* move = g.mul(writer_.rate(step), gradient);
    Value* velocity = g.sub(g.scale(old, spec_.momentum), move);
    writer_.bind(old, velocity);
    return spec_.nesterov ? g.sub(g.scale(velocity, spec_.momentum), move) : velocity;
  }

  Value* with_momentum(const WeightStep& step, Value* gradient) {
    GraphBuilder& g = writer_.g();
    Value* old = writer_.slot("momentum", step);
    Value* share = gradient;
    if (spec_.dampening != 0) share = g.mul(gradient_share(step), gradient);
    Value* velocity = g.add(g.scale(old, spec_.momentum), share);
    writer_.bind(old, velocity);
    return spec_.nesterov ? g.add(gradient, g.scale(velocity, spec_.momentum)) : velocity;
  }

  // The first step takes the gradient whole: 1 where no step was done, else 1 - dampening.
  Value* gradient_share(const WeightStep& step) {
    Value*& share = shares_[step.count];
    if (share == nullptr) {
      GraphBuilder& g = writer_.g();
      Value* before = writer_.steps_before(step);
      share = g.where(g.equal(before, g.scalar_like(before, 0)), g.scalar_like(before, 1),
                      g.scalar_like(before, 1 - spec_.dampening));
    }
    return writer_.scalar(share, step.weight);
  }

  StepWriter& writer_;
  Sgd spec_;
  std::map<std::string, Value*> shares_;  // by count
};

class LionRule : public UpdateRule {
 public:
  LionRule(StepWriter& writer, const Lion& spec) : writer_(writer), spec_(spec) {}

  Value* update(const WeightStep& step) override {
    GraphBuilder& g = writer_.g();
    Value* m = writer_.slot("lion_m", step);
    const auto average = [&](double beta) {
      return g.add(g.scale(m, beta), g.scale(step.gradient, 1 - beta));
    };
    Value* direction = g.sign(average(spec_.beta1));
    writer_.bind(m, average(spec_.beta2));
    return g.sub(writer_.decayed_weight(step), g.mul(writer_.rate(step), direction));
  }

 private:
  StepWriter& writer_;
  Lion spec_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const Sgd& spec) {
  return std::make_unique<SgdRule>(writer, spec);
}

std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const Lion& spec) {
  return std::make_unique<LionRule>(writer, spec);
}

}  // namespace onnxgrad::train

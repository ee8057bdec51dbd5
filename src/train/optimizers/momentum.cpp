#include <map>

#include "train/optimizers/rules.h"

// Optimizers that step along an average of gradients: gradient descent with momentum, Lion.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;
using Rule = opdef::UpdateRule;

class SgdRule : public UpdateRule {
 public:
  SgdRule(StepWriter& writer, const Sgd& spec) : writer_(writer), spec_(spec) {}

  // Momentum m' = momentum m + g, with the rate in it momentum m - lr g; opdef/fused.h has what
  // follows, with and without Nesterov's correction.
  Value* update(const WeightStep& step) override {
    GraphBuilder& g = writer_.g();
    const auto decay =
        spec_.decoupled_weight_decay ? StepWriter::Decay::kWeight : StepWriter::Decay::kGradient;
    if (spec_.rate_in_velocity) {
      const auto rule = spec_.nesterov ? Rule::kNesterovVelocity : Rule::kVelocity;
      return writer_.apply({.rule = rule, .beta1 = spec_.momentum}, step,
                           {.gradient = step.gradient,
                            .m = writer_.slot("velocity", step),
                            .rate = writer_.rate(step)},
                           decay);
    }
    if (spec_.momentum != 0 && spec_.dampening == 0) {
      const auto rule = spec_.nesterov ? Rule::kNesterov : Rule::kMomentum;
      return writer_.apply({.rule = rule, .beta1 = spec_.momentum}, step,
                           {.gradient = step.gradient,
                            .m = writer_.slot("momentum", step),
                            .rate = writer_.rate(step)},
                           decay);
    }
    const bool decoupled = spec_.decoupled_weight_decay;
    Value* direction = decoupled ? step.gradient : writer_.decayed_gradient(step);
    if (spec_.momentum != 0) direction = with_dampening(step, direction);
    Value* start = decoupled ? writer_.decayed_weight(step) : step.weight;
    return g.sub(start, g.mul(writer_.rate(step), direction));
  }

 private:
  Value* with_dampening(const WeightStep& step, Value* gradient) {
    GraphBuilder& g = writer_.g();
    Value* old = writer_.slot("momentum", step);
    Value* velocity = g.add(g.scale(old, spec_.momentum), g.mul(gradient_share(step), gradient));
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
    return writer_.apply(
        {.rule = Rule::kLion,
         .beta1 = spec_.beta1,
         .share1 = 1 - spec_.beta1,
         .beta2 = spec_.beta2,
         .share2 = 1 - spec_.beta2},
        step,
        {.gradient = step.gradient, .m = writer_.slot("lion_m", step), .rate = writer_.rate(step)},
        StepWriter::Decay::kWeight);
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

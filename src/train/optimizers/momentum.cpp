#include <map>

#include "train/optimizers/table.h"

// Optimizers that step along an average of gradients: gradient descent with momentum, Lion.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;
using Rule = opdef::UpdateRule;

class SgdRule : public UpdateRule {
 public:
  SgdRule(StepWriter& writer, const Sgd& spec) : writer_(writer), spec_(spec) {}

  static bool updates_by_element(const Dims& /*dims*/) { return true; }

  // Momentum m' = momentum m + g, or with the rate inside momentum m - lr g; opdef/fused.h has the
  // rest, with and without Nesterov's correction.
  Value* update(const WeightStep& step) override {
    const auto decay =
        spec_.decoupled_weight_decay ? StepWriter::Decay::kWeight : StepWriter::Decay::kGradient;
    if (spec_.rate_in_velocity) return fused(step, Rule::kVelocity, "velocity", decay);
    if (spec_.momentum != 0 && spec_.dampening == 0) {
      return fused(step, Rule::kMomentum, "momentum", decay);
    }
    GraphBuilder& g = writer_.g();
    auto [weight, direction] = writer_.decayed(step, decay);
    if (spec_.momentum != 0) direction = with_dampening(step, direction);
    return g.sub(weight, g.mul(writer_.rate(step), direction));
  }

 private:
  Value* fused(const WeightStep& step, Rule rule, const std::string& slot,
               StepWriter::Decay decay) {
    if (spec_.nesterov) {
      rule = rule == Rule::kVelocity ? Rule::kNesterovVelocity : Rule::kNesterov;
    }
    return writer_.apply(
        {.rule = rule, .beta1 = spec_.momentum}, step,
        {.gradient = step.gradient, .m = writer_.slot(slot, step), .rate = writer_.rate(step)},
        decay);
  }

  Value* with_dampening(const WeightStep& step, Value* gradient) {
    GraphBuilder& g = writer_.g();
    Value* old = writer_.slot("momentum", step);
    Value* velocity = g.add(g.scale(old, spec_.momentum), g.mul(gradient_share(step), gradient));
    writer_.bind(old, velocity);
    return spec_.nesterov ? g.add(gradient, g.scale(velocity, spec_.momentum)) : velocity;
  }

  // The first step uses the whole gradient: 1 if no step was done, else 1 - dampening.
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

  static bool updates_by_element(const Dims& /*dims*/) { return true; }

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

void check_momentum(const Sgd& sgd) {
  const auto refuse = [](const std::string& option) {
    throw OptionError({.what = option + " needs a momentum above 0 and no dampening",
                       .hint = "Pass momentum=0.9, or leave " + option + " out."});
  };
  if (sgd.momentum != 0 && sgd.dampening == 0) return;
  if (sgd.nesterov) refuse("nesterov");
  if (sgd.rate_in_velocity) refuse("rate_in_velocity");
}

}  // namespace

void register_momentum(OptimizerTable& table) {
  table.add<SgdRule>(Described<Sgd>{
      .type = "Sgd",
      .python_name = "SGD",
      .summary = "Stochastic gradient descent",
      .source = "torch.optim.SGD; rate_in_velocity: MLPClassifier of scikit-learn",
      .formula = "Without momentum w -= lr * g. With it b = g at the first step, then "
                 "b = momentum * b + (1 - dampening) * g, and w -= lr * b, or with Nesterov's "
                 "correction w -= lr * (g + momentum * b).",
      .fields = {rate_field<Sgd>(), field("momentum", &Sgd::momentum, kAtLeastZero),
                 field("dampening", &Sgd::dampening, kAtLeastZero),
                 field("nesterov", &Sgd::nesterov, "Needs momentum above 0 and no dampening."),
                 decay_field<Sgd>(),
                 field("decoupled_weight_decay", &Sgd::decoupled_weight_decay,
                       "Instead, w *= 1 - lr * weight_decay."),
                 field("rate_in_velocity", &Sgd::rate_in_velocity,
                       "As in scikit-learn, the velocity includes the rates of its steps: "
                       "v = momentum * v - lr * g, then w += v, or with Nesterov's correction "
                       "w += momentum * v - lr * g. The same while lr does not change. Needs "
                       "momentum above 0 and no dampening.")},
      .states = {{"momentum", "b, with momentum"},
                 {"velocity", "v, with rate_in_velocity"},
                 {"step_count", "with dampening"}},
      .names = {{"sgd", {}},
                {"momentum", {.momentum = 0.9}},
                {"nesterov", {.momentum = 0.9, .nesterov = true}}},
      .check = check_momentum,
  });
  table.add<LionRule>(Described<Lion>{
      .type = "Lion",
      .summary = "Lion",
      .source = "Chen et al., 2023, algorithm 2",
      .formula = "w = w * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g), then "
                 "m = beta2 * m + (1 - beta2) * g.",
      .fields = {rate_field<Lion>(), field("beta1", &Lion::beta1, kBelowOne),
                 field("beta2", &Lion::beta2, kBelowOne), decay_field<Lion>("Decoupled.")},
      .states = {{"lion_m", "m"}},
      .names = {{"lion", {}}},
  });
}

}  // namespace onnxgrad::train

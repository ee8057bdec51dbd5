#include <cmath>
#include <map>
#include <type_traits>
#include <utility>

#include "train/optimizers/table.h"

// Adam and related rules: m and v are averages of gradients and of their squares, corrected for
// their zero start. The corrections are float64 scalars: 1 - 0.999^1 has five digits in float32.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

// 1 - beta^t. A power of a constant is an exponential, which takes a tenth of the time of a power.
Value* correction(GraphBuilder& g, double beta, Value* t) {
  Value* one = g.scalar_like(t, 1);
  return beta == 0 ? one : g.sub(one, g.exp(g.scale(t, std::log(beta))));
}

struct Moments {
  Value* m = nullptr;
  Value* v = nullptr;
};

// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2.
Moments next_moments(StepWriter& writer, const WeightStep& step, Value* gradient,
                     const std::string& prefix, double beta1, double beta2) {
  GraphBuilder& g = writer.g();
  Value* m = writer.slot(prefix + "_m", step);
  Value* v = writer.slot(prefix + "_v", step);
  Moments next{
      .m = g.add(g.scale(m, beta1), g.scale(gradient, 1 - beta1)),
      .v = g.add(g.scale(v, beta2), g.scale(g.mul(gradient, gradient), 1 - beta2)),
  };
  writer.bind(m, next.m);
  writer.bind(v, next.v);
  return next;
}

// Adam and AdamW, which differ in the place of the decay.
template <class Spec>
class AdamRule : public UpdateRule {
 public:
  AdamRule(StepWriter& writer, const Spec& spec) : writer_(writer), spec_(spec) {}

  static bool updates_by_element(const Dims& /*dims*/) { return true; }

  // With c = sqrt(1 - beta2^t), lr / (1 - beta1^t) m / (sqrt(v) / c + epsilon) is
  // (lr c / (1 - beta1^t)) m / (sqrt(v) + epsilon c): one division less per element.
  Value* update(const WeightStep& step) override {
    const Scalars& scalars = scalars_of(step);
    Value* step_size = writer_.scalar(scalars.step_size, step.weight);
    Value* epsilon = writer_.scalar(scalars.epsilon, step.weight);
    if (spec_.amsgrad) return update_by_largest(step, step_size, epsilon);
    return writer_.apply({.rule = opdef::UpdateRule::kAdam,
                          .beta1 = spec_.beta1,
                          .share1 = 1 - spec_.beta1,
                          .beta2 = spec_.beta2,
                          .share2 = 1 - spec_.beta2},
                         step,
                         {.gradient = step.gradient,
                          .m = writer_.slot("adam_m", step),
                          .v = writer_.slot("adam_v", step),
                          .rate = step_size,
                          .epsilon = epsilon},
                         kDecay);
  }

 private:
  static constexpr auto kDecay =
      std::is_same_v<Spec, AdamW> ? StepWriter::Decay::kWeight : StepWriter::Decay::kGradient;
  struct Scalars {
    Value* step_size = nullptr;  // lr c / (1 - beta1^t)
    Value* epsilon = nullptr;    // epsilon c
  };

  // AMSGrad: the largest v so far in place of v.
  Value* update_by_largest(const WeightStep& step, Value* step_size, Value* epsilon) {
    GraphBuilder& g = writer_.g();
    const auto [weight, gradient] = writer_.decayed(step, kDecay);
    const Moments next = next_moments(writer_, step, gradient, "adam", spec_.beta1, spec_.beta2);
    Value* old = writer_.slot("adam_max_v", step);
    Value* largest = g.op("Max", {old, next.v});
    writer_.bind(old, largest);
    Value* direction = g.div(next.m, g.add(g.sqrt(largest), epsilon));
    return g.sub(weight, g.mul(step_size, direction));
  }

  const Scalars& scalars_of(const WeightStep& step) {
    Scalars& scalars = scalars_[{step.count, step.rate_factor}];
    if (scalars.step_size == nullptr) {
      GraphBuilder& g = writer_.g();
      Value* t = writer_.steps_after(step);
      Value* root = g.sqrt(correction(g, spec_.beta2, t));
      scalars.step_size =
          g.div(g.mul(writer_.wide_rate(step), root), correction(g, spec_.beta1, t));
      scalars.epsilon = g.scale(root, spec_.epsilon);
    }
    return scalars;
  }

  StepWriter& writer_;
  Spec spec_;
  std::map<std::pair<std::string, double>, Scalars> scalars_;  // by count and rate factor
};

class LambRule : public UpdateRule {
 public:
  LambRule(StepWriter& writer, const Lamb& spec) : writer_(writer), spec_(spec) {}

  Value* update(const WeightStep& step) override {
    GraphBuilder& g = writer_.g();
    const Moments next =
        next_moments(writer_, step, step.gradient, "lamb", spec_.beta1, spec_.beta2);
    const Scalars& scalars = scalars_of(step);
    Value* m = g.mul(next.m, writer_.scalar(scalars.m_factor, step.weight));
    Value* v = g.mul(next.v, writer_.scalar(scalars.v_factor, step.weight));
    Value* u = g.div(m, g.add(g.sqrt(v), g.scalar_like(v, spec_.epsilon)));
    if (step.weight_decay != 0) u = g.add(u, g.scale(step.weight, step.weight_decay));
    Value* trust = trust_ratio(norm(step.weight), norm(u));
    return g.sub(step.weight, g.mul(g.mul(writer_.rate(step), trust), u));
  }

 private:
  struct Scalars {
    Value* m_factor = nullptr;  // 1 / (1 - beta1^t)
    Value* v_factor = nullptr;  // 1 / (1 - beta2^t)
  };

  const Scalars& scalars_of(const WeightStep& step) {
    Scalars& scalars = scalars_[step.count];
    if (scalars.m_factor == nullptr) {
      GraphBuilder& g = writer_.g();
      Value* t = writer_.steps_after(step);
      const auto inverse = [&](double beta) {
        return g.div(g.scalar_like(t, 1), correction(g, beta, t));
      };
      scalars = {.m_factor = inverse(spec_.beta1), .v_factor = inverse(spec_.beta2)};
    }
    return scalars;
  }

  Value* norm(Value* x) {
    GraphBuilder& g = writer_.g();
    return g.sqrt(g.reduce_sum(g.mul(x, x), {}, false));
  }

  // |w| / |u|, or 1 if one of them is 0.
  Value* trust_ratio(Value* weight_norm, Value* update_norm) {
    GraphBuilder& g = writer_.g();
    Value* zero = g.scalar_like(weight_norm, 0);
    Value* one = g.scalar_like(weight_norm, 1);
    Value* is_known = g.op("And", {g.greater(weight_norm, zero), g.greater(update_norm, zero)});
    Value* divisor = g.where(is_known, update_norm, one);
    return g.where(is_known, g.div(weight_norm, divisor), one);
  }

  StepWriter& writer_;
  Lamb spec_;
  std::map<std::string, Scalars> scalars_;  // by count
};

template <class Spec>
std::vector<Field> moment_fields() {
  return {rate_field<Spec>(), field("beta1", &Spec::beta1, kBelowOne),
          field("beta2", &Spec::beta2, kBelowOne), field("epsilon", &Spec::epsilon, kAtLeastZero)};
}

template <class Spec>
std::vector<Field> adam_fields(std::string decay) {
  auto fields = moment_fields<Spec>();
  fields.push_back(decay_field<Spec>(std::move(decay)));
  fields.push_back(field("amsgrad", &Spec::amsgrad,
                         "Uses the largest v so far in place of v (Reddi, Kale and Kumar, "
                         "2018)."));
  return fields;
}

std::vector<Field> lamb_fields() {
  auto fields = moment_fields<Lamb>();
  fields.push_back(decay_field<Lamb>("Decoupled."));
  return fields;
}

const std::vector<StateInfo> kAdamStates{{"adam_m", "m"},
                                         {"adam_v", "v"},
                                         {"adam_max_v", "the largest v, with amsgrad"},
                                         {"step_count", "updates done"}};

}  // namespace

void register_adam(OptimizerTable& table) {
  table.add<AdamRule<Adam>>(Described<Adam>{
      .type = "Adam",
      .summary = "Adam",
      .source = "Kingma and Ba, 2014",
      .formula =
          "m = beta1 * m + (1 - beta1) * g, v = beta2 * v + (1 - beta2) * g^2, and at step t "
          "w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).",
      .fields = adam_fields<Adam>("g += weight_decay * w, before everything else."),
      .states = kAdamStates,
      .names = {{"adam", {}}},
  });
  table.add<AdamRule<AdamW>>(Described<AdamW>{
      .type = "AdamW",
      .summary = "Adam with decoupled weight decay",
      .source = "Loshchilov and Hutter, 2017",
      .formula = "w *= 1 - lr * weight_decay, then as in Adam.",
      .fields = adam_fields<AdamW>("Decoupled."),
      .states = kAdamStates,
      .names = {{"adamw", {}}},
  });
  table.add<LambRule>(Described<Lamb>{
      .type = "Lamb",
      .python_name = "LAMB",
      .summary = "LAMB",
      .source = "You et al., 2019, algorithm 2",
      .formula = "m and v as in Adam; u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) "
                 "+ weight_decay * w; w -= lr * |w| / |u| * u with Euclidean norms over each "
                 "weight (the factor |w| / |u| is 1 if one of them is 0).",
      .fields = lamb_fields(),
      .states = {{"lamb_m", "m"}, {"lamb_v", "v"}, {"step_count", "updates done"}},
      .names = {{"lamb", {}}},
  });
}

}  // namespace onnxgrad::train

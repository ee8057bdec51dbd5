#include <cmath>
#include <map>
#include <string>

#include "train/optimizers/averages.h"
#include "train/optimizers/table.h"

// Schedule-free AdamW. The weights are y, where gradients are taken; z and the average x are slots.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

class ScheduleFreeRule : public UpdateRule {
 public:
  ScheduleFreeRule(StepWriter& writer, const ScheduleFreeAdamW& spec)
      : writer_(writer), spec_(spec) {}

  Value* update(const WeightStep& step) override {
    GraphBuilder& g = writer_.g();
    const Scalars& scalars = scalars_of(step);
    Value* v = writer_.slot("schedule_free_v", step);
    Value* z = writer_.state("schedule_free_z/" + step.name, step.weight->initializer);
    Value* x = writer_.state(average_of(step.name), step.weight->initializer);
    Value* next_v = g.add(g.scale(v, spec_.beta2),
                          g.scale(g.mul(step.gradient, step.gradient), 1 - spec_.beta2));
    Value* root = g.sqrt(g.mul(next_v, writer_.scalar(scalars.v_factor, v)));
    Value* u = g.div(step.gradient, g.add(root, g.scalar_like(root, spec_.epsilon)));
    if (step.weight_decay != 0) u = g.add(u, g.scale(step.weight, step.weight_decay));
    Value* next_z = g.sub(z, g.mul(writer_.scalar(scalars.rate, step.weight), u));
    Value* next_x = g.add(g.mul(x, writer_.scalar(scalars.of_x, x)),
                          g.mul(next_z, writer_.scalar(scalars.of_z, x)));
    writer_.bind(v, next_v);
    writer_.bind(z, next_z);
    writer_.bind(x, next_x);
    return g.add(g.scale(next_z, 1 - spec_.beta1), g.scale(next_x, spec_.beta1));
  }

 private:
  struct Scalars {
    Value* rate = nullptr;
    Value* v_factor = nullptr;  // 1 / (1 - beta2^t)
    Value* of_x = nullptr;      // 1 - c
    Value* of_z = nullptr;      // c
  };
  struct Shares {
    Value* warm = nullptr;  // factor of the rate; nullptr: 1
    Value* c = nullptr;
  };

  // c = h / sum h with h = t^power max(rate)^rate_power. A constant factor of the rate cancels.
  const Shares& shares_of(const WeightStep& step) {
    Shares& shares = shares_[step.count];
    if (shares.c != nullptr) return shares;
    GraphBuilder& g = writer_.g();
    const std::string suffix = step.count.substr(
        step.count.find('/') == std::string::npos ? step.count.size() : step.count.find('/'));
    Value* t = writer_.steps_after(step);
    const auto number = [&](double value) { return g.scalar_like(t, value); };
    WeightStep common = step;
    common.rate_factor = 1;
    Value* rate = writer_.wide_rate(common);
    if (spec_.warm_up > 0) {
      const double length = 1.0 / static_cast<double>(spec_.warm_up);
      shares.warm = g.op("Min", {g.scale(t, length), number(1)});
      rate = g.mul(rate, shares.warm);
    }
    Value* largest = writer_.state("schedule_free_max_rate" + suffix, Tensor::scalar(0.0));
    Value* sum = writer_.state("schedule_free_sum" + suffix, Tensor::scalar(0.0));
    Value* next_largest = g.op("Max", {largest, rate});
    Value* h = g.pow(next_largest, number(spec_.rate_power));
    if (spec_.power != 0) h = g.mul(h, g.pow(t, number(spec_.power)));
    Value* next_sum = g.add(sum, h);
    writer_.bind(largest, next_largest);
    writer_.bind(sum, next_sum);
    Value* is_positive = g.greater(next_sum, number(0));
    shares.c = g.where(is_positive, g.div(h, g.where(is_positive, next_sum, number(1))), number(0));
    return shares;
  }

  const Scalars& scalars_of(const WeightStep& step) {
    Scalars& scalars = scalars_[{step.count, step.rate_factor}];
    if (scalars.rate != nullptr) return scalars;
    GraphBuilder& g = writer_.g();
    const Shares& shares = shares_of(step);
    Value* t = writer_.steps_after(step);
    Value* one = g.scalar_like(t, 1);
    scalars.rate = writer_.wide_rate(step);
    if (shares.warm != nullptr) scalars.rate = g.mul(scalars.rate, shares.warm);
    Value* decayed =
        spec_.beta2 == 0 ? g.scalar_like(t, 0) : g.exp(g.scale(t, std::log(spec_.beta2)));
    scalars.v_factor = g.div(one, g.sub(one, decayed));
    scalars.of_z = shares.c;
    scalars.of_x = g.sub(one, shares.c);
    return scalars;
  }

  StepWriter& writer_;
  ScheduleFreeAdamW spec_;
  std::map<std::string, Shares> shares_;                       // by count
  std::map<std::pair<std::string, double>, Scalars> scalars_;  // by count and rate factor
};

}  // namespace

void register_schedule_free(OptimizerTable& table) {
  table.add<ScheduleFreeRule>(Described<ScheduleFreeAdamW>{
      .type = "ScheduleFreeAdamW",
      .summary = "Schedule-free AdamW",
      .source = "Defazio et al., 2024",
      .formula =
          "The weights are y. v = beta2 * v + (1 - beta2) * g^2, "
          "u = g / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * y, r = lr * min(1, t / "
          "warm_up), z -= r * u, h = t^power * (largest r so far)^rate_power, c = h / (sum of h), "
          "x = (1 - c) * x + c * z, y = (1 - beta1) * z + beta1 * x. Evaluation, prediction and "
          "trained models use x.",
      .fields = {rate_field<ScheduleFreeAdamW>(),
                 field("beta1", &ScheduleFreeAdamW::beta1, kBelowOne),
                 field("beta2", &ScheduleFreeAdamW::beta2, kBelowOne),
                 field("epsilon", &ScheduleFreeAdamW::epsilon, kAtLeastZero),
                 decay_field<ScheduleFreeAdamW>("Decoupled, at y."),
                 field("warm_up", &ScheduleFreeAdamW::warm_up, kAtLeastZero, "Updates."),
                 field("power", &ScheduleFreeAdamW::power, kAtLeastZero),
                 field("rate_power", &ScheduleFreeAdamW::rate_power, kAtLeastZero)},
      .states = {{"average", "x"},
                 {"schedule_free_z", "z"},
                 {"schedule_free_v", "v"},
                 {"schedule_free_sum", "sum of h"},
                 {"schedule_free_max_rate", "largest r"},
                 {"step_count", "updates done"}},
      .names = {{"schedule_free_adamw", {}, {"schedule_free"}}},
  });
}

}  // namespace onnxgrad::train

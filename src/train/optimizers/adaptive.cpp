#include <map>
#include <utility>

#include "train/optimizers/table.h"

// Optimizers that divide by the root of a sum or an average of squared gradients.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;
using Rule = opdef::UpdateRule;

class AdagradRule : public UpdateRule {
 public:
  AdagradRule(StepWriter& writer, const Adagrad& spec) : writer_(writer), spec_(spec) {}

  static bool updates_by_element(const Dims& /*dims*/) { return true; }

  Value* update(const WeightStep& step) override {
    return writer_.apply({.rule = Rule::kRoot, .beta1 = 1}, step,
                         {.gradient = step.gradient,
                          .m = writer_.slot("adagrad_sum", step, spec_.initial_accumulator),
                          .rate = rate(step),
                          .epsilon = writer_.g().scalar_like(step.weight, spec_.epsilon)},
                         StepWriter::Decay::kGradient);
  }

 private:
  // lr / (1 + (t - 1) rate_decay)
  Value* rate(const WeightStep& step) {
    if (spec_.rate_decay == 0) return writer_.rate(step);
    Value*& rate = rates_[{step.count, step.rate_factor}];
    if (rate == nullptr) {
      GraphBuilder& g = writer_.g();
      Value* before = writer_.steps_before(step);
      Value* divisor = g.add(g.scale(before, spec_.rate_decay), g.scalar_like(before, 1));
      rate = g.div(writer_.wide_rate(step), divisor);
    }
    return writer_.scalar(rate, step.weight);
  }

  StepWriter& writer_;
  Adagrad spec_;
  std::map<std::pair<std::string, double>, Value*> rates_;  // by count and rate factor
};

class RmsPropRule : public UpdateRule {
 public:
  RmsPropRule(StepWriter& writer, const RmsProp& spec) : writer_(writer), spec_(spec) {}

  static bool updates_by_element(const Dims& /*dims*/) { return true; }

  Value* update(const WeightStep& step) override {
    GraphBuilder& g = writer_.g();
    if (!spec_.centered && spec_.momentum == 0) {
      return writer_.apply({.rule = Rule::kRoot, .beta1 = spec_.alpha, .share1 = 1 - spec_.alpha},
                           step,
                           {.gradient = step.gradient,
                            .m = writer_.slot("rmsprop_square", step),
                            .rate = writer_.rate(step),
                            .epsilon = g.scalar_like(step.weight, spec_.epsilon)},
                           StepWriter::Decay::kGradient);
    }
    Value* gradient = writer_.decayed(step, StepWriter::Decay::kGradient).gradient;
    Value* squares = average("rmsprop_square", step, g.mul(gradient, gradient));
    if (spec_.centered) {
      Value* mean = average("rmsprop_mean", step, gradient);
      Value* variance = g.sub(squares, g.mul(mean, mean));
      squares = g.op("Max", {variance, g.scalar_like(variance, 0)});  // rounding
    }
    Value* root = g.add(g.sqrt(squares), g.scalar_like(squares, spec_.epsilon));
    Value* direction = g.div(gradient, root);
    if (spec_.momentum != 0) {
      Value* old = writer_.slot("rmsprop_momentum", step);
      direction = g.add(g.scale(old, spec_.momentum), direction);
      writer_.bind(old, direction);
    }
    return g.sub(step.weight, g.mul(writer_.rate(step), direction));
  }

 private:
  // alpha a + (1 - alpha) x, bound to the slot `prefix`.
  Value* average(const std::string& prefix, const WeightStep& step, Value* x) {
    GraphBuilder& g = writer_.g();
    Value* old = writer_.slot(prefix, step);
    Value* next = g.add(g.scale(old, spec_.alpha), g.scale(x, 1 - spec_.alpha));
    writer_.bind(old, next);
    return next;
  }

  StepWriter& writer_;
  RmsProp spec_;
};

}  // namespace

void register_adaptive(OptimizerTable& table) {
  table.add<AdagradRule>(Described<Adagrad>{
      .type = "Adagrad",
      .summary = "Adagrad",
      .source = "Duchi, Hazan and Singer, 2011",
      .formula = "s += g^2; w -= lr / (1 + (t - 1) * rate_decay) * g / (sqrt(s) + epsilon).",
      .fields = {rate_field<Adagrad>(), field("rate_decay", &Adagrad::rate_decay, kAtLeastZero),
                 decay_field<Adagrad>(),
                 field("initial_accumulator", &Adagrad::initial_accumulator, kAtLeastZero,
                       "Initial value of s."),
                 field("epsilon", &Adagrad::epsilon, kAtLeastZero)},
      .states = {{"adagrad_sum", "s"}, {"step_count", "with rate_decay"}},
      .names = {{"adagrad", {}}},
  });
  table.add<RmsPropRule>(Described<RmsProp>{
      .type = "RmsProp",
      .python_name = "RMSProp",
      .summary = "RMSProp",
      .source = "Hinton, 2012, as torch.optim.RMSprop; centered: Graves, 2013",
      .formula = "s = alpha * s + (1 - alpha) * g^2; r = sqrt(s) + epsilon; w -= lr * g / r, or "
                 "with momentum b = momentum * b + g / r and w -= lr * b.",
      .fields = {rate_field<RmsProp>(), field("alpha", &RmsProp::alpha, kBelowOne),
                 field("epsilon", &RmsProp::epsilon, kAtLeastZero), decay_field<RmsProp>(),
                 field("momentum", &RmsProp::momentum, kAtLeastZero),
                 field("centered", &RmsProp::centered,
                       "a = alpha * a + (1 - alpha) * g and "
                       "r = sqrt(max(s - a^2, 0)) + epsilon.")},
      .states = {{"rmsprop_square", "s"},
                 {"rmsprop_mean", "a, if centered"},
                 {"rmsprop_momentum", "b, with momentum"}},
      .names = {{"rmsprop", {}}},
  });
}

}  // namespace onnxgrad::train

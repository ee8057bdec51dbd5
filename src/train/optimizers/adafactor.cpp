#include <algorithm>
#include <cmath>
#include <limits>

#include "train/optimizers/table.h"

// Adafactor: the second moment of a weight of two or more axes is the product of those of its rows
// and columns, so that the state is as long as both together.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

class AdafactorRule : public UpdateRule {
 public:
  AdafactorRule(StepWriter& writer, const Adafactor& spec) : writer_(writer), spec_(spec) {}

  // w *= 1 - lr decay, v by t^beta2_decay, u = g / sqrt(v), and
  // w -= max(eps2, rms(w)) min(lr, 1 / sqrt(t)) / max(1, rms(u) / d) u, with w before its decay.
  Value* update(const WeightStep& step) override {
    GraphBuilder& g = writer_.g();
    const DataType dtype = step.weight->dtype();
    const double smallest = spec_.epsilon1 > 0            ? spec_.epsilon1
                            : dtype == DataType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                                          : std::numeric_limits<float>::epsilon();
    Value* t = writer_.steps_after(step);
    Value* rate = writer_.wide_rate(step);
    Value* one = g.scalar_like(t, 1);
    Value* share = writer_.scalar(g.pow(t, g.scalar_like(t, spec_.beta2_decay)), step.weight);
    Value* bound = writer_.scalar(g.op("Min", {rate, g.div(one, g.sqrt(t))}), step.weight);
    Value* size =
        g.op("Max", {root_mean_square(step.weight), g.scalar_like(step.weight, spec_.epsilon2)});
    Value* v = second_moment(step, share, smallest);
    Value* least = g.scalar_like(v, smallest * smallest);
    Value* u = g.div(step.gradient, g.sqrt(g.op("Max", {v, least})));
    Value* excess =
        g.op("Max", {g.scale(root_mean_square(u), 1 / spec_.clip_threshold), g.scalar_like(u, 1)});
    Value* factor = g.div(g.mul(size, bound), excess);
    const auto decayed = writer_.decayed(step, StepWriter::Decay::kWeight);
    return g.sub(decayed.weight, g.mul(factor, u));
  }

 private:
  static bool is_factored(const Dims& dims) { return dims.rank() > 1 && dims.num_elements() > 0; }

  Value* root_mean_square(Value* x) {
    GraphBuilder& g = writer_.g();
    const auto count = static_cast<double>(x->type.fixed_dims().num_elements());
    return g.scale(g.sqrt(g.reduce_sum(g.mul(x, x), {}, false)),
                   1 / std::sqrt(std::max(count, 1.)));
  }

  Value* average(const std::string& name, Value* x, Value* share) {
    GraphBuilder& g = writer_.g();
    Value* old = writer_.state(name, writer_.zeros(x->dtype(), x->type.fixed_dims()));
    Value* next = g.add(old, g.mul(share, g.sub(x, old)));
    writer_.bind(old, next);
    return next;
  }

  Value* second_moment(const WeightStep& step, Value* share, double smallest) {
    GraphBuilder& g = writer_.g();
    Value* squares = g.mul(step.gradient, step.gradient);
    if (!is_factored(step.weight->type.fixed_dims())) {
      return average("adafactor_v/" + step.name, squares, share);
    }
    Value* rows = average("adafactor_row/" + step.name, g.reduce_mean(squares, {-1}, true), share);
    Value* columns =
        average("adafactor_column/" + step.name, g.reduce_mean(squares, {-2}, true), share);
    Value* mean = g.reduce_mean(rows, {-2}, true);
    return g.div(g.mul(rows, columns), g.op("Max", {mean, g.scalar_like(mean, smallest)}));
  }

  StepWriter& writer_;
  Adafactor spec_;
};

}  // namespace

void register_adafactor(OptimizerTable& table) {
  table.add<AdafactorRule>(Described<Adafactor>{
      .type = "Adafactor",
      .summary = "Adafactor: second moments by rows and columns, updates of bounded size",
      .source = "Shazeer and Stern, 2018",
      .formula =
          "s = t^beta2_decay. For a weight of two or more axes, row += s * (mean of g^2 over the "
          "last axis - row), column += s * (mean of g^2 over the axis before it - column), "
          "v = row * column / max(mean of row, epsilon1); else v += s * (g^2 - v). "
          "u = g / sqrt(max(v, epsilon1^2)), and w = (1 - lr * weight_decay) * w - "
          "max(epsilon2, rms(w)) * min(lr, 1 / sqrt(t)) / max(1, rms(u) / clip_threshold) * u.",
      .fields = {rate_field<Adafactor>("Largest relative step."),
                 field("beta2_decay", &Adafactor::beta2_decay, {.minimum = -10, .maximum = 0}),
                 zero_is("the epsilon of the weight's type",
                         field("epsilon1", &Adafactor::epsilon1, kAtLeastZero)),
                 field("epsilon2", &Adafactor::epsilon2, kAtLeastZero),
                 field("clip_threshold", &Adafactor::clip_threshold, kAboveZero),
                 decay_field<Adafactor>("Decoupled.")},
      .states = {{"adafactor_row", "row"},
                 {"adafactor_column", "column"},
                 {"adafactor_v", "v, of vectors"},
                 {"step_count", "updates done"}},
      .names = {{"adafactor", {}}},
  });
}

}  // namespace onnxgrad::train

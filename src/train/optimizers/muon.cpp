#include <algorithm>
#include <cmath>
#include <memory>

#include "train/optimizers/table.h"

// Muon: the update of a matrix is its momentum with all singular values brought near 1.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

// Jordan's coefficients: p(s) = a s + b s^3 + c s^5 has the largest slope at 0 for which singular
// values in [0, 1] end up, after a few iterations, in [0.7, 1.2].
constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;

// RMS of an update's elements, similar to Adam's: one rate and one decay work for all weights.
constexpr double kRootMeanSquare = 0.2;

class MuonRule : public UpdateRule {
 public:
  MuonRule(StepWriter& writer, const Muon& spec)
      : writer_(writer),
        spec_(spec),
        others_(
            optimizer_rows().make_rule(writer, AdamW{.beta1 = spec.beta1, .beta2 = spec.beta2})) {}

  static bool updates_by_element(const Dims& dims) { return !is_matrix(dims); }

  Value* update(const WeightStep& step) override {
    const Dims dims = step.weight->type.fixed_dims();
    if (!is_matrix(dims)) return others_->update(step);
    GraphBuilder& g = writer_.g();
    const auto [weight, gradient] = writer_.decayed(step, StepWriter::Decay::kWeight);
    Value* old = writer_.slot("muon_m", step);
    const auto average = [&](Value* m) {
      return g.add(g.scale(m, spec_.momentum), g.scale(gradient, 1 - spec_.momentum));
    };
    Value* next = average(old);
    writer_.bind(old, next);
    Value* direction = orthogonal(spec_.nesterov ? average(next) : next, dims[0] > dims[1]);
    const double size = static_cast<double>(std::max(dims[0], dims[1]));
    direction = g.scale(direction, kRootMeanSquare * std::sqrt(size));
    return g.sub(weight, g.mul(writer_.rate(step), direction));
  }

 private:
  static bool is_matrix(const Dims& dims) { return dims.rank() == 2 && dims.num_elements() > 0; }

  // Newton-Schulz: with x = m / (|m| + epsilon), x = a x + b (x x^T) x + c (x x^T)^2 x. The smaller
  // of the two products is used: x is transposed first if it is tall.
  Value* orthogonal(Value* m, bool is_tall) {
    GraphBuilder& g = writer_.g();
    Value* norm = g.sqrt(g.reduce_sum(g.mul(m, m), {}, false));
    Value* x = g.div(m, g.add(norm, g.scalar_like(norm, spec_.epsilon)));
    if (is_tall) x = g.transpose(x, {1, 0});
    for (std::int64_t i = 0; i < spec_.iterations; ++i) {
      Value* square = g.matmul(x, g.transpose(x, {1, 0}));
      Value* factor = g.add(g.scale(square, kB), g.scale(g.matmul(square, square), kC));
      x = g.add(g.scale(x, kA), g.matmul(factor, x));
    }
    return is_tall ? g.transpose(x, {1, 0}) : x;
  }

  StepWriter& writer_;
  Muon spec_;
  std::unique_ptr<UpdateRule> others_;
};

}  // namespace

void register_muon(OptimizerTable& table) {
  table.add<MuonRule>(Described<Muon>{
      .type = "Muon",
      .summary = "Muon: orthogonalised momentum for matrices, AdamW for all other weights",
      .source = "Jordan et al., 2024; the factor 0.2 * sqrt(max(rows, columns)): Liu et al., 2025",
      .formula =
          "For a two-dimensional weight, w *= 1 - lr * weight_decay, "
          "m = momentum * m + (1 - momentum) * g, u = m, or with Nesterov's correction "
          "u = momentum * m + (1 - momentum) * g, and "
          "w -= lr * 0.2 * sqrt(max(rows, columns)) * orthogonal(u). There x starts as "
          "u / (|u| + epsilon), with the Euclidean norm of all elements, and becomes "
          "3.4445 * x - 4.775 * (x x^T) x + 2.0315 * (x x^T)^2 x in each iteration. All other "
          "weights are updated by AdamW with lr, weight_decay, beta1 and beta2.",
      .fields = {rate_field<Muon>("Learning rate; one that suits AdamW."),
                 field("momentum", &Muon::momentum, kBelowOne), field("nesterov", &Muon::nesterov),
                 decay_field<Muon>("Decoupled."),
                 field("iterations", &Muon::iterations, kAtLeastOne, "Of Newton-Schulz."),
                 field("epsilon", &Muon::epsilon, kAtLeastZero),
                 field("beta1", &Muon::beta1, kBelowOne, "Of AdamW."),
                 field("beta2", &Muon::beta2, kBelowOne, "Of AdamW.")},
      .states = {{"muon_m", "m, of matrices"},
                 {"adam_m", "m"},
                 {"adam_v", "v"},
                 {"step_count", "updates done"}},
      .names = {{"muon", {}}},
  });
}

}  // namespace onnxgrad::train

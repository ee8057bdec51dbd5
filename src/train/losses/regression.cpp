#include "train/losses/table.h"

// Losses of numbers. s: scores, t: targets, d = s - t, e: the loss of an element.

namespace onnxgrad::train {

using ir::GraphBuilder;
using ir::Value;

namespace {

// The smallest norm that cosine divides by, and what Poisson adds before a logarithm.
constexpr double kEpsilon = 1e-8;

Value* difference(GraphBuilder& g, const LossInputs& in) { return g.sub(in.scores, in.target); }

// x . y for each row of [N, K], or each vector along the last axis: [N, ...].
Value* row_dot(GraphBuilder& g, Value* x, Value* y) {
  return g.reduce_sum(g.mul(x, y), {static_cast<std::int64_t>(x->type.rank()) - 1},
                      /*keepdims=*/false);
}

// max(|x|, epsilon) for each row. The square is clamped, not its root: the slope at 0 is finite.
Value* row_norm(GraphBuilder& g, Value* x) {
  Value* square = row_dot(g, x, x);
  return g.sqrt(g.op("Max", {square, g.scalar_like(square, kEpsilon * kEpsilon)}));
}

// e = d^2
Elements write_squared_error(GraphBuilder& g, const SquaredError&, const LossInputs& in) {
  Value* d = difference(g, in);
  return {.values = g.mul(d, d), .mean_of_columns = true};
}

// e = |d|
Elements write_absolute_error(GraphBuilder& g, const AbsoluteError&, const LossInputs& in) {
  return {.values = g.abs(difference(g, in)), .mean_of_columns = true};
}

// e = q (|d| - q / 2) with q = min(|d|, delta): d^2 / 2 inside, delta (|d| - delta / 2) outside.
Elements write_huber(GraphBuilder& g, const Huber& spec, const LossInputs& in) {
  Value* magnitude = g.abs(difference(g, in));
  Value* q = g.op("Min", {magnitude, g.scalar_like(magnitude, spec.delta)});
  return {.values = g.mul(q, g.sub(magnitude, g.scale(q, 0.5))), .mean_of_columns = true};
}

// e = q / beta (|d| - q / 2) with q = min(|d|, beta)
Elements write_smooth_l1(GraphBuilder& g, const SmoothL1& spec, const LossInputs& in) {
  Elements elements = write_huber(g, {.delta = spec.beta}, in);
  if (spec.beta != 1) elements.values = g.scale(elements.values, 1 / spec.beta);
  return elements;
}

// e = l1 |d| + l2 d^2
Elements write_elastic(GraphBuilder& g, const Elastic& spec, const LossInputs& in) {
  Value* d = difference(g, in);
  return {.values = g.add(g.scale(g.abs(d), spec.l1_weight), g.scale(g.mul(d, d), spec.l2_weight)),
          .mean_of_columns = true};
}

// e = exp(s) - t s, or s - t log(s + epsilon)
Elements write_poisson(GraphBuilder& g, const Poisson& spec, const LossInputs& in) {
  Value* s = in.scores;
  Value* mean = spec.log_input ? g.exp(s) : s;
  Value* log_mean = spec.log_input ? s : g.log(g.add(s, g.scalar_like(s, kEpsilon)));
  return {.values = g.sub(mean, g.mul(in.target, log_mean)), .mean_of_columns = true};
}

// e = 1 - s.t / (|s| |t|) of a row
Elements write_cosine(GraphBuilder& g, const Cosine&, const LossInputs& in) {
  Value* norms = g.mul(row_norm(g, in.scores), row_norm(g, in.target));
  Value* cosine = g.div(row_dot(g, in.scores, in.target), norms);
  return {.values = g.sub(g.scalar_like(cosine, 1), cosine), .mean_of_columns = true};
}

const std::string kLikeScores = " s, t: [N, K] or [N], floating.";

}  // namespace

void register_regression(LossTable& table) {
  const LossKind numbers{.target = TargetKind::kNumbers};
  table.add<write_squared_error>(
      numbers, Described<SquaredError>{
                   .type = "SquaredError",
                   .summary = "squared error",
                   .source = "torch: MSELoss",
                   .formula = "d^2, averaged over the outputs of a row." + kLikeScores,
                   .names = {{"squared_error", {}, {"mse", "l2", "MSELoss", "mean_squared_error"}}},
               });
  table.add<write_absolute_error>(
      numbers,
      Described<AbsoluteError>{
          .type = "AbsoluteError",
          .summary = "absolute error",
          .source = "torch: L1Loss",
          .formula = "abs(d), averaged over the outputs of a row." + kLikeScores,
          .names = {{"absolute_error", {}, {"mae", "l1", "L1Loss", "mean_absolute_error"}}},
      });
  table.add<write_huber>(
      numbers, Described<Huber>{
                   .type = "Huber",
                   .summary = "Huber loss",
                   .source = "torch: HuberLoss",
                   .formula = "d^2 / 2 where abs(d) <= delta, else delta * (abs(d) - delta / 2); "
                              "averaged over the outputs." +
                              kLikeScores,
                   .fields = {field("delta", &Huber::delta, kAboveZero)},
                   .names = {{"huber", {}, {"HuberLoss"}}},
               });
  table.add<write_smooth_l1>(
      numbers, Described<SmoothL1>{
                   .type = "SmoothL1",
                   .summary = "smooth L1 loss",
                   .source = "torch: SmoothL1Loss",
                   .formula = "The Huber loss divided by beta: d^2 / (2 beta) where "
                              "abs(d) <= beta, else abs(d) - beta / 2; averaged over the outputs." +
                              kLikeScores,
                   .fields = {field("beta", &SmoothL1::beta, kAboveZero)},
                   .names = {{"smooth_l1", {}, {"SmoothL1Loss"}}},
               });
  table.add<write_elastic>(
      numbers,
      Described<Elastic>{
          .type = "Elastic",
          .summary = "elastic loss",
          .source = "onnxcustom: ElasticLearningLoss",
          .formula =
              "l1_weight * abs(d) + l2_weight * d^2, averaged over the outputs." + kLikeScores,
          .fields = {field("l1_weight", &Elastic::l1_weight, kAtLeastZero),
                     field("l2_weight", &Elastic::l2_weight, kAtLeastZero)},
          .names = {{"elastic", {}, {"ElasticLearningLoss"}}},
          .check =
              [](const Elastic& spec) {
                if (spec.l1_weight + spec.l2_weight > 0) return;
                throw ModelError({.what = "elastic loss: l1_weight + l2_weight is 0, expected a "
                                          "number above 0",
                                  .hint = "Give one of them, or leave both out."});
              },
      });
  table.add<write_poisson>(
      numbers,
      Described<Poisson>{
          .type = "Poisson",
          .summary = "Poisson loss",
          .source = "torch: PoissonNLLLoss",
          .formula = "exp(s) - t s, or s - t log(s + 1e-8) without `log_input`; averaged over the "
                     "outputs. s, t: [N, K] or [N]; t >= 0 are counts.",
          .fields = {field("log_input", &Poisson::log_input,
                           "Whether s is the logarithm of the expected count, or the expected "
                           "count itself.")},
          .names = {{"poisson", {}, {"PoissonNLLLoss"}}},
      });
  table.add<write_cosine>(
      {.target = TargetKind::kNumbers, .scores = ScoreShape::kVectors},
      Described<Cosine>{
          .type = "Cosine",
          .summary = "cosine loss",
          .source = "torch: cosine_similarity",
          .formula = "1 - s.t / (norm(s) norm(t)), with norms of at least 1e-8. s, t: [N, K]; "
                     "their rows are vectors. With more axes, vectors are along the last, and "
                     "their losses are averaged.",
          .names = {{"cosine", {}, {"cosine_similarity"}}},
      });
}

}  // namespace onnxgrad::train

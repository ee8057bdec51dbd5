#include "train/losses/rules.h"

// Losses of numbers. s: scores, t: targets, d = s - t, e: the loss of an element.

namespace onnxgrad::train {

using ir::GraphBuilder;
using ir::Value;

namespace {

// The smallest norm that cosine divides by, and what Poisson adds before a logarithm.
constexpr double kEpsilon = 1e-8;

Value* difference(GraphBuilder& g, const LossInputs& in) { return g.sub(in.scores, in.target); }

// x . y for each row of [N, K]: [N].
Value* row_dot(GraphBuilder& g, Value* x, Value* y) {
  return g.reduce_sum(g.mul(x, y), {1}, /*keepdims=*/false);
}

// max(|x|, epsilon) for each row. The square is clamped, not its root: the slope at 0 is finite.
Value* row_norm(GraphBuilder& g, Value* x) {
  Value* square = row_dot(g, x, x);
  return g.sqrt(g.op("Max", {square, g.scalar_like(square, kEpsilon * kEpsilon)}));
}

}  // namespace

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

}  // namespace onnxgrad::train

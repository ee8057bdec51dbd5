#include <limits>

#include "train/losses/table.h"

// The loss of a student on the scores of its teacher. s: scores, t: the teacher's, T: the
// temperature, e: the loss of an element.

namespace onnxgrad::train {

using ir::GraphBuilder;
using ir::Value;

namespace {

// log(max(p, m)) with the smallest normal number m.
Value* log_of_probabilities(GraphBuilder& g, Value* p) {
  const double floor = p->dtype() == DataType::kFloat64 ? std::numeric_limits<double>::min()
                                                        : std::numeric_limits<float>::min();
  return g.log(g.op("Max", {p, g.scalar_like(p, floor)}));
}

Value* one_minus(GraphBuilder& g, Value* x) { return g.sub(g.scalar_like(x, 1), x); }

// e = T^2 (p log(p / q) + (1 - p) log((1 - p) / (1 - q))) with p = sigmoid(t / T), q = sigmoid(s /
// T); log q = -softplus(-s / T), log(1 - q) = -softplus(s / T)
Elements write_binary_distillation(GraphBuilder& g, const Distillation& spec, Value* s, Value* t) {
  if (spec.probabilities) {
    t = g.sub(log_of_probabilities(g, t), log_of_probabilities(g, one_minus(g, t)));
  }
  s = g.scale(s, 1 / spec.temperature);
  t = g.scale(t, 1 / spec.temperature);
  const auto softplus = [&](Value* x) { return g.op("Softplus", {x}); };
  Value* p = g.op("Sigmoid", {t});
  Value* right = g.mul(p, g.sub(softplus(g.neg(s)), softplus(g.neg(t))));
  Value* wrong = g.mul(one_minus(g, p), g.sub(softplus(s), softplus(t)));
  return {.values = g.scale(g.add(right, wrong), spec.temperature * spec.temperature),
          .mean_of_columns = true};
}

// e = T^2 sum_c p[c] (log p[c] - log q[c]) with p = softmax(t / T), q = softmax(s / T)
Elements write_distillation(GraphBuilder& g, const Distillation& spec, const LossInputs& in) {
  if (spec.binary) return write_binary_distillation(g, spec, in.scores, in.target);
  const auto log_softmax = [&](Value* x) {
    return g.op("LogSoftmax", {g.scale(x, 1 / spec.temperature)},
                {{.name = "axis", .value = std::int64_t{1}}});
  };
  Value* log_q = log_softmax(in.scores);
  Value* log_p = log_softmax(spec.probabilities ? log_of_probabilities(g, in.target) : in.target);
  Value* terms = g.mul(g.exp(log_p), g.sub(log_p, log_q));
  Value* divergence = g.reduce_sum(terms, {1}, /*keepdims=*/false);
  return {.values = g.scale(divergence, spec.temperature * spec.temperature),
          .mean_of_columns = true};
}

}  // namespace

void register_distillation(LossTable& table) {
  table.add<write_distillation>(
      {.target = TargetKind::kNumbers, .scores = ScoreShape::kClassesPlaces, .takes_scores = true},
      Described<Distillation>{
          .type = "Distillation",
          .summary = "distillation",
          .source = "Hinton, Vinyals and Dean 2015, arXiv:1503.02531",
          .formula = "T^2 sum_c p[c] (log p[c] - log q[c]) with p = softmax(t / T), q = softmax(s "
                     "/ T). s, t: [N, C], the scores of a student and of its teacher before any "
                     "Softmax; with more axes, the mean over the positions of a row. With "
                     "teacher=, the teacher computes t.",
          .fields = {field("temperature", &Distillation::temperature, kTemperature, "T."),
                     field("probabilities", &Distillation::probabilities,
                           "Whether t are probabilities instead of scores."),
                     field("binary", &Distillation::binary,
                           "Whether each column is a class of its own, with a sigmoid; the mean "
                           "over the columns.")},
          .names = {{"distillation", {}, {}}},
      });
}

}  // namespace onnxgrad::train

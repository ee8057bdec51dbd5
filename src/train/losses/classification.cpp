#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "train/losses/losses.h"
#include "train/losses/table.h"

// Losses of classes. s: scores, p: probabilities, t: targets (class numbers, or numbers in [0, 1]),
// e: the loss of an element.

namespace onnxgrad::train {

using ir::GraphBuilder;
using ir::Value;

namespace {

// Class numbers [N] as numbers shaped like the one-column scores.
Value* target_column(GraphBuilder& g, Value* target, Value* scores) {
  Value* numbers = g.cast_like(target, scores);
  return scores->type.rank() == 1 ? numbers : g.unsqueeze(numbers, {1});
}

// 2t - 1: -1 for class 0, +1 for class 1.
Value* sign_of(GraphBuilder& g, Value* t) { return g.sub(g.scale(t, 2), g.scalar_like(t, 1)); }

double smallest_normal(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return std::numeric_limits<double>::min();
    case DataType::kFloat16:
      return 0x1p-14;
    default:
      return std::numeric_limits<float>::min();  // bfloat16 has float32's exponents
  }
}

// log(max(p, m)); m = 0 means the smallest normal number.
Value* clamped_log(GraphBuilder& g, Value* p, double min_probability) {
  const double floor = min_probability > 0 ? min_probability : smallest_normal(p->dtype());
  return g.log(g.op("Max", {p, g.scalar_like(p, floor)}));
}

// The numbers as a constant of `like`'s type and shape [n], or [n, 1, ...] with `rank` axes.
Value* numbers_like(GraphBuilder& g, Value* like, const std::vector<double>& numbers,
                    std::size_t rank) {
  std::vector<std::int64_t> dims(rank, 1);
  dims[0] = static_cast<std::int64_t>(numbers.size());
  return g.constant(Tensor::from(numbers, Dims(std::move(dims))).cast(like->dtype()), "weights");
}

// sum_c w[c] * x[:, c, ...]; no weights: all 1.
Value* sum_of_classes(GraphBuilder& g, const std::vector<double>& weights, Value* x) {
  if (!weights.empty()) x = g.mul(x, numbers_like(g, x, weights, x->type.rank() - 1));
  return g.reduce_sum(x, {1}, /*keepdims=*/false);
}

// e = -sum_c w[c] log p[c] ((1 - a) t[c] + a / C)
Elements write_soft_targets(GraphBuilder& g, const SoftmaxCrossEntropy& spec,
                            const LossInputs& in) {
  Value* log_p = g.op("LogSoftmax", {in.scores}, {{.name = "axis", .value = std::int64_t{1}}});
  Value* target = in.target;
  if (spec.label_smoothing != 0) {
    const auto classes = static_cast<double>((*in.scores->type.shape)[1].value());
    target = g.add(g.scale(target, 1 - spec.label_smoothing),
                   g.scalar_like(target, spec.label_smoothing / classes));
  }
  return {.values = g.neg(sum_of_classes(g, spec.class_weights, g.mul(target, log_p))),
          .mean_of_columns = true};
}

// Whether a position is of the ignored class: bool, shaped like the target.
Value* is_of_class(GraphBuilder& g, Value* target, std::int64_t number) {
  return g.equal(target, g.int_scalar(number));
}

// w[t], 0 for ignored rows; nullptr if all count 1.
Value* class_counts(GraphBuilder& g, const SoftmaxCrossEntropy& spec, const LossInputs& in) {
  Value* target = in.target;
  Value* is_ignored = nullptr;
  if (spec.ignore_index) {
    is_ignored = is_of_class(g, target, *spec.ignore_index);
    target = g.where(is_ignored, g.int_scalar(0), target);
  }
  Value* counts = nullptr;
  if (!spec.class_weights.empty()) {
    counts = g.gather(numbers_like(g, in.scores, spec.class_weights, 1), target, 0);
  }
  if (is_ignored == nullptr) return counts;
  if (counts == nullptr) return g.cast_like(g.op("Not", {is_ignored}), in.scores);
  return g.where(is_ignored, g.scalar_like(counts, 0), counts);
}

// y = +1 in the column of the row's class, -1 elsewhere; shaped like the scores.
Value* class_signs(GraphBuilder& g, Value* scores, Value* target) {
  if (is_single_column(*scores)) return sign_of(g, target_column(g, target, scores));
  const auto classes = scores->type.shape->back().value();
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(classes));
  for (std::int64_t c = 0; c < classes; ++c) numbers[static_cast<std::size_t>(c)] = c;
  Value* is_class = g.equal(g.unsqueeze(target, {1}), g.ints(numbers));
  return g.where(is_class, g.scalar_like(scores, 1), g.scalar_like(scores, -1));
}

// e = (1 - a) w[t] (-log p[t]) + a / C sum_c w[c] (-log p[c]), 0 for ignored rows; p = softmax(s)
Elements write_softmax_cross_entropy(GraphBuilder& g, const SoftmaxCrossEntropy& spec,
                                     const LossInputs& in) {
  if (spec.one_hot) return write_soft_targets(g, spec, in);
  std::vector<ir::Attribute> attributes{{.name = "reduction", .value = std::string("none")}};
  if (spec.ignore_index) {
    attributes.push_back({.name = "ignore_index", .value = *spec.ignore_index});
  }
  std::vector<Value*> inputs{in.scores, in.target};
  if (!spec.class_weights.empty()) {
    inputs.push_back(numbers_like(g, in.scores, spec.class_weights, 1));
  }
  Elements elements{.values = g.op("SoftmaxCrossEntropyLoss", inputs, attributes),
                    .mean_of_columns = true,
                    .counts = class_counts(g, spec, in)};
  if (spec.label_smoothing != 0) {
    const auto classes = static_cast<double>((*in.scores->type.shape)[1].value());
    Value* log_p = g.op("LogSoftmax", {in.scores}, {{.name = "axis", .value = std::int64_t{1}}});
    Value* spread = sum_of_classes(g, spec.class_weights, log_p);
    if (spec.ignore_index) {
      Value* is_ignored = is_of_class(g, in.target, *spec.ignore_index);
      spread = g.where(is_ignored, g.scalar_like(spread, 0), spread);
    }
    elements.values = g.sub(g.scale(elements.values, 1 - spec.label_smoothing),
                            g.scale(spread, spec.label_smoothing / classes));
  }
  return elements;
}

// Classes: e = log(1 + exp(-(2t - 1) s)), which is accurate for any s;
// numbers t in [0, 1]: e = log(1 + exp(s)) - t s.
Elements write_binary_cross_entropy(GraphBuilder& g, const BinaryCrossEntropy& spec,
                                    const LossInputs& in) {
  if (is_single_column(*in.scores) && !spec.soft_targets) {
    Value* margin = g.mul(sign_of(g, target_column(g, in.target, in.scores)), in.scores);
    return {.values = g.op("Softplus", {g.neg(margin)}), .mean_of_columns = true};
  }
  return {.values = g.sub(g.op("Softplus", {in.scores}), g.mul(in.target, in.scores)),
          .mean_of_columns = true};
}

// e = -(t log p + (1 - t) log(1 - p)), both logarithms clamped
Elements write_log_loss(GraphBuilder& g, const LogLoss& spec, const LossInputs& in) {
  Value* p = in.scores;
  const bool are_classes = is_single_column(*p) && !spec.soft_targets;
  Value* t = are_classes ? target_column(g, in.target, p) : in.target;
  Value* one = g.scalar_like(p, 1);
  Value* inside = g.mul(t, clamped_log(g, p, spec.min_probability));
  Value* outside = g.mul(g.sub(one, t), clamped_log(g, g.sub(one, p), spec.min_probability));
  return {.values = g.neg(g.add(inside, outside)), .mean_of_columns = true};
}

// e = -log(max(p[t], m)), 0 for ignored rows
Elements write_negative_log_likelihood(GraphBuilder& g, const NegativeLogLikelihood& spec,
                                       const LossInputs& in) {
  Value* target = in.target;
  Value* is_ignored = nullptr;
  if (spec.ignore_index) {
    is_ignored = is_of_class(g, target, *spec.ignore_index);
    target = g.where(is_ignored, g.int_scalar(0), target);
  }
  Value* picked = g.op("GatherElements", {in.scores, g.unsqueeze(target, {1})},
                       {{.name = "axis", .value = std::int64_t{1}}});
  Elements elements{.values = g.squeeze(g.neg(clamped_log(g, picked, spec.min_probability)), {1}),
                    .mean_of_columns = true};
  if (is_ignored != nullptr) {
    elements.values = g.where(is_ignored, g.scalar_like(picked, 0), elements.values);
    elements.counts = g.cast_like(g.op("Not", {is_ignored}), picked);
  }
  return elements;
}

// e = sum_c t[c] (log t[c] - log p[c]); p = softmax(s)
Elements write_kl_divergence(GraphBuilder& g, const KlDivergence&, const LossInputs& in) {
  Value* log_p = g.op("LogSoftmax", {in.scores}, {{.name = "axis", .value = std::int64_t{1}}});
  Value* log_t = clamped_log(g, in.target, 0);
  Value* terms = g.mul(in.target, g.sub(log_t, log_p));
  return {.values = g.reduce_sum(terms, {1}, /*keepdims=*/false), .mean_of_columns = true};
}

// e = log(1 + exp(-z)), max(0, 1 - z), its square, or its square for z >= -1 and else -4 z; z = y s
Elements write_one_vs_rest(GraphBuilder& g, const OneVsRest& spec, const LossInputs& in) {
  Value* z = g.mul(class_signs(g, in.scores, in.target), in.scores);
  Elements elements{.mean_of_columns = spec.average};
  if (spec.kind == OneVsRest::Kind::kLog) {
    elements.values = g.op("Softplus", {g.neg(z)});
    return elements;
  }
  Value* hinge = g.op("Relu", {g.sub(g.scalar_like(z, 1), z)});
  if (spec.kind == OneVsRest::Kind::kHinge) {
    elements.values = hinge;
  } else if (spec.kind == OneVsRest::Kind::kSquaredHinge) {
    elements.values = g.mul(hinge, hinge);
  } else {
    Value* far = g.less(z, g.scalar_like(z, -1));
    elements.values = g.where(far, g.scale(z, -4), g.mul(hinge, hinge));
  }
  return elements;
}

void check_ignored(const SoftmaxCrossEntropy& spec) {
  if (!spec.one_hot || !spec.ignore_index) return;
  throw ModelError({.what = "softmax cross-entropy: ignore_index with one-hot targets",
                    .hint = "Give class numbers as targets, or rows a sample weight of 0."});
}

const char* const kIgnoreMeaning = "Rows (or positions) of this class are ignored.";
const char* const kProbabilityMeaning =
    "Lower bound of p in logarithms; 0 is the smallest normal number of the type of p.";

void register_classes(LossTable& table) {
  table.add<write_softmax_cross_entropy>(
      {.target = TargetKind::kByOptions,
       .scores = ScoreShape::kClassesPlaces,
       .takes_scores = true},
      Described<SoftmaxCrossEntropy>{
          .type = "SoftmaxCrossEntropy",
          .summary = "softmax cross-entropy",
          .source = "torch: CrossEntropyLoss",
          .formula =
              "-log p[t] with p = softmax(s). s: [N, C] before any Softmax, t: [N] class numbers; "
              "or s with more axes, such as [B, T, C], and t of the shape of s without the class "
              "axis, such as [B, T]: the mean over the positions of a row. With w = class_weights "
              "and "
              "e = label_smoothing a row's loss is (1 - e) w[t] (-log p[t]) + e / C sum_c w[c] "
              "(-log p[c]), and it counts w[t] times in a mean. With one-hot targets it is "
              "-sum_c w[c] log p[c] ((1 - e) t[c] + e / C), and counts once.",
          .fields =
              {field("ignore_index", &SoftmaxCrossEntropy::ignore_index, kIgnoreMeaning),
               field("class_weights", &SoftmaxCrossEntropy::class_weights, kAtLeastZero,
                     "Weight of each class, in the order of the columns; none: all 1."),
               field("label_smoothing", &SoftmaxCrossEntropy::label_smoothing, kBelowOne),
               field("one_hot", &SoftmaxCrossEntropy::one_hot,
                     "Whether targets are 0 and 1, or probabilities, of the type and shape of s.")},
          .names = {{"softmax_cross_entropy",
                     {},
                     {"cross_entropy", "CrossEntropyLoss", "sparse_categorical_crossentropy",
                      "categorical_crossentropy"}}},
          .check = check_ignored,
      });
  table.add<write_negative_log_likelihood>(
      {.target = TargetKind::kClasses, .scores = ScoreShape::kClassesPlaces},
      Described<NegativeLogLikelihood>{
          .type = "NegativeLogLikelihood",
          .summary = "negative log-likelihood",
          .source = "torch: NLLLoss of log p",
          .formula = "-log p[t] on probabilities. p: [N, C] and t: [N] class numbers, or more axes "
                     "as for `SoftmaxCrossEntropy`.",
          .fields = {field("min_probability", &NegativeLogLikelihood::min_probability, kBelowOne,
                           kProbabilityMeaning),
                     field("ignore_index", &NegativeLogLikelihood::ignore_index, kIgnoreMeaning)},
          .names = {{"negative_log_likelihood", {}, {"nll"}}},
      });
  table.add<write_kl_divergence>(
      {.target = TargetKind::kNumbers, .scores = ScoreShape::kClassesPlaces, .takes_scores = true},
      Described<KlDivergence>{
          .type = "KlDivergence",
          .summary = "Kullback-Leibler divergence",
          .source = "torch: KLDivLoss of log p",
          .formula = "sum_c t[c] (log t[c] - log softmax(s)[c]). s: [N, C] before any Softmax, or "
                     "logarithms of probabilities; t: [N, C] probabilities. With more axes, the "
                     "mean over the positions of a row.",
          .names = {{"kl_divergence", {}, {"kl", "KLDivLoss"}}},
      });
}

void register_columns(LossTable& table) {
  const char* const soft =
      "Whether targets of one column are also numbers from 0 to 1, of the type and shape of the "
      "scores. A session sets this itself when given fractions as targets.";
  table.add<write_binary_cross_entropy>(
      {.target = TargetKind::kByColumns, .takes_scores = true},
      Described<BinaryCrossEntropy>{
          .type = "BinaryCrossEntropy",
          .summary = "binary cross-entropy",
          .source = "torch: BCEWithLogitsLoss",
          .formula = "log(1 + exp(s)) - t*s with t in {0, 1}, averaged over the columns of a row. "
                     "s: [N] or [N, 1] with class numbers t: [N]; or s: [N, K] before any Sigmoid "
                     "with t: [N, K] of numbers from 0 to 1.",
          .fields = {field("soft_targets", &BinaryCrossEntropy::soft_targets, soft)},
          .names = {{"binary_cross_entropy",
                     {},
                     {"bce", "BCEWithLogitsLoss", "binary_crossentropy"}}},
      });
  table.add<write_log_loss>(
      {.target = TargetKind::kByColumns},
      Described<LogLoss>{
          .type = "LogLoss",
          .summary = "log loss",
          .source = "scikit-learn: log_loss",
          .formula = "-t log p - (1 - t) log(1 - p) on probabilities, averaged over the columns of "
                     "a row. p: [N] or [N, 1] with class numbers t: [N]; or p, t: [N, K].",
          .fields = {field("min_probability", &LogLoss::min_probability, kBelowOne,
                           kProbabilityMeaning),
                     field("soft_targets", &LogLoss::soft_targets, soft)},
          .names = {{"log_loss", {}, {"BCELoss"}}},
      });
  table.add<write_one_vs_rest>(
      {.target = TargetKind::kClasses, .scores = ScoreShape::kBinaryOrKnown, .takes_scores = true},
      Described<OneVsRest>{
          .type = "OneVsRest",
          .summary = "one-vs-rest log loss",
          .source = "scikit-learn: SGDClassifier",
          .formula = "One problem 'this class against the rest' per column. With y = +1 for the "
                     "row's class and -1 otherwise, z = y*s, summed over the columns: \"log\" is "
                     "log(1 + exp(-z)), \"hinge\" is max(0, 1 - z), \"squared_hinge\" is its "
                     "square, and \"modified_huber\" is max(0, 1 - z)^2 for z >= -1, else -4z. "
                     "s: [N, C] raw scores, or [N, 1] for two classes; t: [N] class numbers.",
          .fields = {field("kind", &OneVsRest::kind,
                           {"log", "hinge", "squared_hinge", "modified_huber"})},
          .names = {{"one_vs_rest_log", {}},
                    {"hinge", {.kind = OneVsRest::Kind::kHinge}},
                    {"squared_hinge", {.kind = OneVsRest::Kind::kSquaredHinge}},
                    {"modified_huber", {.kind = OneVsRest::Kind::kModifiedHuber}}},
      });
}

}  // namespace

void register_classification(LossTable& table) {
  register_classes(table);
  register_columns(table);
}

}  // namespace onnxgrad::train

#include "train/losses.h"

#include <limits>
#include <string>

#include "base/check.h"
#include "train/head_patterns.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

/// The loss of each element, before anything is added up.
struct Elements {
  Value* values = nullptr;
  /// The columns of a row are averaged, not summed.
  bool mean_of_columns = false;
};

// Class numbers [N] as numbers shaped like the one-column scores.
Value* target_column(GraphBuilder& g, Value* target, Value* scores) {
  Value* numbers = g.cast_like(target, scores);
  return scores->type.rank() == 1 ? numbers : g.unsqueeze(numbers, {1});
}

// 2t - 1: -1 for class 0, +1 for class 1.
Value* sign_of(GraphBuilder& g, Value* t) { return g.sub(g.scale(t, 2), g.scalar_like(t, 1)); }

// e = (s - t)^2
Elements write(GraphBuilder& g, const SquaredError&, Value* scores, Value* target) {
  Value* difference = g.sub(scores, target);
  return {.values = g.mul(difference, difference), .mean_of_columns = true};
}

// e = -log softmax(s)[t]
Elements write(GraphBuilder& g, const SoftmaxCrossEntropy&, Value* scores, Value* target) {
  return {.values = g.op("SoftmaxCrossEntropyLoss", {scores, target},
                         {{.name = "reduction", .value = std::string("none")}}),
          .mean_of_columns = true};
}

// Classes: e = log(1 + exp(-(2t - 1) s)), which keeps its digits for any s;
// numbers t in [0, 1]: e = log(1 + exp(s)) - t s.
Elements write(GraphBuilder& g, const BinaryCrossEntropy&, Value* scores, Value* target) {
  if (is_single_column(*scores)) {
    Value* margin = g.mul(sign_of(g, target_column(g, target, scores)), scores);
    return {.values = g.op("Softplus", {g.neg(margin)}), .mean_of_columns = true};
  }
  return {.values = g.sub(g.op("Softplus", {scores}), g.mul(target, scores)),
          .mean_of_columns = true};
}

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

// e = -log(max(p[t], p_min))
Elements write(GraphBuilder& g, const NegativeLogLikelihood& spec, Value* scores, Value* target) {
  Value* picked = g.op("GatherElements", {scores, g.unsqueeze(target, {1})},
                       {{.name = "axis", .value = std::int64_t{1}}});
  const double floor =
      spec.min_probability > 0 ? spec.min_probability : smallest_normal(scores->dtype());
  Value* clamped = g.op("Max", {picked, g.scalar_like(picked, floor)});
  return {.values = g.neg(g.log(clamped))};
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

Elements write(GraphBuilder& g, const OneVsRest& spec, Value* scores, Value* target) {
  Value* z = g.mul(class_signs(g, scores, target), scores);
  Elements elements{.mean_of_columns = spec.average};
  if (spec.kind == OneVsRest::Kind::kLog) {
    elements.values = g.op("Softplus", {g.neg(z)});
    return elements;
  }
  Value* hinge = g.op("Relu", {g.sub(g.scalar_like(z, 1), z)});
  if (spec.kind == OneVsRest::Kind::kHinge) {
    elements.values = hinge;
  } else {
    Value* far = g.less(z, g.scalar_like(z, -1));
    elements.values = g.where(far, g.scale(z, -4), g.mul(hinge, hinge));
  }
  return elements;
}

Elements write(GraphBuilder&, const AutoLoss&, Value*, Value*) {
  throw InternalError("AutoLoss was not resolved before the loss was written");
}

// Axes 1, 2, ... of x.
std::vector<std::int64_t> column_axes(const Value& x) {
  std::vector<std::int64_t> axes;
  for (std::size_t axis = 1; axis < x.type.rank(); ++axis) {
    axes.push_back(static_cast<std::int64_t>(axis));
  }
  return axes;
}

// The loss of each row [N].
Value* row_losses(GraphBuilder& g, const Elements& elements) {
  const auto axes = column_axes(*elements.values);
  if (axes.empty()) return elements.values;
  return elements.mean_of_columns ? g.reduce_mean(elements.values, axes, false)
                                  : g.reduce_sum(elements.values, axes, false);
}

// Number of rows of x, rank 0, in x's type.
Value* row_count(GraphBuilder& g, Value* x) {
  Value* shape = g.op("Shape", {x}, {{.name = "end", .value = std::int64_t{1}}});
  return g.cast_like(g.squeeze(shape, {0}), x);
}

[[noreturn]] void refuse_scores(const LossFunction& function, const Value& scores,
                                std::string_view wanted) {
  throw ModelError({.what = describe(function) + " cannot be put on '" + scores.name +
                            "' of type " + scores.type.to_string(),
                    .where = {.value = scores.name},
                    .detail = "It takes " + std::string(wanted) + ".",
                    .mend = "Name another output or value with output=, or choose another loss."});
}

}  // namespace

std::string describe(const LossFunction& function) {
  struct Describe {
    std::string operator()(const AutoLoss&) const { return "automatic loss"; }
    std::string operator()(const SquaredError&) const { return "squared error"; }
    std::string operator()(const SoftmaxCrossEntropy&) const { return "softmax cross-entropy"; }
    std::string operator()(const BinaryCrossEntropy&) const { return "binary cross-entropy"; }
    std::string operator()(const NegativeLogLikelihood&) const { return "negative log-likelihood"; }
    std::string operator()(const OneVsRest& spec) const {
      switch (spec.kind) {
        case OneVsRest::Kind::kHinge:
          return "one-vs-rest hinge";
        case OneVsRest::Kind::kModifiedHuber:
          return "one-vs-rest modified Huber";
        default:
          return "one-vs-rest log loss";
      }
    }
  };
  return std::visit(Describe{}, function);
}

bool is_classification(const LossFunction& function, const Value& scores) {
  if (std::holds_alternative<SquaredError>(function)) return false;
  if (std::holds_alternative<BinaryCrossEntropy>(function)) return is_single_column(scores);
  return true;
}

ir::Type target_type(const LossFunction& function, const Value& scores) {
  const ir::Type& type = scores.type;
  if (!type.is_tensor() || !is_floating(type.dtype)) {
    refuse_scores(function, scores, "floating-point scores");
  }
  if (!is_classification(function, scores)) return type;
  const bool takes_columns = !std::holds_alternative<BinaryCrossEntropy>(function);
  if (!type.has_rank() || type.rank() == 0) refuse_scores(function, scores, "scores [N, C]");
  if (std::holds_alternative<OneVsRest>(function)) {
    if (!is_single_column(scores) && (type.rank() != 2 || !type.shape->back().is_static())) {
      refuse_scores(function, scores, "scores [N, C] with a known number of classes");
    }
  } else if (takes_columns && type.rank() < 2) {
    refuse_scores(function, scores, "scores [N, C], one column per class");
  } else if (std::holds_alternative<NegativeLogLikelihood>(function) && type.rank() != 2) {
    refuse_scores(function, scores, "probabilities [N, C]");
  }
  ir::SymbolicShape shape{type.shape->front()};
  if (std::holds_alternative<SoftmaxCrossEntropy>(function)) {
    shape.insert(shape.end(), type.shape->begin() + 2, type.shape->end());
  }
  return ir::Type::tensor(DataType::kInt64, std::move(shape));
}

WrittenLoss write_loss(GraphBuilder& g, const LossFunction& function, Reduction reduction,
                       Value* scores, Value* target, Value* sample_weight) {
  const Elements elements =
      std::visit([&](const auto& spec) { return write(g, spec, scores, target); }, function);
  WrittenLoss written;
  Value* divisor = nullptr;
  if (sample_weight != nullptr) {
    written.numerator = g.reduce_sum(g.mul(sample_weight, row_losses(g, elements)), {}, false);
    written.denominator = g.reduce_sum(sample_weight, {}, false);
    // Batches whose weights are all zero happen; their loss is 0 and moves nothing.
    Value* one = g.scalar_like(written.denominator, 1);
    Value* is_positive = g.greater(written.denominator, g.scalar_like(written.denominator, 0));
    divisor = g.where(is_positive, written.denominator, one);
  } else if (reduction == Reduction::kSum && elements.mean_of_columns) {
    written.numerator = g.reduce_sum(row_losses(g, elements), {}, false);
    written.denominator = row_count(g, elements.values);
  } else {
    // A mean of columns is divided once, by all elements: one operation less in every step.
    written.numerator = g.reduce_sum(elements.values, {}, false);
    written.denominator = elements.mean_of_columns
                              ? g.cast_like(g.size_of(elements.values), elements.values)
                              : row_count(g, elements.values);
  }
  if (divisor == nullptr) divisor = written.denominator;
  written.loss = reduction == Reduction::kMean ? g.div(written.numerator, divisor)
                                               : g.identity(written.numerator);
  return written;
}

Value* write_correct_rows(GraphBuilder& g, const LossFunction& function, Value* scores,
                          Value* target, Value* sample_weight) {
  if (!is_classification(function, *scores) || target->type.rank() != 1) return nullptr;
  Value* hit = nullptr;
  if (is_single_column(*scores)) {
    Value* column = scores->type.rank() == 1 ? scores : g.squeeze(scores, {1});
    hit = g.equal(g.cast(g.greater(column, g.scalar_like(column, 0)), DataType::kInt64), target);
  } else {
    hit = g.equal(g.op("ArgMax", {scores},
                       {{.name = "axis", .value = std::int64_t{1}},
                        {.name = "keepdims", .value = std::int64_t{0}}}),
                  target);
  }
  Value* hits = g.cast_like(hit, scores);
  if (sample_weight != nullptr) hits = g.mul(hits, sample_weight);
  return g.reduce_sum(hits, {}, false);
}

}  // namespace onnxgrad::train

#include "train/losses/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "train/losses/class_axis.h"
#include "train/losses/table.h"
#include "train/tools/collectives.h"

// Formulas are in losses/, one function each, their table in losses/table.cpp. Here elements
// are reduced to rows, rows to the loss of a batch.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

// Axes 1, 2, ... of x.
std::vector<std::int64_t> column_axes(const Value& x) {
  std::vector<std::int64_t> axes;
  for (std::size_t axis = 1; axis < x.type.rank(); ++axis) {
    axes.push_back(static_cast<std::int64_t>(axis));
  }
  return axes;
}

// Reduced over the columns: [N].
Value* rows_of(GraphBuilder& g, const Elements& elements, Value* x) {
  const auto axes = column_axes(*x);
  if (axes.empty()) return x;
  return elements.mean_of_columns ? g.reduce_mean(x, axes, false) : g.reduce_sum(x, axes, false);
}

// Number of rows of x, rank 0, in x's type.
Value* row_count(GraphBuilder& g, Value* x) {
  Value* shape = g.op("Shape", {x}, {{.name = "end", .value = std::int64_t{1}}});
  return g.cast_like(g.squeeze(shape, {0}), x);
}

Value* sum_of(GraphBuilder& g, Value* x) { return g.reduce_sum(x, {}, /*keepdims=*/false); }

// There are batches in which no row counts; their loss is 0 and changes nothing.
Value* positive_or_one(GraphBuilder& g, Value* x) {
  return g.where(g.greater(x, g.scalar_like(x, 0)), x, g.scalar_like(x, 1));
}

// The loss that this worker's rows contribute: numerator / sum of the workers' denominators.
void share_among_workers(GraphBuilder& g, Reduction reduction, const LossPlace& place,
                         WrittenLoss& written) {
  Value* weight = g.cast_like(place.worker_weight, written.numerator);
  written.numerator = g.mul(written.numerator, weight);
  written.denominator = g.mul(written.denominator, weight);
  if (!place.updates_alone) written.denominator = add_up(g, written.denominator);
  written.loss = reduction == Reduction::kMean
                     ? g.div(written.numerator, positive_or_one(g, written.denominator))
                     : g.identity(written.numerator);
}

// A loss for the batch as a whole: the mean of its rows.
WrittenLoss put_total_together(GraphBuilder& g, const LossFunction& function,
                               const Elements& elements, Reduction reduction,
                               const LossInputs& in) {
  if (reduction == Reduction::kNone) {
    throw ModelError(
        {.what = describe(function) + ": it returns one loss for the batch, not one for each row",
         .hint = "Use reduction 'mean', or let its model return the loss of each row."});
  }
  WrittenLoss written{.loss = g.identity(elements.values), .has_counts = in.weight != nullptr};
  // The model's own loss has its rows in the target.
  Value* with_rows = std::holds_alternative<OutputLoss>(function) ? in.target : in.scores;
  written.denominator = in.weight != nullptr
                            ? sum_of(g, in.weight)
                            : g.cast_like(row_count(g, with_rows), elements.values);
  written.numerator =
      reduction == Reduction::kMean ? g.mul(elements.values, written.denominator) : elements.values;
  return written;
}

// numerator / denominator of rows with different weights.
void put_counted_together(GraphBuilder& g, Elements elements, Value* weight, WrittenLoss& written) {
  if (weight != nullptr && weight->type.rank() > 1) {  // one weight for each position
    elements.values = g.mul(weight, elements.values);
    elements.counts = elements.counts == nullptr ? weight : g.mul(weight, elements.counts);
    weight = nullptr;
  }
  Value* rows = rows_of(g, elements, elements.values);
  Value* counts = elements.counts == nullptr ? nullptr : rows_of(g, elements, elements.counts);
  if (weight != nullptr) {
    if (!elements.is_weighted) rows = g.mul(weight, rows);
    counts = counts == nullptr ? weight : g.mul(weight, counts);
  }
  written.numerator = sum_of(g, rows);
  written.denominator = sum_of(g, counts);
  written.rows = rows;
}

[[noreturn]] void refuse_scores(const LossFunction& function, const Value& scores,
                                std::string_view wanted) {
  throw ModelError({.what = describe(function) + " cannot be applied to '" + scores.name +
                            "' of type " + scores.type.to_string(),
                    .where = {.value = scores.name},
                    .detail = "It takes " + std::string(wanted) + ".",
                    .hint = "Name another output or value in the loss "
                            "(loss='squared_error:output=VALUE'), or choose another loss."});
}

// Throws if the loss does not take scores of this shape, according to the table.
void check_score_shape(const LossFunction& function, const Value& scores) {
  const ir::Type& type = scores.type;
  const std::size_t rank = type.rank();
  switch (kind_of(function).scores) {
    case ScoreShape::kAny:
      if (is_classification(function, scores) && rank == 0) {
        refuse_scores(function, scores, "scores [N, C]");
      }
      return;
    case ScoreShape::kMatrix:
      if (rank != 2) refuse_scores(function, scores, "vectors [N, K]");
      return;
    case ScoreShape::kVectors:
      if (rank < 2) refuse_scores(function, scores, "vectors [N, K] or [N, ..., K]");
      return;
    case ScoreShape::kClassesPlaces:
      if (rank < 2) refuse_scores(function, scores, "scores [N, C], one column per class");
      return;
    case ScoreShape::kTokens:
      if (rank != 3) refuse_scores(function, scores, "scores of tokens [N, T, V]");
      return;
    case ScoreShape::kBinaryOrKnown:
      if (!is_single_column(scores) && (rank != 2 || !type.shape->back().is_static())) {
        refuse_scores(function, scores, "scores [N, C] with a known number of classes");
      }
      return;
  }
}

// Options of cross-entropy that need the number of classes.
void check_classes(const SoftmaxCrossEntropy& spec, const Value& scores, std::int64_t class_axis) {
  const ir::Dim& classes = scores.type.shape->at(static_cast<std::size_t>(class_axis));
  const auto num_weights = static_cast<std::int64_t>(spec.class_weights.size());
  if (num_weights != 0 && classes.is_static() && classes.value() != num_weights) {
    throw ModelError({.what = fmt::format("softmax cross-entropy: {} class weights for the {} "
                                          "classes of '{}'",
                                          num_weights, classes.value(), scores.name),
                      .where = {.value = scores.name},
                      .hint = "Give one weight for each class, in the order of the scores."});
  }
  if (spec.label_smoothing != 0 && !classes.is_static()) {
    refuse_scores(spec, scores, "scores with a known number of classes for label smoothing");
  }
}

// Weight of each position of a class target, in the shape of `hits`, which has the scores' type:
// the sample weight of the position or of its row, 0 for the ignored class. nullptr: all are 1.
Value* counted_places(GraphBuilder& g, const LossFunction& function, Value* hits,
                      const LossPlace& place) {
  const auto ignored = ignored_class(function);
  Value* weight = place.sample_weight;
  if (weight != nullptr && weight->type.rank() < hits->type.rank()) {
    weight = g.unsqueeze(weight, column_axes(*hits));
    if (!ignored) return g.expand(weight, g.shape_of(hits));
  }
  if (!ignored) return weight;
  Value* counts = g.cast_like(g.op("Not", {g.equal(place.target, g.int_scalar(*ignored))}), hits);
  return weight == nullptr ? counts : g.mul(counts, weight);
}

Value* largest_column(GraphBuilder& g, Value* x) {
  return g.op(
      "ArgMax", {x},
      {{.name = "axis", .value = std::int64_t{1}}, {.name = "keepdims", .value = std::int64_t{0}}});
}

// The target as the rule reads it.
Value* compared_target(GraphBuilder& g, const LossFunction& function, Value* target) {
  const auto* spec = std::get_if<CausalLm>(&function);
  return spec == nullptr ? target : next_tokens(g, *spec, target);
}

// Whether each class is right: bool, one for each position of what the rules read.
Value* hits_of(GraphBuilder& g, const LossFunction& function, Value* scores, Value* target) {
  if (!is_single_column(*scores)) return g.equal(largest_column(g, scores), target);
  Value* column = scores->type.rank() == 1 ? scores : g.squeeze(scores, {1});
  const double middle = takes_scores(function) ? 0 : 0.5;
  return g.equal(g.cast(g.greater(column, g.scalar_like(column, middle)), DataType::kInt64),
                 target);
}

}  // namespace

std::string describe(const LossFunction& function) {
  if (const auto* spec = std::get_if<OneVsRest>(&function)) {
    switch (spec->kind) {
      case OneVsRest::Kind::kHinge:
        return "one-vs-rest hinge";
      case OneVsRest::Kind::kSquaredHinge:
        return "one-vs-rest squared hinge";
      case OneVsRest::Kind::kModifiedHuber:
        return "one-vs-rest modified Huber";
      case OneVsRest::Kind::kLog:
        break;
    }
  }
  return loss_rows().info(function).summary;
}

void check_loss_options(const LossFunction& function) {
  loss_rows().check<ModelError>(function, describe(function) + ": ");
}

bool takes_scores(const LossFunction& function) {
  const auto* user = std::get_if<UserLoss>(&function);
  return user != nullptr ? user->takes_scores : kind_of(function).takes_scores;
}

std::int64_t rows_of_unit(const LossFunction& function) { return kind_of(function).rows; }

bool compares_embeddings(const LossFunction& function) {
  return std::holds_alternative<InfoNce>(function) || std::holds_alternative<Triplet>(function) ||
         std::holds_alternative<CosineEmbedding>(function);
}

bool has_target(const LossFunction& function) {
  return kind_of(function).target != TargetKind::kNone;
}

bool has_number_targets(const LossFunction& function) {
  return kind_of(function).target == TargetKind::kNumbers;
}

std::optional<std::int64_t> ignored_class(const LossFunction& function) {
  if (const auto* spec = std::get_if<SoftmaxCrossEntropy>(&function)) return spec->ignore_index;
  if (const auto* spec = std::get_if<NegativeLogLikelihood>(&function)) return spec->ignore_index;
  if (const auto* spec = std::get_if<CausalLm>(&function)) return spec->ignore_index;
  if (const auto* spec = std::get_if<MaskedLm>(&function)) return spec->ignore_index;
  return std::nullopt;
}

bool has_soft_targets(const LossFunction& function) {
  if (const auto* spec = std::get_if<BinaryCrossEntropy>(&function)) return spec->soft_targets;
  if (const auto* spec = std::get_if<LogLoss>(&function)) return spec->soft_targets;
  return false;
}

bool is_classification(const LossFunction& function, const Value& scores) {
  switch (kind_of(function).target) {
    case TargetKind::kNumbers:
    case TargetKind::kRowNumbers:
    case TargetKind::kNone:
      return false;
    case TargetKind::kClasses:
      return true;
    case TargetKind::kByColumns:
      return is_single_column(scores) && !has_soft_targets(function);
    case TargetKind::kByOptions:
      break;
  }
  if (const auto* spec = std::get_if<SoftmaxCrossEntropy>(&function)) return !spec->one_hot;
  if (const auto* spec = std::get_if<UserLoss>(&function)) {
    const ir::Type type = user_target_type(*spec, scores);
    return spec->targets_are_classes && type.dtype == DataType::kInt64 && type.rank() == 1;
  }
  return true;
}

ir::Type target_type(const LossFunction& function, const Value& scores, std::int64_t class_axis) {
  const ir::Type& type = scores.type;
  if (!type.is_tensor() || !is_floating(type.dtype)) {
    refuse_scores(function, scores, "floating-point scores");
  }
  if (const auto* spec = std::get_if<UserLoss>(&function)) return user_target_type(*spec, scores);
  check_score_shape(function, scores);
  if (const auto* spec = std::get_if<SoftmaxCrossEntropy>(&function)) {
    check_classes(*spec, scores, class_axis);
  }
  if (std::holds_alternative<Dpo>(function)) {
    return ir::Type::tensor(DataType::kFloat64, {type.shape->front(), ir::Dim()});
  }
  const TargetKind target = kind_of(function).target;
  if (target == TargetKind::kRowNumbers) return ir::Type::tensor(type.dtype, {type.shape->front()});
  if (!is_classification(function, scores)) return type;
  ir::SymbolicShape shape{type.shape->front()};
  if (has_class_axis(function)) {
    shape = *type.shape;
    shape.erase(shape.begin() + class_axis);
  }
  return ir::Type::tensor(DataType::kInt64, std::move(shape));
}

std::vector<std::int64_t> compared_classes(const LossFunction& function, const Tensor& target) {
  std::vector<std::int64_t> classes = target.to_int64s();
  const auto* spec = std::get_if<CausalLm>(&function);
  if (spec == nullptr || classes.empty()) return classes;
  const auto width = static_cast<std::size_t>(target.dims()[1]);
  std::rotate(classes.begin(), classes.begin() + 1, classes.end());
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const bool is_last = i % width == width - 1;
    if (is_last || classes[i] == spec->pad) classes[i] = spec->ignore_index;
  }
  return classes;
}

bool is_log_likelihood(const LossFunction& function) {
  if (std::holds_alternative<CausalLm>(function)) return true;
  if (std::holds_alternative<MaskedLm>(function)) return true;
  const auto* spec = std::get_if<SoftmaxCrossEntropy>(&function);
  return spec != nullptr && !spec->one_hot && spec->class_weights.empty() &&
         spec->label_smoothing == 0;
}

WrittenLoss write_loss(GraphBuilder& g, const LossFunction& function, Reduction reduction,
                       const LossPlace& place) {
  Value* sample_weight = place.sample_weight;
  const LossInputs in{.scores = place.scores,
                      .target = compared_target(g, function, place.target),
                      .weight = sample_weight,
                      .partners = place.partners,
                      .own = place.own};
  Elements elements =
      kind_of(function).rule(g, function, with_classes_second(g, in, place.class_axis));
  elements.values = with_rows_first(g, elements.values, in, place.class_axis);
  elements.counts = with_rows_first(g, elements.counts, in, place.class_axis);
  if (elements.is_total) {
    WrittenLoss total = put_total_together(g, function, elements, reduction, in);
    if (place.worker_weight != nullptr) {
      share_among_workers(g, reduction, place, total);
    }
    return total;
  }
  WrittenLoss written{.has_counts = sample_weight != nullptr || elements.counts != nullptr};
  Value* divisor = nullptr;
  if (written.has_counts) {
    put_counted_together(g, elements, sample_weight, written);
    if (reduction == Reduction::kMean) divisor = positive_or_one(g, written.denominator);
  } else if (reduction == Reduction::kMean) {
    // A mean of columns is divided once, by all elements: one operation less in every step.
    written.numerator = sum_of(g, elements.values);
    written.denominator = elements.mean_of_columns
                              ? g.cast_like(g.size_of(elements.values), elements.values)
                              : row_count(g, elements.values);
    divisor = written.denominator;
  } else {
    written.rows = rows_of(g, elements, elements.values);
    written.numerator = sum_of(g, written.rows);
    written.denominator = row_count(g, elements.values);
  }
  if (reduction != Reduction::kNone) written.rows = nullptr;
  if (place.worker_weight != nullptr) {
    share_among_workers(g, reduction, place, written);
  } else {
    written.loss = reduction == Reduction::kMean ? g.div(written.numerator, divisor)
                                                 : g.identity(written.numerator);
  }
  return written;
}

CorrectRows write_correct_rows(GraphBuilder& g, const LossFunction& function,
                               const LossPlace& place) {
  const auto* softmax = std::get_if<SoftmaxCrossEntropy>(&function);
  const bool has_probabilities = softmax != nullptr && softmax->one_hot;
  if (!has_probabilities && !is_classification(function, *place.scores)) return {};
  if (!has_class_axis(function) && place.target->type.rank() != 1) return {};
  const LossInputs in{.scores = place.scores,
                      .target = compared_target(g, function, place.target),
                      .weight = nullptr};
  LossInputs moved = with_classes_second(g, in, place.class_axis);
  if (has_probabilities) moved.target = largest_column(g, moved.target);
  Value* right = hits_of(g, function, moved.scores, moved.target);
  Value* hits = with_rows_first(g, g.cast_like(right, place.scores), in, place.class_axis);
  LossPlace compared = place;
  compared.target = in.target;
  Value* counts = counted_places(g, function, hits, compared);
  if (counts == nullptr) {
    Value* all = hits->type.rank() == 1 ? row_count(g, hits) : g.cast_like(g.size_of(hits), hits);
    return {.correct = sum_of(g, hits), .rows = all};
  }
  return {.correct = sum_of(g, g.mul(hits, counts)), .rows = sum_of(g, counts)};
}

bool is_single_column(const Value& scores) {
  if (!scores.type.has_rank() || scores.type.rank() == 0) return false;
  if (scores.type.rank() == 1) return true;
  const ir::Dim& last = scores.type.shape->back();
  return scores.type.rank() == 2 && last.is_static() && last.value() == 1;
}

}  // namespace onnxgrad::train

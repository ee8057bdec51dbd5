#include "train/losses/class_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/check.h"
#include "train/losses/losses.h"
#include "train/losses/table.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

constexpr const char* kSayIt =
    "Specify the class axis with axis= of the loss, such as axis=-1 (--class-axis on the "
    "command line).";

std::int64_t rank_of(const Value& scores) { return static_cast<std::int64_t>(scores.type.rank()); }

bool is_last(const Value& scores, std::int64_t axis) { return axis == rank_of(scores) - 1; }

// A requested axis, from 0.
std::int64_t checked_axis(const LossFunction& function, const Value& scores, std::int64_t asked) {
  const std::int64_t rank = rank_of(scores);
  const std::int64_t axis = asked < 0 ? asked + rank : asked;
  if (axis >= 1 && axis < rank) return axis;
  const bool is_rows = axis == 0;
  throw ModelError(
      {.what = fmt::format("{}: axis {} of '{}' {} {}", describe(function), asked, scores.name,
                           scores.type.to_string(),
                           is_rows ? "has the rows, not the classes" : "does not exist"),
       .where = {.value = scores.name},
       .hint = fmt::format("Give an axis from 1 to {}, or -1 for the last.", rank - 1)});
}

// The only axis with a class for each of the class weights.
std::optional<std::int64_t> axis_of_weights(const LossFunction& function,
                                            const ir::SymbolicShape& scores) {
  const auto* spec = std::get_if<SoftmaxCrossEntropy>(&function);
  if (spec == nullptr || spec->class_weights.empty()) return std::nullopt;
  std::optional<std::int64_t> found;
  for (std::size_t axis = 1; axis < scores.size(); ++axis) {
    if (scores[axis] != ir::Dim(std::ssize(spec->class_weights))) continue;
    if (found) return std::nullopt;
    found = static_cast<std::int64_t>(axis);
  }
  return found;
}

// The shape of x up to that axis.
Value* places_of(GraphBuilder& g, Value* x, std::int64_t axis) {
  return g.op("Shape", {x}, {{.name = "end", .value = axis}});
}

}  // namespace

bool has_class_axis(const LossFunction& function) {
  const LossKind& kind = kind_of(function);
  return kind.scores == ScoreShape::kClassesPlaces ||
         (kind.scores == ScoreShape::kTokens && kind.target == TargetKind::kClasses);
}

std::optional<std::int64_t> only_fixed_axis(const ir::SymbolicShape& scores) {
  std::optional<std::int64_t> found;
  for (std::size_t axis = 1; axis < scores.size(); ++axis) {
    if (!scores[axis].is_static()) continue;
    if (found) return std::nullopt;
    found = static_cast<std::int64_t>(axis);
  }
  return found;
}

ClassAxis choose_class_axis(const LossFunction& function, const Value& scores,
                            std::optional<std::int64_t> asked,
                            std::optional<std::int64_t> of_model) {
  if (asked && !has_class_axis(function)) {
    throw ModelError({.what = fmt::format("{} has no class axis, but axis {} was given",
                                          describe(function), *asked),
                      .where = {.value = scores.name},
                      .hint = "Omit axis=, or use a cross-entropy over classes."});
  }
  if (!has_class_axis(function) || scores.type.rank() < 2) return {};
  if (asked) return {.axis = checked_axis(function, scores, *asked)};
  if (kind_of(function).scores == ScoreShape::kTokens) return {.axis = rank_of(scores) - 1};
  if (scores.type.rank() == 2) return {};
  if (of_model) return {.axis = *of_model};
  if (const auto weighed = axis_of_weights(function, *scores.type.shape)) return {.axis = *weighed};
  const bool labels_tell = is_classification(function, scores);
  if (const auto fixed = only_fixed_axis(*scores.type.shape)) {
    return {.axis = *fixed, .is_settled = !labels_tell};
  }
  return {.is_known = false, .is_settled = !labels_tell};
}

std::vector<std::int64_t> axes_left_out(const ir::SymbolicShape& scores, const Dims& labels) {
  std::vector<std::int64_t> dims(labels.begin(), labels.end());
  if (dims.size() == scores.size() && !dims.empty() && dims.back() == 1) dims.pop_back();
  std::vector<std::int64_t> axes;
  if (dims.size() + 1 != scores.size()) return axes;
  const auto fits = [&](std::size_t label_axis, std::size_t axis) {
    return !scores[axis].is_static() || scores[axis].value() == dims[label_axis];
  };
  for (std::size_t left_out = 1; left_out < scores.size(); ++left_out) {
    bool all_fit = true;
    for (std::size_t i = 1; i < dims.size(); ++i) {
      all_fit = all_fit && fits(i, i < left_out ? i : i + 1);
    }
    if (all_fit) axes.push_back(static_cast<std::int64_t>(left_out));
  }
  return axes;
}

void refuse_labels(const LossInfo& loss, const std::string& scores_shape, const Dims& labels,
                   const std::vector<std::int64_t>& fitting) {
  const bool is_none = fitting.empty();
  throw DataError(
      {.what = fmt::format("labels {} do not {} '{}' {}", labels.to_string(),
                           is_none ? "have the shape of the scores without one axis:"
                                   : "determine which axis has the classes of the scores",
                           loss.scores, scores_shape),
       .where = {.value = loss.target.name},
       .detail = is_none ? ""
                         : fmt::format("They have the shape of the scores without axis {}, and "
                                       "without axis {}.",
                                       fitting.front(), fitting.back()),
       .hint = is_none
                   ? "Give one label for each position of the scores; axis= of the loss sets the "
                     "class axis, one_hot=true takes rows of probabilities."
                   : kSayIt});
}

LossInputs with_classes_second(GraphBuilder& g, const LossInputs& in, std::int64_t class_axis) {
  if (class_axis == 1) return in;
  const auto rank = rank_of(*in.scores);
  const bool has_probabilities = rank_of(*in.target) == rank;
  LossInputs moved = in;
  if (!is_last(*in.scores, class_axis)) {
    std::vector<std::int64_t> perm(static_cast<std::size_t>(rank));
    std::iota(perm.begin(), perm.end(), std::int64_t{0});
    std::rotate(perm.begin() + 1, perm.begin() + class_axis, perm.begin() + class_axis + 1);
    moved.scores = g.transpose(in.scores, perm);
    if (has_probabilities) moved.target = g.transpose(in.target, perm);
    return moved;
  }
  const auto flat = [&](Value* x) {
    return g.op("Flatten", {x}, {{.name = "axis", .value = class_axis}});
  };
  moved.scores = flat(in.scores);
  // Another order of the same number of labels would fit [M, C]: Expand compares axis by axis.
  Value* shape = has_probabilities ? g.shape_of(in.scores) : places_of(g, in.scores, class_axis);
  Value* compared = g.expand(in.target, shape);
  compared->type = in.target->type;
  moved.target =
      has_probabilities ? flat(compared) : g.reshape(compared, std::vector<std::int64_t>{-1});
  return moved;
}

Value* with_rows_first(GraphBuilder& g, Value* x, const LossInputs& in, std::int64_t class_axis) {
  if (x == nullptr || class_axis == 1 || !is_last(*in.scores, class_axis)) return x;
  // The labels' own shape: labels repeated by Expand do not match it.
  Value* places = g.reshape(x, places_of(g, in.target, class_axis));
  const ir::SymbolicShape& shape = *in.target->type.shape;
  places->type = ir::Type::tensor(x->dtype(), {shape.begin(), shape.begin() + class_axis});
  return places;
}

}  // namespace onnxgrad::train

#include "train/heads/head_patterns.h"
#include "train/losses/losses.h"

#include <algorithm>
#include <vector>

#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using ir::anything;
using ir::capture;
using ir::in_any_order;
using ir::Node;
using ir::number;
using ir::one_of;
using ir::op;
using ir::Pattern;
using ir::Value;
using ir::where;

const ir::NodeTest& unchanged() {
  static const ir::NodeTest kTest = builtin_ops().passing(opdef::Passage::kUnchanged);
  return kTest;
}

Value* find(const Pattern& pattern, const Value* value) {
  return ir::match(pattern, value, unchanged());
}

Value* strip(const Value* value) { return ir::look_through(value, unchanged()); }

std::vector<std::int64_t> integers_of(const Value* value) {
  return ir::constant_integers(strip(value));
}

bool is_column_axis(std::int64_t axis) { return axis == 1 || axis == -1; }

// True for a reduction over the columns that keeps a column.
bool reduces_columns(const Node& node) {
  const auto axes = integers_of(node.input(1));
  return complete_node(node).int_attribute("keepdims") != 0 && axes.size() == 1 &&
         is_column_axis(axes.front());
}

Pattern negation(const Pattern& x) {
  return one_of({op("Neg", {x}), in_any_order("Mul", x, number(-1)), op("Div", {x, number(-1)}),
                 op("Sub", {number(0), x})});
}

Pattern plus_one(const Pattern& x) { return in_any_order("Add", x, number(1)); }

// [a, b], two columns.
Pattern columns(const Pattern& a, const Pattern& b) {
  return where(op("Concat", {a, b}), [](const Node& node) {
    return node.inputs.size() == 2 && is_column_axis(node.int_attribute("axis"));
  });
}

// x, or Concat(x) of it alone.
Pattern alone(const Pattern& x) {
  return one_of(
      {where(op("Concat", {x}), [](const Node& node) { return node.inputs.size() == 1; }), x});
}

// The values that `value` is computed from by element-wise operators; at most
// `budget` nodes are visited. False if there are more.
bool collect_leaves(const Value* value, std::vector<const Value*>& leaves, int& budget) {
  value = strip(value);
  if (value == nullptr) return true;
  if (--budget < 0) return false;
  const Node* node = value->producer;
  if (node == nullptr || !ir::is_op(*node, {"Add", "Mul", "Max", "Clip", "Where", "Equal", "Less",
                                            "Greater", "Not", "Cast", "Abs", "Sign", "CastLike"})) {
    leaves.push_back(value);
    return true;
  }
  return std::ranges::all_of(
      node->inputs, [&](const Value* input) { return collect_leaves(input, leaves, budget); });
}

// True for the sum over the columns of `rows`, kept as a column.
bool is_row_sum(const Value* value, const Value* rows) {
  static const Pattern kSummed = one_of({op("Abs", {capture()}), capture()});
  static const Pattern kSum =
      where(one_of({op("ReduceSum", {kSummed}), op("ReduceL1", {kSummed})}), reduces_columns);
  const Value* summed = find(kSum, value);
  return summed != nullptr && strip(summed) == strip(rows);
}

// True if `value` is computed only from the sum of `rows` and constants.
bool depends_on_row_sum(const Value* value, const Value* rows) {
  std::vector<const Value*> leaves;
  int budget = 32;
  if (!collect_leaves(value, leaves, budget)) return false;
  bool has_sum = false;
  for (const Value* leaf : leaves) {
    if (is_row_sum(leaf, rows)) {
      has_sum = true;
    } else if (!leaf->is_initializer()) {
      return false;
    }
  }
  return has_sum;
}

}  // namespace

bool has_two_columns(const Value& value) {
  return value.type.is_tensor() && value.type.rank() == 2 && value.type.shape->back() == ir::Dim(2);
}

Value* match_negation(const Value* value) {
  static const Pattern kPattern = negation(capture());
  return find(kPattern, value);
}

Value* match_logistic(const Value* value) {
  static const Pattern kDivisor = plus_one(op("Exp", {negation(capture())}));
  static const Pattern kPattern = one_of(
      {op("Sigmoid", {capture()}), op("Reciprocal", {kDivisor}), op("Div", {number(1), kDivisor})});
  return find(kPattern, value);
}

Value* match_clipped_margin(const Value* value) {
  static const Pattern kDoubled = plus_one(op("Clip", {capture(), number(-1), number(1)}));
  static const Pattern kPattern =
      one_of({op("Div", {kDoubled, number(2)}), in_any_order("Mul", kDoubled, number(0.5))});
  return find(kPattern, value);
}

Value* match_row_share(const Value* value) {
  value = strip(value);
  const Node* guard_node = value == nullptr ? nullptr : value->producer;
  if (guard_node != nullptr && ir::is_op(*guard_node, {"Where"}) &&
      ir::is_number(strip(guard_node->input(1)), 0)) {
    value = strip(guard_node->input(2));  // 0 where the sum is 0
  }
  if (value == nullptr || !ir::is_op(value->producer, "Div")) return nullptr;
  const Node& div = *value->producer;
  Value* numerator = strip(div.input(0));
  if (depends_on_row_sum(div.input(1), numerator)) return numerator;
  if (numerator == nullptr || !ir::is_op(numerator->producer, "Add")) return nullptr;
  for (const std::size_t i : {0U, 1U}) {
    Value* rows = strip(numerator->producer->input(i));
    const Value* guard = numerator->producer->input(1 - i);
    if (depends_on_row_sum(guard, rows) && depends_on_row_sum(div.input(1), rows)) return rows;
  }
  return nullptr;
}

Value* match_unshifted(const Value* value) {
  static const Pattern kMax = where(op("ReduceMax", {capture()}), reduces_columns);
  static const Pattern kPattern = op("Sub", {capture(), kMax});
  return find(kPattern, value);
}

Value* match_log_softmax(const Value* value) {
  value = strip(value);
  if (value == nullptr || !ir::is_op(value->producer, "Sub")) return nullptr;
  static const ir::NodeTest kReshapes = builtin_ops().passing(opdef::Passage::kReshaped);
  Value* scores = strip(value->producer->input(0));
  const Value* sum = ir::look_through(value->producer->input(1), kReshapes);
  if (sum == nullptr || !ir::is_op(sum->producer, "ReduceLogSumExp")) return nullptr;
  const auto axes = integers_of(sum->producer->input(1));
  const bool is_of_rows = axes.size() == 1 && is_column_axis(axes.front());
  return is_of_rows && strip(sum->producer->input(0)) == scores ? scores : nullptr;
}

Value* match_complement_columns(const Value* value) {
  static const Pattern kPattern =
      columns(op("Sub", {number(1), alone(capture())}), alone(capture()));
  if (Value* second = strip(find(kPattern, value))) return second;
  // [q, 1 - q]: the second column is the difference itself.
  static const Pattern kReversed =
      columns(alone(capture()), op("Sub", {number(1), alone(capture())}));
  const bool is_reversed = find(kReversed, value) != nullptr;
  return is_reversed ? strip(strip(value)->producer->input(1)) : nullptr;
}

Value* match_opposite_columns(const Value* value) {
  static const Pattern kPattern = columns(negation(capture()), alone(capture()));
  if (Value* second = strip(find(kPattern, value))) return second;
  // [t, -t]: the second column is the negation itself.
  static const Pattern kReversed = columns(alone(capture()), negation(capture()));
  const bool is_reversed = find(kReversed, value) != nullptr;
  return is_reversed ? strip(strip(value)->producer->input(1)) : nullptr;
}

Value* match_times_one(const Value* value) {
  static const Pattern kPattern =
      one_of({in_any_order("Mul", capture(), number(1)), op("Div", {capture(), number(1)})});
  return find(kPattern, value);
}

ColumnOf match_column(const Value* value) {
  value = strip(value);
  const Node* node = value == nullptr ? nullptr : value->producer;
  if (node == nullptr || node->input(0) == nullptr) return {};
  const bool is_extractor =
      node->domain == "ai.onnx.ml" && node->op_type == "ArrayFeatureExtractor";
  if (!is_extractor && !node->domain.empty()) return {};
  const bool is_gather =
      node->op_type == "Gather" && is_column_axis(complete_node(*node).int_attribute("axis"));
  if (is_extractor || is_gather || node->op_type == "Slice") {
    const auto places = integers_of(node->input(1));
    if (places.size() != 1 || node->input(0)->is_initializer()) return {};
    if (node->op_type == "Slice") {
      const auto axes = integers_of(node->input(3));
      if (axes.size() != 1 || !is_column_axis(axes.front()) || !is_single_column(*value)) return {};
    }
    return {.matrix = node->input(0), .index = places.front()};
  }
  return {};
}

bool is_affine(const Value* value) {
  static const ir::NodeTest kPasses = builtin_ops().passing(opdef::Passage::kReshaped);
  while ((value = ir::look_through(value, kPasses)) != nullptr && value->producer != nullptr) {
    const Node& node = *value->producer;
    if (ir::is_op(node, {"MatMul", "Gemm", "Conv", "GlobalAveragePool", "ReduceMean"})) return true;
    if (!ir::is_op(node, {"Add", "Sub", "Mul", "Div"})) return false;
    const auto is_constant = [&](std::size_t i) {
      const Value* operand = strip(node.input(i));
      return operand != nullptr && operand->is_initializer();
    };
    if (!is_constant(0) && !is_constant(1)) return false;
    value = node.input(is_constant(1) ? 0 : 1);
  }
  return false;
}

}  // namespace onnxgrad::train

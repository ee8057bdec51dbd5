#include "train/heads/head_patterns.h"
#include "train/losses.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

const Value* strip(const Value* value) {
  while (value != nullptr && value->producer != nullptr && value->producer->domain.empty() &&
         value->producer->op_type == "Identity") {
    value = value->producer->input(0);
  }
  return value;
}

// Matchers look at values as const and give back what the graph owns.
Value* found(const Value* value) { return const_cast<Value*>(value); }

// The node that computes `value` if it is this operator of ai.onnx; nullptr otherwise.
const Node* producer_of(const Value* value, std::string_view op_type) {
  value = strip(value);
  if (value == nullptr || value->producer == nullptr) return nullptr;
  const Node* node = value->producer;
  return node->domain.empty() && node->op_type == op_type ? node : nullptr;
}

// The operand beside the constant `number`, in either order.
const Value* operand_beside(const Node& node, double number) {
  if (is_number(node.input(1), number)) return node.input(0);
  if (is_number(node.input(0), number)) return node.input(1);
  return nullptr;
}

// x of Add(x, 1).
const Value* match_plus_one(const Value* value) {
  const Node* sum = producer_of(value, "Add");
  return sum == nullptr ? nullptr : operand_beside(*sum, 1);
}

// The constant integers of an input; empty if it is absent or computed.
std::vector<std::int64_t> constant_integers(const Value* value) {
  value = strip(value);
  if (value == nullptr || !value->is_initializer() || !is_integer(value->initializer.dtype())) {
    return {};
  }
  return value->initializer.to_int64s();
}

bool is_column_axis(std::int64_t axis) { return axis == 1 || axis == -1; }

// The values that `value` is computed from by operators that work element by element; at most
// `budget` nodes are visited. False if there are more.
bool collect_leaves(const Value* value, std::vector<const Value*>& leaves, int& budget) {
  static constexpr std::array<std::string_view, 13> kOps{
      "Add",     "Mul", "Max",  "Clip", "Where", "Equal",   "Less",
      "Greater", "Not", "Cast", "Abs",  "Sign",  "CastLike"};
  value = strip(value);
  if (value == nullptr) return true;
  if (--budget < 0) return false;
  const Node* node = value->producer;
  if (node == nullptr || !node->domain.empty() ||
      std::ranges::find(kOps, node->op_type) == kOps.end()) {
    leaves.push_back(value);
    return true;
  }
  return std::ranges::all_of(
      node->inputs, [&](const Value* input) { return collect_leaves(input, leaves, budget); });
}

// True for a reduction over the columns that keeps a column.
bool reduces_columns(const Node* node) {
  if (node == nullptr || node->int_attribute("keepdims", 1) == 0) return false;
  const auto axes = constant_integers(node->input(1));
  return axes.size() == 1 && is_column_axis(axes.front());
}

// True for the sum over the columns of `rows`, kept as a column.
bool is_row_sum(const Value* value, const Value* rows) {
  const Node* sum = producer_of(value, "ReduceSum");
  if (sum == nullptr) sum = producer_of(value, "ReduceL1");
  if (!reduces_columns(sum)) return false;
  const Value* summed = strip(sum->input(0));
  if (const Node* absolute = producer_of(summed, "Abs")) summed = strip(absolute->input(0));
  return summed == strip(rows);
}

// True if `value` is made from the sum of `rows` and constants alone.
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

// The two parts of a Concat along the columns.
std::pair<const Value*, const Value*> column_pair(const Value* value) {
  const Node* concat = producer_of(value, "Concat");
  if (concat == nullptr || concat->inputs.size() != 2 ||
      !is_column_axis(concat->int_attribute("axis", 0))) {
    return {nullptr, nullptr};
  }
  // The first column of a single part: Concat(p) of one input.
  const auto alone = [](const Value* part) {
    const Node* inner = producer_of(part, "Concat");
    return inner != nullptr && inner->inputs.size() == 1 ? strip(inner->input(0)) : strip(part);
  };
  return {strip(concat->input(0)), alone(concat->input(1))};
}

}  // namespace

bool is_number(const Value* value, double number) {
  value = strip(value);
  if (value == nullptr || !value->is_initializer() || !is_floating(value->initializer.dtype()) ||
      value->initializer.num_elements() == 0 || value->initializer.num_elements() > 4096) {
    return false;
  }
  return std::ranges::all_of(value->initializer.to_doubles(),
                             [&](double element) { return element == number; });
}

Value* match_negation(const Value* value) {
  if (const Node* neg = producer_of(value, "Neg")) return neg->input(0);
  if (const Node* mul = producer_of(value, "Mul")) return found(operand_beside(*mul, -1));
  if (const Node* div = producer_of(value, "Div")) {
    return is_number(div->input(1), -1) ? div->input(0) : nullptr;
  }
  if (const Node* sub = producer_of(value, "Sub")) {
    return is_number(sub->input(0), 0) ? sub->input(1) : nullptr;
  }
  return nullptr;
}

Value* match_logistic(const Value* value) {
  if (const Node* sigmoid = producer_of(value, "Sigmoid")) return sigmoid->input(0);
  const Value* denominator = nullptr;
  if (const Node* reciprocal = producer_of(value, "Reciprocal")) {
    denominator = reciprocal->input(0);
  } else if (const Node* div = producer_of(value, "Div");
             div != nullptr && is_number(div->input(0), 1)) {
    denominator = div->input(1);
  }
  const Node* exponential =
      denominator == nullptr ? nullptr : producer_of(match_plus_one(denominator), "Exp");
  return exponential == nullptr ? nullptr : match_negation(exponential->input(0));
}

Value* match_clipped_margin(const Value* value) {
  const Value* doubled = nullptr;
  if (const Node* div = producer_of(value, "Div")) {
    if (is_number(div->input(1), 2)) doubled = div->input(0);
  } else if (const Node* mul = producer_of(value, "Mul")) {
    doubled = operand_beside(*mul, 0.5);
  }
  if (doubled == nullptr) return nullptr;
  const Node* clip = producer_of(match_plus_one(doubled), "Clip");
  if (clip == nullptr || !is_number(clip->input(1), -1) || !is_number(clip->input(2), 1)) {
    return nullptr;
  }
  return clip->input(0);
}

Value* match_row_share(const Value* value) {
  const Node* div = producer_of(value, "Div");
  if (div == nullptr) return nullptr;
  const Value* numerator = strip(div->input(0));
  if (depends_on_row_sum(div->input(1), numerator)) return found(numerator);
  const Node* guarded = producer_of(numerator, "Add");
  if (guarded == nullptr) return nullptr;
  for (const std::size_t i : {0U, 1U}) {
    const Value* rows = strip(guarded->input(i));
    if (depends_on_row_sum(guarded->input(1 - i), rows) &&
        depends_on_row_sum(div->input(1), rows)) {
      return found(rows);
    }
  }
  return nullptr;
}

Value* match_unshifted(const Value* value) {
  const Node* sub = producer_of(value, "Sub");
  const Node* max = sub == nullptr ? nullptr : producer_of(sub->input(1), "ReduceMax");
  const bool shifts = reduces_columns(max) && strip(max->input(0)) == strip(sub->input(0));
  return shifts ? sub->input(0) : nullptr;
}

Value* match_complement_columns(const Value* value) {
  const auto [first, second] = column_pair(value);
  const Node* complement = producer_of(first, "Sub");
  if (complement == nullptr || !is_number(complement->input(0), 1)) return nullptr;
  const Value* minuend = strip(complement->input(1));
  const Node* alone = producer_of(minuend, "Concat");
  if (alone != nullptr && alone->inputs.size() == 1) minuend = strip(alone->input(0));
  return minuend == second ? found(second) : nullptr;
}

Value* match_opposite_columns(const Value* value) {
  const auto [first, second] = column_pair(value);
  if (first == nullptr) return nullptr;
  return strip(match_negation(first)) == second ? found(second) : nullptr;
}

ColumnOf match_column(const Value* value) {
  value = strip(value);
  const Node* node = value == nullptr ? nullptr : value->producer;
  if (node == nullptr || node->input(0) == nullptr) return {};
  const bool is_extractor =
      node->domain == "ai.onnx.ml" && node->op_type == "ArrayFeatureExtractor";
  if (!is_extractor && !node->domain.empty()) return {};
  const bool is_gather =
      node->op_type == "Gather" && is_column_axis(node->int_attribute("axis", 0));
  if (is_extractor || is_gather || node->op_type == "Slice") {
    const auto places = constant_integers(node->input(1));
    if (places.size() != 1 || node->input(0)->is_initializer()) return {};
    if (node->op_type == "Slice") {
      const auto axes = constant_integers(node->input(3));
      if (axes.size() != 1 || !is_column_axis(axes.front()) || !is_single_column(*value)) return {};
    }
    return {.matrix = node->input(0), .index = places.front()};
  }
  return {};
}

bool is_affine(const Value* value) {
  static constexpr std::array<std::string_view, 5> kLayers{"MatMul", "Gemm", "Conv",
                                                           "GlobalAveragePool", "ReduceMean"};
  static constexpr std::array<std::string_view, 6> kPasses{"Identity", "Reshape", "Cast",
                                                           "Flatten",  "Squeeze", "Unsqueeze"};
  static constexpr std::array<std::string_view, 4> kWithConstant{"Add", "Sub", "Mul", "Div"};
  const auto is_one_of = [](const auto& ops, const Node& node) {
    return std::ranges::find(ops, node.op_type) != ops.end();
  };
  while (value != nullptr && value->producer != nullptr && value->producer->domain.empty()) {
    const Node& node = *value->producer;
    if (is_one_of(kLayers, node)) return true;
    const Value* next = nullptr;
    if (is_one_of(kPasses, node)) {
      next = node.input(0);
    } else if (is_one_of(kWithConstant, node)) {
      for (const std::size_t i : {0U, 1U}) {
        const Value* constant = strip(node.input(i));
        if (constant != nullptr && constant->is_initializer()) next = node.input(1 - i);
      }
    }
    value = next;
  }
  return false;
}

}  // namespace onnxgrad::train

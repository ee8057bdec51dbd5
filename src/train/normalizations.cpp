#include "train/normalizations.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "train/heads/head_patterns.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

// The node that computes `value`, behind those that keep the numbers; nullptr if there is none.
const Node* source_of(const Value* value) {
  static constexpr std::array<std::string_view, 6> kKeeping{"Identity", "Cast",      "Reshape",
                                                            "Squeeze",  "Unsqueeze", "Transpose"};
  while (value != nullptr && value->producer != nullptr) {
    const Node* node = value->producer;
    if (!node->domain.empty()) return nullptr;
    if (std::ranges::find(kKeeping, node->op_type) == kKeeping.end()) return node;
    value = node->input(0);
  }
  return nullptr;
}

bool is_op(const Node* node, std::string_view op_type) {
  return node != nullptr && node->op_type == op_type;
}

// mean, mean + epsilon, max(mean, epsilon)
bool is_mean(const Value* value) {
  const Node* node = source_of(value);
  if (is_op(node, "Add") || is_op(node, "Max")) {
    const bool first = is_op(source_of(node->input(0)), "ReduceMean");
    return first || is_op(source_of(node->input(1)), "ReduceMean");
  }
  return is_op(node, "ReduceMean");
}

// sqrt(mean + epsilon), and where it is written so the epsilon behind the root.
bool is_deviation(const Value* value) {
  const Node* node = source_of(value);
  if (is_op(node, "Add")) {
    const Value* root = node->input(node->input(0)->is_initializer() ? 1 : 0);
    node = source_of(root);
  }
  if (is_op(node, "Sqrt")) return is_mean(node->input(0));
  return is_op(node, "Pow") && is_number(node->input(1), 0.5) && is_mean(node->input(0));
}

bool is_inverse_deviation(const Value* value) {
  const Node* node = source_of(value);
  if (is_op(node, "Reciprocal")) return is_deviation(node->input(0));
  if (is_op(node, "Div")) return is_number(node->input(0), 1) && is_deviation(node->input(1));
  return is_op(node, "Pow") && is_number(node->input(1), -0.5) && is_mean(node->input(0));
}

}  // namespace

bool is_normalized(const Value* value) {
  const Node* node = source_of(value);
  if (is_op(node, "InstanceNormalization")) return true;
  if (is_op(node, "Div")) return is_deviation(node->input(1));
  return is_op(node, "Mul") &&
         (is_inverse_deviation(node->input(0)) || is_inverse_deviation(node->input(1)));
}

}  // namespace onnxgrad::train

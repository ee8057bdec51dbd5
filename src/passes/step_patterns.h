#ifndef ONNXGRAD_PASSES_STEP_PATTERNS_H_
#define ONNXGRAD_PASSES_STEP_PATTERNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "ir/uses.h"
#include "opdef/fused.h"
#include "opdef/registry.h"

// Queries of nodes and values for the passes that recognise updates of weights.

namespace onnxgrad::passes {

inline bool is_standard(const ir::Node* node, std::string_view op_type) {
  return node != nullptr && node->domain.empty() && node->op_type == op_type;
}

/// Number of elements; -1: not known.
inline std::int64_t num_elements(const ir::Value* value) {
  const auto dims = value->type.static_dims();
  return dims ? dims->num_elements() : -1;
}

/// The common value of all elements of a constant, perhaps expanded, of up to `most_elements`
/// elements.
inline std::optional<double> constant_number(const ir::Value* value, std::int64_t most_elements) {
  while (is_standard(value->producer, "Expand")) value = value->producer->inputs[0];
  const std::int64_t size = num_elements(value);
  if (!value->is_constant() || size < 1 || size > most_elements) return std::nullopt;
  const std::vector<double> numbers = value->initializer.to_doubles();
  const bool are_equal = std::ranges::all_of(numbers, [&](double x) { return x == numbers[0]; });
  return are_equal ? std::optional(numbers[0]) : std::nullopt;
}

/// An update of a weight by a gradient that nothing else reads: onnxgrad.WeightUpdate, or
/// w - rate * gradient for a leaf w.
struct UpdateMatch {
  ir::Value* gradient = nullptr;  ///< nullptr: none
  bool is_descent = false;
  std::vector<ir::Value*> others = {};  ///< w, m, ... or w, rate
};

inline bool is_weight_update(const ir::Node& node) {
  return node.domain == ir::kFunctionDomain &&
         opdef::base_name(node.domain, node.op_type) == opdef::kWeightUpdate;
}

inline UpdateMatch match_weight_update(const ir::Node& node, const ir::Uses& uses) {
  if (is_weight_update(node)) {
    if (uses.count(node.inputs[0]) != 1) return {};
    return {.gradient = node.inputs[0], .others = {node.inputs.begin() + 1, node.inputs.end()}};
  }
  if (!is_standard(&node, "Sub")) return {};
  ir::Value* weight = node.inputs[0];
  const ir::Node* scaled = node.inputs[1]->producer;
  if (weight->producer != nullptr || weight->is_constant() || !is_standard(scaled, "Mul") ||
      uses.count(node.inputs[1]) != 1) {
    return {};
  }
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    ir::Value* rate = scaled->inputs[1 - side];
    ir::Value* gradient = scaled->inputs[side];
    const auto dims = gradient->type.static_dims();
    const bool fits = num_elements(rate) == 1 && dims && weight->type.static_dims() == dims &&
                      node.outputs[0]->type.static_dims() == dims;
    if (fits && uses.count(gradient) == 1) {
      return {.gradient = gradient, .is_descent = true, .others = {weight, rate}};
    }
  }
  return {};
}

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_STEP_PATTERNS_H_

#ifndef ONNXGRAD_PASSES_STEP_PATTERNS_H_
#define ONNXGRAD_PASSES_STEP_PATTERNS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// What the passes that recognise updates of weights ask about nodes and values.

namespace onnxgrad::passes {

inline bool is_standard(const ir::Node* node, std::string_view op_type) {
  return node != nullptr && node->domain.empty() && node->op_type == op_type;
}

/// -1: not known.
inline std::int64_t num_elements(const ir::Value* value) {
  const auto dims = value->type.static_dims();
  return dims ? dims->num_elements() : -1;
}

/// The number that all elements of a constant, or of one that is expanded, are; of up to
/// `most_elements` elements.
inline std::optional<double> constant_number(const ir::Value* value, std::int64_t most_elements) {
  while (is_standard(value->producer, "Expand")) value = value->producer->inputs[0];
  const std::int64_t size = num_elements(value);
  if (!value->is_constant() || size < 1 || size > most_elements) return std::nullopt;
  const std::vector<double> numbers = value->initializer.to_doubles();
  const bool are_equal = std::ranges::all_of(numbers, [&](double x) { return x == numbers[0]; });
  return are_equal ? std::optional(numbers[0]) : std::nullopt;
}

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_STEP_PATTERNS_H_

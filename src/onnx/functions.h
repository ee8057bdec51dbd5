#ifndef ONNXGRAD_ONNX_FUNCTIONS_H_
#define ONNXGRAD_ONNX_FUNCTIONS_H_

#include <cstdint>
#include <string_view>

#include "ir/graph.h"

// Small queries about domains, attributes and model-local functions.

namespace onnxgrad::onnx_io {

inline bool is_standard_domain(std::string_view domain) {
  return domain.empty() || domain == "ai.onnx";
}

/// ONNX's AttributeProto.AttributeType of a value.
int attribute_type(const ir::AttributeValue& value);

/// The ai.onnx version of the function's nodes; `fallback` if it imports none.
std::int64_t opset_of(const ir::Function& function, std::int64_t fallback);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_FUNCTIONS_H_

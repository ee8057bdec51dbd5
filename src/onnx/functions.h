#ifndef ONNXGRAD_ONNX_FUNCTIONS_H_
#define ONNXGRAD_ONNX_FUNCTIONS_H_

#include <cstdint>
#include <string_view>

#include "ir/graph.h"

// Model-local functions: their attributes, and calls of them replaced by their bodies.

namespace onnxgrad::onnx_io {

inline bool is_standard_domain(std::string_view domain) {
  return domain.empty() || domain == "ai.onnx";
}

/// ONNX's AttributeProto.AttributeType of a value.
int attribute_type(const ir::AttributeValue& value);

/// The attribute that a call gives to `function`: its own, else the default; nullptr if neither.
const ir::AttributeValue* call_attribute(const ir::Node& call, const ir::Function& function,
                                         std::string_view name);

/// Replaces every AttributeRef in `body` (a copy of the function's, subgraphs included) by what the
/// call gives; attributes that it does not give are removed.
/// Throws: ModelError (an attribute of another type).
void bind_attributes(ir::Graph& body, const ir::Node& call, const ir::Function& function);

/// Version of ai.onnx that the function's nodes are of; `fallback` if it imports none.
std::int64_t opset_of(const ir::Function& function, std::int64_t fallback);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_FUNCTIONS_H_

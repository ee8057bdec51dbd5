#ifndef ONNXGRAD_ONNX_NODE_RULES_H_
#define ONNXGRAD_ONNX_NODE_RULES_H_

#include <cstdint>
#include <optional>

#include "ir/graph.h"
#include "onnx/schemas.h"

// Checks of single nodes against ONNX's schemas, before its functions or ours read them.

namespace onnxgrad::onnx_io {

/// Checks the number of inputs and outputs, that only optional ones are absent, the element types
/// of the inputs, and that those with one type variable have one type. Throws: ModelError naming
/// input, expected and actual.
void check_call(const ir::Node& node, const Schema& schema);

/// Checks that every attribute is known and of its type, and that required ones are present.
/// Throws: ModelError naming node and attribute.
void check_attribute_types(const ir::Node& node, const Schema& schema);

/// Checks the attributes that ONNX's own inference functions and bodies parse without
/// validation: equations of Einsum. Throws: ModelError.
void check_attribute_values(const ir::Node& node);

/// The body that ONNX defines for `node`, an ai.onnx operator of `opset`; nullopt if it has none
/// for these types and attributes. Throws: ModelError.
std::optional<ir::Function> schema_function(const ir::Node& node, std::int64_t opset);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_NODE_RULES_H_

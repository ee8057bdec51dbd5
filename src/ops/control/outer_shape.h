#ifndef ONNXGRAD_OPS_CONTROL_OUTER_SHAPE_H_
#define ONNXGRAD_OPS_CONTROL_OUTER_SHAPE_H_

#include <span>

#include "ops/rules.h"

namespace onnxgrad::ops {

/// Builds a shape of type `type`, int64 [rank], from values known before a node with subgraphs:
/// constants, and dimensions of `outer` values that have the same symbols. nullptr if a dimension
/// is not known.
Value* find_shape(GraphBuilder& g, const ir::Type& type, std::span<Value* const> outer);

/// Builds the result of `shape`, a Shape node, from constants and dimensions of `outer` values.
Value* find_shape(GraphBuilder& g, const Node& shape, std::span<Value* const> outer);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTROL_OUTER_SHAPE_H_

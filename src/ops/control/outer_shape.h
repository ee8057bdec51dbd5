#ifndef ONNXGRAD_OPS_CONTROL_OUTER_SHAPE_H_
#define ONNXGRAD_OPS_CONTROL_OUTER_SHAPE_H_

#include <span>

#include "ops/rules.h"

namespace onnxgrad::ops {

/// A shape of this type, int64 [rank], from what is known before a node with subgraphs: numbers,
/// and dimensions of `outer` values that have the same symbols. nullptr if it is not known.
Value* find_shape(GraphBuilder& g, const ir::Type& type, std::span<Value* const> outer);

/// The result of `shape`, a Shape node, determined in the same way.
Value* find_shape(GraphBuilder& g, const Node& shape, std::span<Value* const> outer);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTROL_OUTER_SHAPE_H_

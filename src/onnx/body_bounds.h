#ifndef ONNXGRAD_ONNX_BODY_BOUNDS_H_
#define ONNXGRAD_ONNX_BODY_BOUNDS_H_

#include "ir/graph.h"

namespace onnxgrad::onnx_io {

/// Checks the bounds of attributes of operators that have no record in the registry, because their
/// ONNX function bodies are run. Throws: ModelError naming the node, the attribute, its value and
/// its bounds.
void check_body_bounds(const ir::Node& node);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_BODY_BOUNDS_H_

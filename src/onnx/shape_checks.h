#ifndef ONNXGRAD_ONNX_SHAPE_CHECKS_H_
#define ONNXGRAD_ONNX_SHAPE_CHECKS_H_

#include <vector>

#include "ir/graph.h"

namespace onnxgrad::onnx_io {

/// Checks numbers of outputs that ONNX's inference functions take for granted: they would read
/// beyond a list. Throws: ModelError, ShapeError naming expected and actual.
void check_counts(const ir::Node& node);

/// Checks shapes as ONNX's inference functions do not: channels
/// of convolutions, operands that must broadcast to the result, counts of Reshape. Looks only at
/// dimensions that are numbers. `outputs`: the inferred types. Throws: ShapeError naming
/// expected and actual.
void check_shapes(const ir::Node& node, const std::vector<ir::Type>& outputs);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_SHAPE_CHECKS_H_

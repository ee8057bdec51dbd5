#ifndef ONNXGRAD_ONNX_SHAPE_CHECKS_H_
#define ONNXGRAD_ONNX_SHAPE_CHECKS_H_

#include <vector>

#include "ir/graph.h"

namespace onnxgrad::onnx_io {

/// What the operators' definitions ask of shapes and ONNX's inference functions let pass: channels
/// of convolutions, operands that must broadcast to the result, counts of Reshape. Looks at
/// dimensions that are numbers only. `outputs`: the inferred types. Throws: ShapeError naming what
/// was expected and given.
void check_shapes(const ir::Node& node, const std::vector<ir::Type>& outputs);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_SHAPE_CHECKS_H_

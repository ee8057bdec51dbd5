#ifndef ONNXGRAD_ONNX_CONTROL_FLOW_H_
#define ONNXGRAD_ONNX_CONTROL_FLOW_H_

#include <functional>
#include <vector>

#include "ir/graph.h"

// Types of the outputs of If, Loop and Scan from their bodies. ONNX's own functions forget the
// shapes of Loop's states; here a state keeps the dimensions that no iteration changes.

namespace onnxgrad::onnx_io {

/// Infers the nodes of a body whose inputs have their types.
using InferBody = std::function<void(ir::Graph& body)>;

/// One type per output of `node`, with unknown parts. Of an If, a branch whose shapes do not fit is
/// no error as long as the other one fits: it is not taken then, and the types of its values are
/// forgotten. Sets the types of the bodies' values.
/// Throws: ModelError (missing body, counts that do not fit), ShapeError (axes out of range).
std::vector<ir::Type> infer_if(ir::Node& node, const InferBody& infer_body);
/// `max_rounds`: how often the body may be inferred to find what its iterations keep; 1: no shapes.
std::vector<ir::Type> infer_loop(ir::Node& node, const InferBody& infer_body, int max_rounds);
std::vector<ir::Type> infer_scan(ir::Node& node, const InferBody& infer_body);

/// What both types say: equal parts, unknown where they differ. Throws: ModelError (element types
/// that differ).
ir::Type common_type(const ir::Type& a, const ir::Type& b);

/// `inferred`, with what it leaves unknown taken from `declared`. A dimension that inference knows
/// to be a number or a symbol wins over the declaration. Throws: ModelError (kind or element type
/// differ).
ir::Type merge_types(const ir::Type& inferred, const ir::Type& declared);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_CONTROL_FLOW_H_

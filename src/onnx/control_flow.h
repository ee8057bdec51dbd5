#ifndef ONNXGRAD_ONNX_CONTROL_FLOW_H_
#define ONNXGRAD_ONNX_CONTROL_FLOW_H_

#include <functional>
#include <vector>

#include "ir/graph.h"

// Inference of the types of If, Loop and Scan from their bodies. ONNX's own functions forget the
// shapes of Loop's states; here a state keeps the dimensions that no iteration changes.

namespace onnxgrad::onnx_io {

/// Infers the nodes of a body whose input types are set.
using InferBody = std::function<void(ir::Graph& body)>;

/// Makes the checks of infer_if() for an If whose branch is taken when the model is read.
/// Throws: ModelError (a branch with inputs, or with another number of outputs than the node).
void check_branches(const ir::Node& node);

/// Infers one type per output of `node`, with unknown parts. In an If, a branch of inconsistent
/// shapes is no error as long as the other one is consistent: it is not taken then, and the types
/// of its values are forgotten. Sets the types of the bodies' values. Throws: ModelError (missing
/// body, mismatched counts), ShapeError (axes out of range).
std::vector<ir::Type> infer_if(ir::Node& node, const InferBody& infer_body);
/// `max_rounds`: number of times that the body may be inferred to find dimensions that iterations
/// keep; 1: no shapes.
std::vector<ir::Type> infer_loop(ir::Node& node, const InferBody& infer_body, int max_rounds);
std::vector<ir::Type> infer_sequence_map(ir::Node& node, const InferBody& infer_body);
std::vector<ir::Type> infer_scan(ir::Node& node, const InferBody& infer_body);

/// The common part of both types, unknown where they differ. Throws: ModelError (different element
/// types).
ir::Type common_type(const ir::Type& a, const ir::Type& b);

/// `type` with an unknown shape, also of the elements of a sequence.
ir::Type without_shape(ir::Type type);

/// `inferred`, with unknown parts taken from `declared`. A dimension inferred
/// as a number or a symbol takes precedence. Throws: ModelError (kind or element type
/// differ).
ir::Type merge_types(const ir::Type& inferred, const ir::Type& declared);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_CONTROL_FLOW_H_

#ifndef ONNXGRAD_ONNX_GRADIENT_NODES_H_
#define ONNXGRAD_ONNX_GRADIENT_NODES_H_

#include <vector>

#include "ir/builder.h"
#include "opdef/gradient_at.h"

// The operator Gradient (ai.onnx.preview.training 1). Its attributes xs, zs and y name values of
// the graph, which would no longer be found in a rewritten model. So the named values first become
// further inputs of the node, after the fed ones: they then follow every rewrite, and all nodes
// that y depends on come before the node.

namespace onnxgrad::onnx_io {

bool is_gradient_node(const ir::Node& node);
/// True if the graph or one of its subgraphs has a Gradient node.
bool has_gradient_nodes(const ir::Graph& graph);

/// Makes the named values inputs of every Gradient node of the model and of its functions. Throws:
/// ModelError (unknown name, nothing to differentiate, y depends on the node itself).
void resolve_gradient_names(ir::Model& model);

/// Writes nodes that compute the outputs of a Gradient node, which is in no list, through `g`.
/// Throws: ModelError (tensors of another type), GradientError (nodes without a gradient), both
/// naming the node.
void expand_gradient_node(ir::Node& node, ir::GraphBuilder& g,
                          const opdef::GradientAtFn& gradient_at);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_GRADIENT_NODES_H_

#ifndef ONNXGRAD_ONNX_GRADIENT_NODES_H_
#define ONNXGRAD_ONNX_GRADIENT_NODES_H_

#include <vector>

#include "ir/builder.h"
#include "opdef/gradient_at.h"

// The operator Gradient (ai.onnx.preview.training 1). Its attributes xs, zs and y name values of
// the graph; once a model is rewritten, names would no longer be found. So the named values become
// further inputs of the node first, after those that are fed: they then follow every rewrite, and
// what y is computed with comes before the node.

namespace onnxgrad::onnx_io {

bool is_gradient_node(const ir::Node& node);
/// True if the graph or one of its subgraphs has one.
bool has_gradient_nodes(const ir::Graph& graph);

/// Does this for every Gradient node of the model and of its functions. Throws: ModelError (unknown
/// name, nothing to differentiate, y depends on the node itself).
void resolve_gradient_names(ir::Model& model);

/// Writes nodes that compute the outputs of such a node, which is in no list, through `g`. Throws:
/// ModelError (tensors of another type), GradientError (nodes without a gradient), both naming the
/// node.
void expand_gradient_node(ir::Node& node, ir::GraphBuilder& g,
                          const opdef::GradientAtFn& gradient_at);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_GRADIENT_NODES_H_

#ifndef ONNXGRAD_IR_INLINE_H_
#define ONNXGRAD_IR_INLINE_H_

#include <cstddef>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

namespace onnxgrad::ir {

/// Replaces the call `node` by the body of `function`, in place: the body's nodes take the call's
/// position in its graph; its outputs keep their names and addresses. Attribute references become
/// the call's attributes, or the function's defaults; references to neither are dropped. Types of
/// new values are inferred. The body is copied, so a function can be inlined any number of times.
/// Throws: ModelError (more inputs or outputs than the function has).
void inline_call(Node& node, const Function& function, const TypeInferer& inferer);

/// Drops absent inputs at the end of the list while there are more than `min_inputs`: an optional
/// input named "" is equivalent to one that is not listed.
void trim_inputs(Node& node, std::size_t min_inputs = 0);

/// The first half of inline_call: the body's nodes in order, bound to the call's inputs, outputs
/// and attributes. They belong to the call's graph but are not in its list of nodes, and the types
/// of their values are unknown. Throws: ModelError.
std::vector<Node*> expand_call(Node& node, const Function& function);

/// The nodes of a copy of `body`, a subgraph of `node` without inputs that replaces the node; its
/// outputs keep their names and addresses. As after expand_call(), the nodes are in no list.
std::vector<Node*> expand_body(Node& node, const Graph& body);

/// Replaces the attribute references of `node`, a node of a copy of `function`'s body, and of its
/// subgraphs by `call`'s attributes or the function's defaults; references to neither are dropped.
void bind_attributes(Node& node, const Node& call, const Function& function);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_INLINE_H_

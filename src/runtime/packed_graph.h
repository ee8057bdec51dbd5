#ifndef ONNXGRAD_RUNTIME_PACKED_GRAPH_H_
#define ONNXGRAD_RUNTIME_PACKED_GRAPH_H_

#include "ir/graph.h"
#include "opdef/kernel.h"
#include "opdef/packed_kind.h"

namespace onnxgrad::runtime {

/// Makes every sequence, optional and map of `graph` and its subgraphs a tensor of bytes
/// (base/packed.h). Nodes of ai.onnx and ai.onnx.ml that `kernels` has a dynamic kernel for in
/// domain ir::kFusedDomain move there; "kinds" says what their inputs, then their outputs, were:
/// see opdef::PackedKind.
void pack_values(ir::Graph& graph, const opdef::KernelRegistry& kernels);

/// True for nodes outside of functions that pack_values() moves.
bool runs_packed(const ir::Node& node, const opdef::KernelRegistry& kernels);
/// True for values that pack_values() packs.
bool is_packed(const ir::Type& type);
/// The type that a value of type `type` has then.
ir::Type packed_type(const ir::Type& type);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PACKED_GRAPH_H_

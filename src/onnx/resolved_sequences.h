#ifndef ONNXGRAD_ONNX_RESOLVED_SEQUENCES_H_
#define ONNXGRAD_ONNX_RESOLVED_SEQUENCES_H_

#include "ir/graph.h"

namespace onnxgrad::onnx_io {

/// Drops what is left of sequences and optionals whose elements are read as tensors: nodes that
/// make them, and states of Loops that serve nothing but themselves. Subgraphs are looked into.
void drop_resolved_sequences(ir::Graph& graph);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_RESOLVED_SEQUENCES_H_

#ifndef ONNXGRAD_RUNTIME_ELEMENT_TYPES_H_
#define ONNXGRAD_RUNTIME_ELEMENT_TYPES_H_

#include "ir/graph.h"
#include "opdef/registry.h"

namespace onnxgrad::runtime {

/// Throws: UnsupportedOperatorError naming the type and the first node, for a model that
/// computes in a floating-point type other than float32 and float64. Moving such elements is
/// allowed.
void check_element_types(const ir::Graph& graph, const opdef::OpRegistry& ops);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_ELEMENT_TYPES_H_

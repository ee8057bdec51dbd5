#ifndef ONNXGRAD_OPDEF_SHAPE_VALUES_H_
#define ONNXGRAD_OPDEF_SHAPE_VALUES_H_

#include <span>
#include <unordered_set>

#include "ir/graph.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

namespace onnxgrad::opdef {

/// The values whose elements must be known before `nodes` can be planned: those computed from
/// integers and shapes alone, for an input that determines a shape or that a kernel needs at plan
/// time (OpDef::shape_inputs, planned_inputs), and lists of floating-point numbers that are passed
/// to the latter as they are (the scales of Resize). Class labels, step counts and indices are not.
/// `nodes`: in topological order. Subgraphs and bodies of functions of `model` are examined.
/// `kernels` specifies which shapes depend on values (KernelRegistry::dynamic).
std::unordered_set<const ir::Value*> shape_values(std::span<ir::Node* const> nodes,
                                                  const ir::Model& model, const OpRegistry& ops,
                                                  const KernelRegistry& kernels);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_SHAPE_VALUES_H_

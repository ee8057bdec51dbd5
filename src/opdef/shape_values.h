#ifndef ONNXGRAD_OPDEF_SHAPE_VALUES_H_
#define ONNXGRAD_OPDEF_SHAPE_VALUES_H_

#include <span>
#include <unordered_set>

#include "ir/graph.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

namespace onnxgrad::opdef {

/// The values whose elements have to be known before `nodes` can be planned: what is computed, from
/// integers and shapes alone, for an input that gives a shape or that a kernel wants at plan time
/// (OpDef::shape_inputs, planned_inputs). Class labels, step counts and indices are not among them.
/// `nodes`: in a topological order. Subgraphs and bodies of functions of `model` are looked into.
/// `kernels` says which shapes depend on values (KernelRegistry::dynamic).
std::unordered_set<const ir::Value*> shape_values(std::span<ir::Node* const> nodes,
                                                  const ir::Model& model, const OpRegistry& ops,
                                                  const KernelRegistry& kernels);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_SHAPE_VALUES_H_

#ifndef ONNXGRAD_ONNX_KNOWN_BRANCHES_H_
#define ONNXGRAD_ONNX_KNOWN_BRANCHES_H_

#include "ir/builder.h"
#include "ir/graph.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

// An If whose condition follows from constants, ranks and static dimensions is its branch.
// Exporters write such conditions (`Size(Shape(x)) == 0`), and nothing sees through an If: neither
// the walk to the scores nor the types behind it.

namespace onnxgrad::onnx_io {

/// What a value is before anything runs; undefined if that is not known. Looks back along producers
/// whose types have been inferred. `evaluator`: computes operators on constants; nullptr: only what
/// follows from types and from integers is known.
Tensor find_constant(const ir::Value& value, const opdef::OpRegistry& ops,
                     const opdef::Evaluator* evaluator);

/// The subgraph that `node` stands for (OpDef::taken_body), or nullptr.
const ir::Graph* known_body(const ir::Node& node, const opdef::OpRegistry& ops,
                            const opdef::Evaluator* evaluator);

/// Replaces nodes by the subgraphs that they stand for, those in subgraphs too, and infers types
/// anew where one was replaced.
void take_known_branches(ir::Model& model, const ir::TypeInferer& inferer,
                         const opdef::OpRegistry& ops, const opdef::Evaluator& evaluator);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_KNOWN_BRANCHES_H_

#ifndef ONNXGRAD_ONNX_KNOWN_BRANCHES_H_
#define ONNXGRAD_ONNX_KNOWN_BRANCHES_H_

#include "ir/builder.h"
#include "ir/graph.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

// Replaces an If whose condition follows from constants, ranks and static dimensions by its branch.
// Exporters write such conditions (`Size(Shape(x)) == 0`), and nothing sees through an If: neither
// the walk to the scores nor type inference after it.

namespace onnxgrad::onnx_io {

/// The value if it is known before anything runs, else undefined. Traces back through producers
/// whose types have been inferred. `evaluator`: computes operators on constants; nullptr: only what
/// follows from types and integers is known.
Tensor find_constant(const ir::Value& value, const opdef::OpRegistry& ops,
                     const opdef::Evaluator* evaluator);

/// The subgraph that replaces `node` (OpDef::taken_body), or nullptr.
const ir::Graph* known_body(const ir::Node& node, const opdef::OpRegistry& ops,
                            const opdef::Evaluator* evaluator);

/// Replaces nodes by the subgraphs of known_body(), also within subgraphs, and infers types again
/// after a replacement.
void take_known_branches(ir::Model& model, const ir::TypeInferer& inferer,
                         const opdef::OpRegistry& ops, const opdef::Evaluator& evaluator);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_KNOWN_BRANCHES_H_

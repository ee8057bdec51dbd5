#ifndef ONNXGRAD_ONNX_MODEL_RULES_H_
#define ONNXGRAD_ONNX_MODEL_RULES_H_

#include "ir/graph.h"

// Conditions on a model as a whole, checked before anything else, including ONNX's library, reads
// it.

namespace onnxgrad::onnx_io {

class OperatorTable;

/// Checks that versions are in range, that every domain is imported once, and that functions are
/// defined once, are not recursive and have a bounded number of nodes after expansion. Throws:
/// ModelError naming what is wrong, the actual and the allowed values.
void check_model(const ir::Model& model);

/// Checks the bound on nodes with calls of registered operators expanded as well; functions of the
/// model and bodies of the table may call each other. Throws: ModelError (too many nodes, a
/// circle).
void check_expansion(const ir::Model& model, const OperatorTable& table);
/// Checks the bound on nodes for every body and gradient of the table.
void check_expansion(const OperatorTable& table);

/// Adds the imports of ai.onnx, ai.onnx.ml and com.microsoft that nodes of the graph need and that
/// the model lacks, in the version that onnxruntime assumes: its newest.
void add_known_imports(ir::Model& model);

/// The function that `node` calls (domain, name and overload); nullptr if it is not a call.
const ir::Function* called_function(const ir::Model& model, const ir::Node& node);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_MODEL_RULES_H_

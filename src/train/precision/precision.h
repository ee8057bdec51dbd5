#ifndef ONNXGRAD_TRAIN_PRECISION_H_
#define ONNXGRAD_TRAIN_PRECISION_H_

#include <unordered_map>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/graph.h"
#include "onnxgrad/precision.h"
#include "opdef/registry.h"

// Mixed precision as Casts in the graph of a model and its gradient. A 16-bit value is two nodes,
// Cast to 16 bits and Cast back: every operator computes in float32, in any runtime, and a plan
// finds its 16-bit products in the pattern (passes/narrow_matmuls.cpp).

namespace onnxgrad::train {

/// Throws: OptionError for an option out of range.
void check_precision(const MixedPrecision& precision);

/// Properties of the graph that the rewrite must know.
struct PrecisionScope {
  /// Nodes of the backward sweep, each with the node whose rule wrote it, or nullptr.
  std::unordered_map<const ir::Node*, const ir::Node*> backward = {};
  /// Results of the last products that may be stored in 16 bits too: scores of classes.
  std::unordered_set<const ir::Value*> stored_scores = {};
};

/// Inserts the Casts. Float32 values that a later product of the same pass (forward or backward)
/// depends on are stored in 16 bits, at the end of each group of element-wise nodes: operands of
/// products and of other operators that are not element-wise, and values that the forward pass
/// saves for the backward pass. So nothing is rounded within a chain of element-wise nodes, nor
/// after the last product: the loss, its gradient and the gradients of weights are float32. Values
/// that callers hold keep their type and name the number before it is rounded. Throws: OptionError
/// (a pattern without a match; products of float64 only).
void lower_precision(ir::GraphBuilder& g, const opdef::OpRegistry& registry,
                     const MixedPrecision& precision, const PrecisionScope& scope);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PRECISION_H_

#ifndef ONNXGRAD_TRAIN_HEADS_HEAD_EVIDENCE_H_
#define ONNXGRAD_TRAIN_HEADS_HEAD_EVIDENCE_H_

#include "ir/graph.h"

// Evidence in the graph before a value, if there is no squashing function: whether its
// columns can be probabilities, and whether a loss on it could train anything.

namespace onnxgrad::train {

/// True if `value` cannot be negative, as far as the operators that compute it and the signs of
/// constants show: sigmoids, exponentials, leaves of trees with fractions of classes, and sums,
/// products, means, columns of such. False if it may be negative, or nothing is known. Looks at
/// some thousand nodes at most.
bool is_never_negative(const ir::Value* value);

/// True if a gradient can reach an input or a tensor of the file from `value`: not through
/// comparisons and roundings alone (votes).
bool may_have_gradient(const ir::Value* value);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_HEADS_HEAD_EVIDENCE_H_

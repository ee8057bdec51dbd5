#ifndef ONNXGRAD_TRAIN_HEADS_TIE_COLUMNS_H_
#define ONNXGRAD_TRAIN_HEADS_TIE_COLUMNS_H_

#include <memory>

#include "ir/graph.h"

// Layers of two opposite columns, [-s, s], which exporters write for two-class models with one
// score s: a binary LogisticRegression in float64 is MatMul with coefficients [F, 2], Add of a bias
// [1, 2], a Sigmoid of both columns and a division by their sum. Trained unchanged, the columns
// would drift apart, and the file's probabilities would no longer be the sigmoid of a score. For
// training, such a layer is one column w, and [-w, w] is written to the file again.

namespace onnxgrad::train {

/// `working` with every layer of opposite columns tied: the weight has one column (one row if a
/// Gemm transposes it), keeps its name, and has a WeightOrigin whose index and factor map back to
/// both; the results are the same. `working` itself if there is none. A layer is tied if its
/// output, which a Sigmoid, Softmax or ArgMax reads, is [N, 2], each number of its weight and of
/// its bias is exactly the opposite of its neighbour's, and nothing else reads these two. Columns
/// of zeros could be anything: they are tied only before a Sigmoid whose rows are divided by their
/// sum.
std::shared_ptr<const ir::Model> tie_opposite_columns(std::shared_ptr<const ir::Model> working);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_HEADS_TIE_COLUMNS_H_

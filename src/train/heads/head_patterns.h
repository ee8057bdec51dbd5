#ifndef ONNXGRAD_TRAIN_HEADS_HEAD_PATTERNS_H_
#define ONNXGRAD_TRAIN_HEADS_HEAD_PATTERNS_H_

#include <cstdint>

#include "ir/pattern.h"

// Patterns that exporters write at the end of a classifier instead of one operator: sigmoids in
// four nodes, divisions by the sum of a row with a guard against zero, the second column of a
// two-class model. Each function examines the few nodes that compute a value and returns their
// input, or nullptr. Operands may be in either order; Identity nodes in between are ignored.

namespace onnxgrad::train {

/// x of -x: Neg(x), Mul(x, -1), Div(x, -1), Sub(0, x).
ir::Value* match_negation(const ir::Value* value);

/// x of 1 / (1 + exp(-x)): Sigmoid(x), Reciprocal(Add(Exp(-x), 1)), Div(1, Add(Exp(-x), 1)).
ir::Value* match_logistic(const ir::Value* value);

/// x of (min(max(x, -1), 1) + 1) / 2, the probability of a modified Huber loss.
ir::Value* match_clipped_margin(const ir::Value* value);

/// x of x / sum(x) over the columns of each row of a matrix. Numerator and denominator may add a
/// term that depends only on the sum (a guard against division by zero); the sum may be of absolute
/// values.
ir::Value* match_row_share(const ir::Value* value);

/// x of x - max(x) over the columns of each row.
ir::Value* match_unshifted(const ir::Value* value);

/// x of x - log(sum(exp(x))) over the columns of each row; the sums may be reshaped.
ir::Value* match_log_softmax(const ir::Value* value);

/// p of Concat(1 - p, p) along the columns, the probability of the second class; also 1 - q of
/// Concat(q, 1 - q).
ir::Value* match_complement_columns(const ir::Value* value);

/// s of Concat(-s, s) along the columns, the score of the second class; also -t of Concat(t, -t).
ir::Value* match_opposite_columns(const ir::Value* value);

/// x of x * 1 and x / 1, which converters of boosted trees write.
ir::Value* match_times_one(const ir::Value* value);

/// One column of a matrix.
struct ColumnOf {
  ir::Value* matrix = nullptr;  ///< nullptr: not a column
  std::int64_t index = 0;
};
/// Slice, Gather or ArrayFeatureExtractor at a constant position.
ColumnOf match_column(const ir::Value* value);

/// True for a matrix with two columns.
bool has_two_columns(const ir::Value& value);

/// True if `value` is a layer's result without an activation: MatMul, Gemm, Conv, a pooled mean,
/// and these with constants added or multiplied.
bool is_affine(const ir::Value* value);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_HEADS_HEAD_PATTERNS_H_

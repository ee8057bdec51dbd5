#ifndef ONNXGRAD_OPS_CONTRIB_ATTENTION_H_
#define ONNXGRAD_OPS_CONTRIB_ATTENTION_H_

#include "ops/contrib/contrib.h"

namespace onnxgrad::ops {

/// Projected operands of Attention and QAttention. `qkv` is [B, S, width] with the columns of
/// queries, keys and values side by side; `mask`, `past` and `bias` are indices of the node's
/// inputs, -1 for one that the operator does not have.
struct ProjectedInputs {
  Value* qkv = nullptr;
  std::int64_t width = 0;  ///< columns of qkv
  int mask = -1;
  int past = -1;
  int bias = -1;
};

/// Returns the output [B, S, N * D] and the present keys and values [2, B, N, T, D].
Lowered attend_projected(const Node& node, GraphBuilder& g, const ProjectedInputs& inputs);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTRIB_ATTENTION_H_

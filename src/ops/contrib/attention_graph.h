#ifndef ONNXGRAD_OPS_CONTRIB_ATTENTION_GRAPH_H_
#define ONNXGRAD_OPS_CONTRIB_ATTENTION_GRAPH_H_

#include "ops/contrib/contrib.h"

// Helpers shared by the attention operators of com.microsoft. Letters: B batch, S queries, T keys,
// N heads of queries, K heads of keys and values (K divides N), D size of a head.

namespace onnxgrad::ops {

/// Reshapes [B, S, N * D] to [B, N, S, D]; `size` is D.
Value* split_heads(GraphBuilder& g, Value* x, std::int64_t heads, std::int64_t size);
/// Reshapes [B, N, S, D] to [B, S, N * D]; `size` is D.
Value* merge_heads(GraphBuilder& g, Value* x, std::int64_t heads, std::int64_t size);
/// Concatenates `past` [B, N, P, D] and `x` [B, N, S, D] along the sequence; `past` may be absent.
Value* append_past(GraphBuilder& g, Value* past, Value* x);

/// Returns a bias of 0 where `allowed`, `filter` elsewhere, in the dtype of `like`.
Value* mask_bias(GraphBuilder& g, Value* allowed, Value* like, double filter);
/// Bias that masks a score whatever other biases add to it: the lowest float32.
inline constexpr double kNever = -3.4028234663852886e38;
/// Returns 0, 1, ... as int64 [size of `x` along `axis`].
Value* positions_along(GraphBuilder& g, Value* x, std::int64_t axis);

struct Attention {
  Value* q = nullptr;  ///< [B, N, S, D]
  Value* k = nullptr;  ///< [B, K, T, D]
  Value* v = nullptr;  ///< [B, K, T, size of a head of values]
  std::int64_t heads = 1;
  std::int64_t key_heads = 1;
  double scale = 1;
  double softcap = 0;          ///< scores become softcap * tanh(score / softcap) if positive
  std::vector<Value*> biases;  ///< added to the scores, broadcasting to [B, N, S, T]
  Value* sink = nullptr;       ///< extra logit of each head's softmax, without a value; [N]
  bool has_zero_sink = false;  ///< an extra logit of 0 in each softmax
  Value* scores = nullptr;     ///< result: the input of the softmax, [B, N, S, T]
};

/// Computes softmax(scale q k' + biases) v, [B, N, S, size of a head of values].
Value* attend(GraphBuilder& g, Attention& attention);

/// Returns the node's attribute `scale` if it is present and not zero, else 1 / sqrt(size).
double attention_scale(const Node& node, std::int64_t size);

/// Rotary embedding: rotates the first 2 R elements of the last axis of `x`, as R pairs, by the
/// angles with cosines `cos` and sines `sin`, which broadcast to [..., R]. Pair i holds the
/// elements (i, i + R), if interleaved (2 i, 2 i + 1). `size` is the length of the last axis.
Value* rotate(GraphBuilder& g, Value* x, Value* cos, Value* sin, std::int64_t size,
              std::int64_t planes, bool interleaved);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTRIB_ATTENTION_GRAPH_H_

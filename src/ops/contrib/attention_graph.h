#ifndef ONNXGRAD_OPS_CONTRIB_ATTENTION_GRAPH_H_
#define ONNXGRAD_OPS_CONTRIB_ATTENTION_GRAPH_H_

#include "ops/contrib/contrib.h"

// What the attention operators of com.microsoft share. Letters: B batch, S queries, T keys, N heads
// of queries, K heads of keys and values (K divides N), D size of a head.

namespace onnxgrad::ops {

/// [B, S, N * D] to [B, N, S, D]; `size` is D.
Value* split_heads(GraphBuilder& g, Value* x, std::int64_t heads, std::int64_t size);
/// [B, N, S, D] to [B, S, N * D]; `size` is D.
Value* merge_heads(GraphBuilder& g, Value* x, std::int64_t heads, std::int64_t size);
/// [B, P, D] behind [B, Q, D], per head; `past` may be absent.
Value* append_past(GraphBuilder& g, Value* past, Value* x);

/// 0 where `allowed`, `filter` elsewhere, in the type of `like`.
Value* mask_bias(GraphBuilder& g, Value* allowed, Value* like, double filter);
/// What masks a score for good, whatever other masks add.
inline constexpr double kNever = -3.4028234663852886e38;
/// int64 [size of `x` along `axis`]: 0, 1, ...
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
  Value* sink = nullptr;       ///< one more score per head that goes to no value; [N]
  bool has_zero_sink = false;  ///< the same with a score of 0
  Value* scores = nullptr;     ///< result: what softmax gets, [B, N, S, T]
};

/// softmax(scale q k' + biases) v, [B, N, S, size of a head of values].
Value* attend(GraphBuilder& g, Attention& attention);

/// 1 / sqrt(size), or the node's attribute `scale` where it is there and not zero.
double attention_scale(const Node& node, std::int64_t size);

/// The first 2 R elements of the last axis of x turned in R planes by angles with these cosines and
/// sines, which broadcast to [..., R]: pairs are (i, i + R), interleaved (2 i, 2 i + 1). `size` is
/// that of the last axis.
Value* rotate(GraphBuilder& g, Value* x, Value* cos, Value* sin, std::int64_t size,
              std::int64_t planes, bool interleaved);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTRIB_ATTENTION_GRAPH_H_

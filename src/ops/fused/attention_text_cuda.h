#ifndef ONNXGRAD_OPS_FUSED_ATTENTION_TEXT_CUDA_H_
#define ONNXGRAD_OPS_FUSED_ATTENTION_TEXT_CUDA_H_

#include <string>

// Texts of attention and its gradient (opdef/attention.h) on a card. Tiles of queries and keys are
// in shared memory; scores never leave it. The gradient recomputes them twice, for the keys and for
// the queries, so that each result is summed by one thread, in a fixed order.

namespace onnxgrad::ops {

/// Words of all kernels: q, k, v, y, statistics; heads, query heads of a key head, queries, keys,
/// size of a key, of a value, whether the mask is causal, its offset; scale (real), masks, random
/// words below this drop, factor of kept elements (real); words of random numbers.
inline constexpr int kAttentionRandom = 17;
/// Views of q, k, v and y: offset, sizes of two inner axes of heads, steps of three, of a row and
/// of an element of a row.
inline constexpr int kAttentionViews = 25;
inline constexpr int kViewWords = 8;
/// Masks: address, kind, fill (real), view; the address is 0 after the last.
inline constexpr int kAttentionMasks = 57;
inline constexpr int kMostMasks = 3;
/// For the gradient: dy, dq, dk, dv, dscore, then views of the first four.
inline constexpr int kAttentionGradients = 90;
inline constexpr int kGradientWords = kAttentionGradients + 5 + 4 * kViewWords;

/// Both texts follow block_text() and types: og_t of sums and results, og_q, og_k, og_v, og_m of
/// added masks as they are stored.
///
/// Text of og_attention. og_rows, og_keys and og_size precede it too: queries and keys of a tile,
/// and the size of a head, padded.
std::string attention_text();
/// Text of og_keys_back (dk, dv) and og_queries_back (dq, dscore). The types og_y and og_dy,
/// og_tile and og_size precede it too.
std::string attention_gradient_text();

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_ATTENTION_TEXT_CUDA_H_

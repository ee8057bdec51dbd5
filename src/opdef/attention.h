#ifndef ONNXGRAD_OPDEF_ATTENTION_H_
#define ONNXGRAD_OPDEF_ATTENTION_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// `Attention` and `AttentionGradient` of domain `onnxgrad.fused`, as typed structs; the pass
// fuse_attention makes them, ops/fused/attention_cpu.cpp runs them.
//
// Letters: N heads of queries in all sequences of the batch, K heads of keys and values (K divides
// N: N / K adjacent heads of queries share one), S queries, T keys, D size of a head of queries and
// keys, E size of a head of values.

namespace onnxgrad::opdef {

/// A logical tensor as part of a dense one: element (i, j, ...) is at offset + i * strides[0] +
/// j * strides[1] + ... Strides may be 0.
struct StridedView {
  std::int64_t offset = 0;
  std::vector<std::int64_t> dims = {};
  std::vector<std::int64_t> strides = {};
  bool operator==(const StridedView&) const = default;

  std::vector<std::int64_t> to_ints() const;
  static StridedView from_ints(const std::vector<std::int64_t>& ints);
};

/// Kinds of masks, applied to the scaled scores in order before the softmax.
enum class MaskKind : std::int64_t {
  kAdd,       ///< score + mask
  kKeep,      ///< mask ? score : fill
  kOverwrite  ///< mask ? fill : score
};

struct AttentionMask {
  MaskKind kind = MaskKind::kAdd;
  float fill = 0;         ///< for kKeep and kOverwrite
  StridedView view = {};  ///< [N..., S, T]
};

/// (q, k, v, masks...) -> (y, stats or probabilities):
///   score = scale q k', masked;  y = dropout(softmax(score)) v
/// probabilities: softmax(score), [N * S, T], if `stores_probabilities`. Otherwise stats: [N * S,
/// 2], the largest score of each row, and 1 / sum(exp(score - largest)). With `probabilities_type`
/// the probabilities are rounded to that type before they are multiplied, and stored in it; with
/// `rounds_gradient` only those that the gradient uses. Leading axes of a view are flattened in
/// order: their product is N or K. The last axis of q, v and y has stride 1; of k, one of the last
/// two axes has. The dropout takes its random numbers from the node's random stream.
struct Attention {
  StridedView q = {};  ///< [N..., S, D]
  StridedView k = {};  ///< [K..., T, D]
  StridedView v = {};  ///< [K..., T, E]
  StridedView y = {};  ///< [N..., S, E]
  double scale = 1;
  bool causal = false;
  std::int64_t causal_offset = 0;  ///< row i sees keys up to i + causal_offset
  std::vector<AttentionMask> masks = {};
  double dropout = 0;  ///< fraction that is dropped
  bool stores_probabilities = false;
  DataType probabilities_type =
      DataType::kUndefined;  ///< float16, bfloat16, or that of the operands
  bool rounds_gradient = false;

  static Attention read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kAttention = "Attention";

/// (dy, y, stats or probabilities, q, k, v, masks...) -> (dq, dk, dv, dscore): the gradient of
/// Attention. dscore, of the masked scores, is dense, [N * S, T]. Absent results are not computed.
/// Where y has sums of rounded probabilities it may be absent: sum(dy y) of a row is then computed
/// from the probabilities.
struct AttentionGradient {
  Attention forward = {};
  StridedView dy = {};  ///< shape of y
  StridedView dq = {};  ///< shapes of q, k and v, dense; empty if absent
  StridedView dk = {};
  StridedView dv = {};

  static AttentionGradient read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kAttentionGradient = "AttentionGradient";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_ATTENTION_H_

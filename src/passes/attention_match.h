#ifndef ONNXGRAD_PASSES_ATTENTION_MATCH_H_
#define ONNXGRAD_PASSES_ATTENTION_MATCH_H_

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "ir/uses.h"
#include "opdef/attention.h"

// Finds attention, and its gradient, in a graph that rules and exporters wrote:
//
//   scores = masks(scale q kt);  p = Softmax(scores);  y = MatMul(Dropout(p), v)
//
// with any number of scales, masks and reshapes in between, p perhaps rounded to 16 bits, and
//
//   dv = MatMul(Transpose(Dropout(p)), dy)      dp = dropout(MatMul(dy, Transpose(v)))
//   ds = p' (dp - ReduceSum(p' dp)), p' being p without the NaN that nothing depends on
//   dq = MatMul(ds, Transpose(kt)), dkt = MatMul(Transpose(q), ds), after the gradients of masks
//   and scales

namespace onnxgrad::passes {

/// One node between the product of queries and keys and the softmax.
struct ScoreStep {
  enum class Kind : std::uint8_t { kScale, kMask, kReshape };

  Kind kind = Kind::kScale;
  ir::Node* node = nullptr;
  double factor = 1;  // for kScale
  opdef::MaskKind mask_kind = {};
  ir::Value* mask = nullptr;
  float fill = 0;
};

/// The nodes of one attention. Values are those of the graph, before anything is replaced.
struct AttentionMatch {
  ir::Node* scores = nullptr;  // MatMul(q, kt)
  std::vector<ScoreStep> steps = {};
  ir::Node* softmax = nullptr;
  DataType probabilities_type = DataType::kUndefined;  // 16-bit type that p is rounded to
  bool rounds_gradient = false;                        // only the gradient reads rounded p
  ir::Node* dropout = nullptr;  // absent without one, or where it drops nothing
  double dropped = 0;
  ir::Node* product = nullptr;  // MatMul(p, v)

  // Nodes of the gradient, if there is one; dq and dkt, dv may be absent.
  bool has_gradient = false;
  ir::Value* dy = nullptr;
  ir::Value* dscore = nullptr;  // gradient of the masked scores, if others read it
  ir::Node* dp = nullptr;       // MatMul(dy, Transpose(v))
  ir::Node* dq = nullptr;
  ir::Node* dkt = nullptr;
  ir::Node* dv = nullptr;

  /// All nodes of the attention: nothing outside reads their results, except y and the gradients.
  std::unordered_set<const ir::Node*> nodes = {};
};

/// The float32 value that a value is the rounding of, through 16 bits; else the value. The gradient
/// may read operands that are rounded where those of the forward pass are not.
const ir::Value* before_rounding(const ir::Value* value);

/// The attention with this Softmax; nullopt if there is none, or if something else reads a value
/// that the fused kernel does not store.
std::optional<AttentionMatch> match_attention(ir::Node& softmax, const ir::Uses& uses);

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_ATTENTION_MATCH_H_

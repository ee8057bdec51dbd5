#ifndef ONNXGRAD_DEVICE_CUDA_DNN_ATTENTION_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/dnn_graph.h"
#include "device/cuda/dnn_plan.h"
#include "onnxgrad/dtype.h"

// Attention as a graph of plain operations, which cuDNN recognizes and computes in one kernel.

namespace onnxgrad::device::cuda {

/// A matrix for each head: [B, H, rows, columns] with any strides, in elements; a size of 1 is
/// repeated.
struct DnnMatrices {
  std::vector<std::int64_t> dims = {};
  std::vector<std::int64_t> strides = {};
  DataType dtype = DataType::kUndefined;  ///< kUndefined: it is absent

  bool is_present() const { return dtype != DataType::kUndefined; }
};

/// y = softmax(scale q k' + bias) v, and its gradient. q, k and v have one type of 16 bits; the
/// others may be float32.
struct DnnAttentionSpec {
  DnnMatrices q = {};     ///< [B, H, S, D]
  DnnMatrices k = {};     ///< [B, H, T, D]
  DnnMatrices v = {};     ///< [B, H, T, E]
  DnnMatrices y = {};     ///< [B, H, S, E]
  DnnMatrices bias = {};  ///< [B, H, S, T]
  double scale = 1;
  bool is_causal = false;  ///< query i sees keys up to i
  bool is_deterministic = true;
  // Gradient only.
  DnnMatrices dy = {};
  DnnMatrices dq = {};
  DnnMatrices dk = {};
  DnnMatrices dv = {};
};

/// Adds the operations of the forward pass. Its tensors in memory: q, k, v, y, the bias if there is
/// one, the sums [B, H, S]: log(sum(exp(score))) of each row, without which it is not recognized.
void add_attention(DnnGraph& graph, const DnnAttentionSpec& spec);

/// Adds the operations of the gradient, all three results. Its tensors in memory: q, k, v, y, dy,
/// the sums, the bias if there is one, sum(dy y) of each row, dq, dk, dv. Without determinism one
/// more follows: dq in float32, dense, zeros at first, to which blocks of keys add in any order.
void add_attention_gradient(DnnGraph& graph, const DnnAttentionSpec& spec);

/// The plans: see DnnPlan::of().
std::shared_ptr<const DnnPlan> dnn_attention(const std::shared_ptr<Context>& context,
                                             const DnnAttentionSpec& spec, std::string& declined);
std::shared_ptr<const DnnPlan> dnn_attention_gradient(const std::shared_ptr<Context>& context,
                                                      const DnnAttentionSpec& spec,
                                                      std::string& declined);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_ATTENTION_H_

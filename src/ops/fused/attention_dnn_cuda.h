#ifndef ONNXGRAD_OPS_FUSED_ATTENTION_DNN_CUDA_H_
#define ONNXGRAD_OPS_FUSED_ATTENTION_DNN_CUDA_H_

#include "onnxgrad/dtype.h"
#include "opdef/attention.h"
#include "opdef/kernel.h"

namespace onnxgrad::ops {

/// Offers cuDNN's attention and its gradient, for products of type `half` (float16 or bfloat16).
/// Declines dropout, boolean masks, shared heads of keys, and whatever cuDNN has no plan of.
opdef::KernelOffer offer_attention_dnn(const opdef::KernelRequest& request,
                                       const opdef::Attention& op, DataType half);
opdef::KernelOffer offer_attention_gradient_dnn(const opdef::KernelRequest& request,
                                                const opdef::AttentionGradient& op, DataType half);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_ATTENTION_DNN_CUDA_H_

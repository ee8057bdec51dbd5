#ifndef ONNXGRAD_OPS_NN_CONV_CONV_DNN_CUDA_H_
#define ONNXGRAD_OPS_NN_CONV_CONV_DNN_CUDA_H_

#include "opdef/kernel.h"
#include "ops/nn/conv/conv_operands.h"

namespace onnxgrad::ops {

/// Offers cuDNN's convolution, with bias, residual and clamp, in float32 also as a text after it;
/// with channels last in 16 bits and tf32. Declines small ones, which are faster as texts, and
/// types and shapes that its API has not.
opdef::KernelOffer offer_conv_dnn(const opdef::KernelRequest& request, const ConvOperands& conv);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_CONV_DNN_CUDA_H_

#ifndef ONNXGRAD_OPS_NN_POOL_DNN_CUDA_H_
#define ONNXGRAD_OPS_NN_POOL_DNN_CUDA_H_

#include "device/cuda/text_kernel.h"
#include "opdef/kernel.h"
#include "ops/nn/pool.h"

namespace onnxgrad::ops {

/// A pool for cuDNN: `x` and `y` are arguments, or their gradients.
struct PoolOperands {
  enum class Kind : std::uint8_t { kMaximum, kAverage, kAverageGradient };
  Kind kind = Kind::kMaximum;
  int x = 0;
  int y = 1;
};

/// Offers cuDNN's pool if it is faster than `text`, which is timed beside it. Declines small pools,
/// which may be a part of a larger kernel, dilated windows and those that the pads do not give.
opdef::KernelOffer offer_pool_dnn(const opdef::KernelRequest& request, const PoolShape& shape,
                                  const PoolOperands& pool, const device::cuda::TextKernel& text);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_POOL_DNN_CUDA_H_

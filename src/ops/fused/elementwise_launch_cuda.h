#ifndef ONNXGRAD_OPS_FUSED_ELEMENTWISE_LAUNCH_CUDA_H_
#define ONNXGRAD_OPS_FUSED_ELEMENTWISE_LAUNCH_CUDA_H_

#include "opdef/fused.h"
#include "opdef/kernel.h"

namespace onnxgrad::ops {

/// Offers a kernel for a node that computes `op`, whatever operator it is. Results may be written
/// over operands of their shape.
opdef::KernelOffer elementwise_launch(const opdef::KernelRequest& request,
                                      const opdef::Elementwise& op);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_ELEMENTWISE_LAUNCH_CUDA_H_

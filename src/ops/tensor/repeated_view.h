#ifndef ONNXGRAD_OPS_TENSOR_REPEATED_VIEW_H_
#define ONNXGRAD_OPS_TENSOR_REPEATED_VIEW_H_

#include "opdef/kernel.h"
#include "ops/tensor/strided_copy_cpu.h"

namespace onnxgrad::ops {

/// Expand as a copy from a view with stride zero along repeated axes; element_bytes is that of the
/// operand, 0 if kernels do not move such elements.
CopyRequest expanded_view(const opdef::KernelRequest& request);
/// Tile as such a copy: axis a of the output is viewed as [repeats_a, dim_a].
CopyRequest tiled_view(const opdef::KernelRequest& request);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TENSOR_REPEATED_VIEW_H_

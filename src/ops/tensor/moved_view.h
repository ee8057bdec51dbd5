#ifndef ONNXGRAD_OPS_TENSOR_MOVED_VIEW_H_
#define ONNXGRAD_OPS_TENSOR_MOVED_VIEW_H_

#include <optional>
#include <string>

#include "opdef/kernel.h"
#include "ops/tensor/strided_copy_cpu.h"

// Operators that move elements, as copies between two views. element_bytes is that of the operand,
// 0 if kernels do not move such elements.

namespace onnxgrad::ops {

CopyRequest transposed_view(const opdef::KernelRequest& request);
/// Slice; nullopt, with the reason, if the slice is not known before the step runs.
/// Throws: ShapeError (lists of different lengths).
std::optional<CopyRequest> sliced_view(const opdef::KernelRequest& request, std::string& declined);
/// DepthToSpace or SpaceToDepth, over [N, C, H, b, W, b].
/// Throws: ShapeError (a size that the blocks do not divide).
CopyRequest blocks_view(const opdef::KernelRequest& request);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TENSOR_MOVED_VIEW_H_

#ifndef ONNXGRAD_DEVICE_CPU_GEMM_SMALL_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_SMALL_H_

#include "device/cpu/gemm_plan.h"

namespace onnxgrad::device {

/// Plans a GEMM whose operands the caches keep, by tiles or, with `by_dots`, dot products that read
/// operands in place or all of B packed: all fields, with the implementation's name as the label.
template <class T>
PreparedGemm prepare_small_gemm(const GemmProblem<T>& gemm, bool by_dots);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_SMALL_H_

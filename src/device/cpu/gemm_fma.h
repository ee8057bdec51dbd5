#ifndef ONNXGRAD_DEVICE_CPU_GEMM_FMA_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_FMA_H_

#include <cstdint>

#include "device/cpu/gemm_plan.h"

namespace onnxgrad::device {

/// Plans a large float32 or float64 GEMM by multiply-adds (gemm_driver.h). `gemm` has its sizes,
/// addends and epilogue; with `packs_a`, tiles read packed A panels. All fields but the label.
template <class T>
PreparedGemm prepare_fma_gemm(const GemmPlan<T>& gemm);

/// Plans such a GEMM with a B that was packed in advance, in the B panels of `gemm.columns`.
/// `in_blocks`: sums are added up in blocks of k.
template <class T>
PreparedGemm prepare_packed_fma_gemm(const GemmPlan<T>& gemm, bool in_blocks);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_FMA_H_

#ifndef ONNXGRAD_DEVICE_CPU_GEMM_FMA_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_FMA_H_

#include "device/cpu/gemm_plan.h"

namespace onnxgrad::device {

/// Plans a large float32 or float64 GEMM by multiply-adds (gemm_driver.h): all fields but the
/// label. `packs_a`: tiles read packed A panels.
template <class T>
PreparedGemm prepare_fma_gemm(const GemmProblem<T>& gemm, bool packs_a);

/// Plans a GEMM with a B that was packed in advance (pack_gemm_b). Without kTiles as its choice,
/// sums are added up in blocks of k, as with an unpacked B.
template <class T>
PreparedGemm prepare_packed_fma_gemm(const GemmProblem<T>& gemm, GemmChoice choice);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_FMA_H_

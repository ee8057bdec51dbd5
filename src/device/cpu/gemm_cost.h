#ifndef ONNXGRAD_DEVICE_CPU_GEMM_COST_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_COST_H_

#include "device/cpu/gemm.h"
#include "device/cpu/gemm_tile.h"

namespace onnxgrad::device {

/// The implementation of a product; never kBest. A choice that spec.choice demands and that cannot
/// compute it (dots with a transposed A) becomes kTiles.
template <class T>
GemmChoice choose_gemm(const GemmSpec& spec, const GemmTarget<T>& target);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_COST_H_

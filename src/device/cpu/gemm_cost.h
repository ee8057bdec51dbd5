#ifndef ONNXGRAD_DEVICE_CPU_GEMM_COST_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_COST_H_

#include "device/cpu/gemm.h"
#include "device/cpu/gemm_tile.h"

namespace onnxgrad::device {

/// The implementation of a product; never kBest. If spec.choice cannot compute the product (dots
/// with a transposed A), kTiles.
template <class T>
GemmChoice choose_gemm(const GemmSpec& spec, const GemmTarget<T>& target);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_COST_H_

#ifndef ONNXGRAD_DEVICE_CPU_GEMM_COST_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_COST_H_

#include "device/cpu/gemm.h"
#include "device/machine.h"

namespace onnxgrad::device {

/// Returns the implementation of a GEMM on a processor, never kBest: kTiles if spec.choice cannot
/// compute it (kDots with a transposed A or several addends; kSplit without AMX).
GemmChoice choose_gemm(const GemmSpec& spec, const Machine& machine);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_COST_H_

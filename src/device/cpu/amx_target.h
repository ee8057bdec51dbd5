#ifndef ONNXGRAD_DEVICE_CPU_AMX_TARGET_H_
#define ONNXGRAD_DEVICE_CPU_AMX_TARGET_H_

#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_split.h"
#include "device/cpu/tap_gemms.h"
#include "device/cpu_options.h"

namespace onnxgrad::device {

/// Matrix products by AMX, or by functions that emulate its arithmetic.
struct AmxTarget {
  /// Multiplies unpacked rows of A, of a multiple of 32 elements, by a B panel.
  void (*run_b_panel)(const VnniPanel& panel) = nullptr;
  TapGemmsFn tap_gemms = nullptr;
  SplitTarget split;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_AMX_TARGET_H_

#ifndef ONNXGRAD_DEVICE_CPU_OPTIONS_H_
#define ONNXGRAD_DEVICE_CPU_OPTIONS_H_

#include "device/isa.h"
#include "device/machine.h"
#include "opdef/kernel.h"

namespace onnxgrad::device {

struct AmxTarget;  // cpu/amx_target.h

/// Returns matrix products by this processor's AMX; nullptr: the processor or the system has none.
/// Asks the system for permission, once. Thread-safe.
const AmxTarget* amx_target();

/// Parts of the processor that kernels may use. An engine has them, and each request a copy.
struct CpuOptions {
  const AmxTarget* amx = amx_target();  ///< nullptr: none; tests pass AmxTargets of their own
  /// Whether AMX computes float32 GEMMs too (cpu/gemm_split.h); the bits of results depend on it.
  bool amx_for_float32 = true;
  Isa isa = best_isa();              ///< of all kernels that are compiled for several
  Machine machine = this_machine();  ///< caches and ports

  bool computes_float32_by_amx() const { return amx != nullptr && amx_for_float32; }
};

/// Returns the options of a request; a request without options may use all of the processor.
inline CpuOptions cpu_options(const opdef::KernelRequest& request) {
  return request.cpu != nullptr ? *request.cpu : CpuOptions();
}

inline Isa isa_of(const opdef::KernelRequest& request) { return cpu_options(request).isa; }

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_OPTIONS_H_

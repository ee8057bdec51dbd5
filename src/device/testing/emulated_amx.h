#ifndef ONNXGRAD_DEVICE_TESTING_EMULATED_AMX_H_
#define ONNXGRAD_DEVICE_TESTING_EMULATED_AMX_H_

#include "device/cpu/amx_target.h"

namespace onnxgrad::device {

/// Matrix products with the arithmetic of AMX, in C++, on any processor (Intel 64 and IA-32
/// Architectures Software Developer's Manual, volume 2, TDPBF16PS).
const AmxTarget& emulated_amx();

/// Options for a request whose GEMMs use emulated AMX.
inline CpuOptions with_emulated_amx() { return {.amx = &emulated_amx()}; }

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_TESTING_EMULATED_AMX_H_

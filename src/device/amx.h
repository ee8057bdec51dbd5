#ifndef ONNXGRAD_DEVICE_AMX_H_
#define ONNXGRAD_DEVICE_AMX_H_

namespace onnxgrad::device {

/// Whether plans that are made from now on multiply matrices of float32 by AMX
/// (device/cpu/gemm_split.h), on processors that have it. Not while a plan is made.
void use_amx_for_float32(bool on);
bool uses_amx_for_float32();

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_AMX_H_

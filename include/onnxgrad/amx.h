#ifndef ONNXGRAD_AMX_H_
#define ONNXGRAD_AMX_H_

namespace [[gnu::visibility("default")]] onnxgrad {

/// Turns AMX for large products of float32 on or off, for plans that are compiled from now on; no
/// effect on processors without AMX. Each element is split into three parts of bfloat16, whose
/// products are added, with half the rounding error of multiply-adds; float16 elements are split
/// into two parts, and short weight gradients of bfloat16 need one. On by default. A choice for the
/// whole process; not to be changed while another thread compiles a plan. Numbers below 2^-103 keep
/// fewer bits, those below 2^-118 as many as bfloat16 has: docs/kernels.md.
void use_amx_for_float32(bool on);

/// True if AMX multiplies float32 now; false on a processor without AMX.
bool amx_computes_float32();

}  // namespace onnxgrad

#endif  // ONNXGRAD_AMX_H_

#ifndef ONNXGRAD_AMX_H_
#define ONNXGRAD_AMX_H_

namespace [[gnu::visibility("default")]] onnxgrad {

/// Whether large products of float32 are computed by AMX, on processors that have it, in plans that
/// are compiled from now on: as sums of products of bfloat16, each number in three parts, with half
/// the rounding error of multiply-adds. Those of float16, and short weight gradients of bfloat16,
/// too, in two parts and one. On at first. A choice for the whole process; not to be changed while
/// another thread compiles a plan. Numbers below 2^-103 keep fewer bits, those below 2^-118 as many
/// as bfloat16 has: docs/kernels.md.
void use_amx_for_float32(bool on);

/// True if AMX multiplies float32 now; false on a processor without AMX.
bool amx_computes_float32();

}  // namespace onnxgrad

#endif  // ONNXGRAD_AMX_H_

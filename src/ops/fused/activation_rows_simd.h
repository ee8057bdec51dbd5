#ifndef ONNXGRAD_OPS_FUSED_ACTIVATION_ROWS_SIMD_H_
#define ONNXGRAD_OPS_FUSED_ACTIVATION_ROWS_SIMD_H_

#include <cstdint>

#include "device/isa.h"
#include "opdef/activation.h"

namespace onnxgrad::ops::activation_rows {

/// Computes y = f(x) and slope = f'(x) (unless nullptr), element by element. Either may be x.
void apply(device::Isa isa, opdef::ActivationFunction function, const float* x, float* y,
           float* slope, std::int64_t count);
void apply(device::Isa isa, opdef::ActivationFunction function, const double* x, double* y,
           double* slope, std::int64_t count);

/// Computes dx = dy f'(x), element by element; dx may be x or dy.
void multiply_slopes(device::Isa isa, opdef::ActivationFunction function, const float* x,
                     const float* dy, float* dx, std::int64_t count);

}  // namespace onnxgrad::ops::activation_rows

#endif  // ONNXGRAD_OPS_FUSED_ACTIVATION_ROWS_SIMD_H_

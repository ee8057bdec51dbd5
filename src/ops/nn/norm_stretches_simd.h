#ifndef ONNXGRAD_OPS_NN_NORM_STRETCHES_SIMD_H_
#define ONNXGRAD_OPS_NN_NORM_STRETCHES_SIMD_H_

#include <cstdint>

#include "device/isa.h"

// Arithmetic of normalisations on contiguous float32 arrays, with SIMD. Sums are taken in float32
// over blocks of 4096 elements and in double over the blocks.

namespace onnxgrad::ops::stretches {

/// to = a + b; to may be a or b.
void add(device::Isa isa, const float* a, const float* b, float* to, std::int64_t n);
double sum(device::Isa isa, const float* x, std::int64_t n);
/// Returns sum((x - mean)^2).
double centred_square_sum(device::Isa isa, const float* x, float mean, std::int64_t n);

struct GradSums {
  double dy = 0;   ///< sum(dy)
  double dot = 0;  ///< sum(dy * (x - mean))
};
GradSums grad_sums(device::Isa isa, const float* dy, const float* x, float mean, std::int64_t n);

/// y = (x - mean) * slope + shift; y may be x.
void normalize(device::Isa isa, const float* x, float mean, float slope, float shift, float* y,
               std::int64_t n);
/// dx = a * dy + b * (x - mean) + d; dx may be dy or x.
void normalize_grad(device::Isa isa, const float* dy, const float* x, float mean, float a, float b,
                    float d, float* dx, std::int64_t n);

/// y = (x - mean) * inverse * scale + bias, element by element; bias may be nullptr.
void scale_row(device::Isa isa, const float* x, float mean, float inverse, const float* scale,
               const float* bias, float* y, std::int64_t n);
/// Adds dy * h to dscale and dy to dbias (each may be nullptr), and returns sum(dh) and sum(dh *
/// h), where h = (x - mean) * inverse and dh = dy * scale.
GradSums scale_row_sums(device::Isa isa, const float* dy, const float* x, float mean, float inverse,
                        const float* scale, float* dscale, float* dbias, std::int64_t n);
/// dx = inverse * (dh - mean_dh - h * mean_dot); dx may be dy or x.
void scale_row_grad(device::Isa isa, const float* dy, const float* x, float mean, float inverse,
                    const float* scale, float mean_dh, float mean_dot, float* dx, std::int64_t n);

}  // namespace onnxgrad::ops::stretches

#endif  // ONNXGRAD_OPS_NN_NORM_STRETCHES_SIMD_H_

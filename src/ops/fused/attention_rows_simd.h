#ifndef ONNXGRAD_OPS_FUSED_ATTENTION_ROWS_SIMD_H_
#define ONNXGRAD_OPS_FUSED_ATTENTION_ROWS_SIMD_H_

#include <cstdint>

#include "device/isa.h"

// Row operations of attention between its matrix products, with SIMD: on `count` contiguous
// elements, for float and double.

namespace onnxgrad::ops::attention_rows {

/// x[j] = scale * x[j] + mask[j], or + mask[0] if `step` is 0.
void add_mask(device::Isa isa, float* x, float scale, const float* mask, std::int64_t step,
              std::int64_t count);
void add_mask(device::Isa isa, double* x, double scale, const double* mask, std::int64_t step,
              std::int64_t count);

/// Softmax statistics of a row of scores: the maximum, and 1 / sum(exp(score - maximum)).
template <class T>
struct RowStats {
  T largest = 0;
  T inverse = 0;
};
/// x[j] = exp(scale * x[j] - largest), where largest is the maximum of scale * x. A row of -inf
/// becomes NaN.
RowStats<float> exponentials(device::Isa isa, float* x, float scale, std::int64_t count);
RowStats<double> exponentials(device::Isa isa, double* x, double scale, std::int64_t count);

/// Gradient of a row, from the gradient dx of its probabilities p, which are given or exp(scale * x
/// - largest) * inverse:
///   ds = p * (dx * keep - along),  x = p * keep,  dx = ds * factor
/// keep may be nullptr (ones); dscore, which receives ds, may be nullptr.
template <class T>
struct RowGradient {
  const T* p = nullptr;  ///< nullptr: computed from x
  T* x = nullptr;
  T* dx = nullptr;
  const T* keep = nullptr;
  T* dscore = nullptr;
  T scale = 1;
  T factor = 1;
  RowStats<T> stats = {};
  T along = 0;
};
void gradient(device::Isa isa, const RowGradient<float>& row, std::int64_t count);
void gradient(device::Isa isa, const RowGradient<double>& row, std::int64_t count);

/// x[j] *= keep[j].
void multiply(device::Isa isa, float* x, const float* keep, std::int64_t count);
void multiply(device::Isa isa, double* x, const double* keep, std::int64_t count);
/// x[j] *= factor.
void scale(device::Isa isa, float* x, float factor, std::int64_t count);
void scale(device::Isa isa, double* x, double factor, std::int64_t count);

float dot(device::Isa isa, const float* a, const float* b, std::int64_t count);
double dot(device::Isa isa, const double* a, const double* b, std::int64_t count);

}  // namespace onnxgrad::ops::attention_rows

#endif  // ONNXGRAD_OPS_FUSED_ATTENTION_ROWS_SIMD_H_

#ifndef ONNXGRAD_OPS_IMAGE_WEIGHTED_SUMS_H_
#define ONNXGRAD_OPS_IMAGE_WEIGHTED_SUMS_H_

#include <cstdint>

// Interpolation with SIMD: sums of a few weighted elements or rows of an image.

namespace onnxgrad::ops::weighted {

/// `taps` lists of `count` entries each, `stride` entries apart.
template <class T>
struct Taps {
  const std::int32_t* indices = nullptr;
  const T* weights = nullptr;
  std::int64_t taps = 0;
  std::int64_t stride = 0;
};

/// y[o] = sum over t of weights[t][o] * x[indices[t][o]], o in [0, count). Indices of x that is not
/// empty.
void gather_sums(const float* x, const Taps<float>& taps, std::int64_t count, float* y);
void gather_sums(const double* x, const Taps<double>& taps, std::int64_t count, double* y);

/// sums[t][o] += dy[o] * x[indices[t][o]]; weights are not read. sums: [taps, stride].
void add_gathered(const float* x, const Taps<float>& taps, const float* dy, std::int64_t count,
                  float* sums);
void add_gathered(const double* x, const Taps<double>& taps, const double* dy, std::int64_t count,
                  double* sums);

/// y[i] = sum over t of weights[t] * x[offsets[t] + i], i in [0, n). At least one tap.
void sum_rows(const float* x, const std::int64_t* offsets, const float* weights, std::int64_t taps,
              std::int64_t n, float* y);
void sum_rows(const double* x, const std::int64_t* offsets, const double* weights,
              std::int64_t taps, std::int64_t n, double* y);

/// y[o] = x[indices[o]]: elements of 4 bytes.
void gather_words(const std::uint32_t* x, const std::int32_t* indices, std::int64_t count,
                  std::uint32_t* y);

}  // namespace onnxgrad::ops::weighted

#endif  // ONNXGRAD_OPS_IMAGE_WEIGHTED_SUMS_H_

#ifndef ONNXGRAD_OPS_IMAGE_WEIGHTED_SUMS_SIMD_H_
#define ONNXGRAD_OPS_IMAGE_WEIGHTED_SUMS_SIMD_H_

#include <cstdint>

#include "device/isa.h"

// Interpolation: weighted sums of a few elements or rows of an image.

namespace onnxgrad::ops::weighted {

/// Tap lists: `taps` rows of `count` entries each, with row stride `stride`.
template <class T>
struct Taps {
  const std::int32_t* indices = nullptr;
  const T* weights = nullptr;  ///< nullptr: one tap, of weight 1
  std::int64_t taps = 0;
  std::int64_t stride = 0;
};

// Gathers are loops of scalar loads, which many processors run faster than gather instructions
// (AMD's, and Intel's since the microcode update against "gather data sampling").

namespace detail {

template <class T>
void gather(const T* __restrict x, const std::int32_t* __restrict indices, std::int64_t count,
            T* __restrict y) {
  // Prefetches the elements that the next points read in the next channels: adjacent points mostly
  // read adjacent elements.
  constexpr std::int64_t kLine = 64 / sizeof(T);
  std::int64_t o = 0;
  for (; o + kLine <= count; o += kLine) {
    __builtin_prefetch(x + indices[o] + count);
    __builtin_prefetch(y + o + count, 1);
    for (std::int64_t i = o; i < o + kLine; ++i) y[i] = x[indices[i]];
  }
  for (; o < count; ++o) y[o] = x[indices[o]];
}

template <int kTaps, class T>
void gather_sums(const T* __restrict x, const Taps<T>& taps, std::int64_t count, T* __restrict y) {
  const std::int32_t* __restrict indices = taps.indices;
  const T* __restrict weights = taps.weights;
  const std::int64_t stride = taps.stride;
  for (std::int64_t o = 0; o < count; ++o) {
    T sum = weights[o] * x[indices[o]];
    for (int t = 1; t < kTaps; ++t) {
      sum += weights[t * stride + o] * x[indices[t * stride + o]];
    }
    y[o] = sum;
  }
}

}  // namespace detail

/// y[o] = sum over t of weights[t][o] * x[indices[t][o]], o in [0, count). At least one tap; x and
/// y do not overlap.
template <class T>
void gather_sums(const T* x, const Taps<T>& taps, std::int64_t count, T* y) {
  if (taps.weights == nullptr) {
    return detail::gather(x, taps.indices, count, y);
  }
  switch (taps.taps) {
    case 1:
      return detail::gather_sums<1>(x, taps, count, y);
    case 2:
      return detail::gather_sums<2>(x, taps, count, y);
    case 3:
      return detail::gather_sums<3>(x, taps, count, y);
    case 4:
      return detail::gather_sums<4>(x, taps, count, y);
    case 8:
      return detail::gather_sums<8>(x, taps, count, y);
    case 16:
      return detail::gather_sums<16>(x, taps, count, y);
    default:
      break;
  }
  for (std::int64_t o = 0; o < count; ++o) {
    T sum = 0;
    for (std::int64_t t = 0; t < taps.taps; ++t) {
      sum += taps.weights[t * taps.stride + o] * x[taps.indices[t * taps.stride + o]];
    }
    y[o] = sum;
  }
}

/// sums[t][o] += dy[o] * x[indices[t][o]]; weights are not read. sums: [taps, stride].
template <class T>
void add_gathered(const T* __restrict x, const Taps<T>& taps, const T* __restrict dy,
                  std::int64_t count, T* __restrict sums) {
  for (std::int64_t t = 0; t < taps.taps; ++t) {
    const std::int32_t* __restrict indices = taps.indices + t * taps.stride;
    T* __restrict own = sums + t * taps.stride;
    for (std::int64_t o = 0; o < count; ++o) own[o] += dy[o] * x[indices[o]];
  }
}

/// y[i] = sum over t of weights[t] * x[offsets[t] + i], i in [0, n), with SIMD. At least one tap;
/// y may be one of the rows.
void sum_rows(device::Isa isa, const float* x, const std::int64_t* offsets, const float* weights,
              std::int64_t taps, std::int64_t n, float* y);
void sum_rows(device::Isa isa, const double* x, const std::int64_t* offsets, const double* weights,
              std::int64_t taps, std::int64_t n, double* y);

}  // namespace onnxgrad::ops::weighted

#endif  // ONNXGRAD_OPS_IMAGE_WEIGHTED_SUMS_SIMD_H_

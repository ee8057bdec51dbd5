#include "ops/nn/conv/winograd_tiles_simd.h"

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/conv/winograd_tiles_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::winograd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr std::int64_t kLanes = hn::MaxLanes(D());
constexpr double kA = 0.70710678118654752440;
constexpr double kB = 2 * kA;
// Rows of G at the points +-a and +-b are divided by the product of the distances to the other
// points.
constexpr double kScaleA = -2.0 / 3;
constexpr double kScaleB = 1.0 / 6;

constexpr float power(double base, int exponent, double factor = 1) {
  double value = factor;
  for (int i = 0; i < exponent; ++i) value *= base;
  return static_cast<float>(value);
}

HWY_INLINE V times(V v, float factor) { return hn::Mul(v, hn::Set(D(), factor)); }
HWY_INLINE V add_times(V sum, V v, float factor) {
  return hn::MulAdd(v, hn::Set(D(), factor), sum);
}

/// B^T: maps x to the coefficients of the values at the points.
struct Source {
  static constexpr int kIn = 6;
  static constexpr int kOut = 6;

  static HWY_INLINE void apply(const V* x, V* to) {
    // a^2 b^2 = 1, a^2 + b^2 = 5/2
    to[0] = hn::Add(x[0], add_times(x[4], x[2], -2.5F));
    to[5] = hn::Add(x[1], add_times(x[5], x[3], -2.5F));
    const V even_a = add_times(x[4], x[2], -2.0F);
    const V odd_a = add_times(x[3], x[1], -2.0F);
    to[1] = add_times(even_a, odd_a, power(kA, 1));
    to[2] = add_times(even_a, odd_a, -power(kA, 1));
    const V even_b = add_times(x[4], x[2], -0.5F);
    const V odd_b = add_times(x[3], x[1], -0.5F);
    to[3] = add_times(even_b, odd_b, power(kB, 1));
    to[4] = add_times(even_b, odd_b, -power(kB, 1));
  }
};

/// Evaluates a polynomial with kSize coefficients at the points: A, or G if `kScaled`.
template <int kSize, bool kScaled>
struct ToPoints {
  static constexpr int kIn = kSize;
  static constexpr int kOut = 6;

  static HWY_INLINE void at(const V* x, double point, double scale, V& plus, V& minus) {
    V even = kScaled ? times(x[0], power(point, 0, scale)) : x[0];
    V odd = times(x[1], power(point, 1, scale));
#pragma GCC unroll 4
    for (int k = 2; k < kSize; k += 2) even = add_times(even, x[k], power(point, k, scale));
#pragma GCC unroll 4
    for (int k = 3; k < kSize; k += 2) odd = add_times(odd, x[k], power(point, k, scale));
    plus = hn::Add(even, odd);
    minus = hn::Sub(even, odd);
  }
  static HWY_INLINE void apply(const V* x, V* to) {
    to[0] = x[0];
    at(x, kA, kScaled ? kScaleA : 1, to[1], to[2]);
    at(x, kB, kScaled ? kScaleB : 1, to[3], to[4]);
    to[5] = x[kSize - 1];
  }
};

/// Transposed evaluation: A^T, or G^T if `kScaled`.
template <int kSize, bool kScaled>
struct FromPoints {
  static constexpr int kIn = 6;
  static constexpr int kOut = kSize;

  static HWY_INLINE void apply(const V* x, V* to) {
    constexpr double kFactorA = kScaled ? kScaleA : 1;
    constexpr double kFactorB = kScaled ? kScaleB : 1;
    const V sum_a = hn::Add(x[1], x[2]);
    const V sum_b = hn::Add(x[3], x[4]);
    const V difference_a = hn::Sub(x[1], x[2]);
    const V difference_b = hn::Sub(x[3], x[4]);
    to[0] = kScaled ? add_times(add_times(x[0], sum_a, power(kA, 0, kFactorA)), sum_b,
                                power(kB, 0, kFactorB))
                    : hn::Add(hn::Add(x[0], sum_a), sum_b);
#pragma GCC unroll 4
    for (int k = 1; k < kSize; ++k) {
      const V of_a = times(k % 2 == 0 ? sum_a : difference_a, power(kA, k, kFactorA));
      to[k] = add_times(of_a, k % 2 == 0 ? sum_b : difference_b, power(kB, k, kFactorB));
    }
    to[kSize - 1] = hn::Add(to[kSize - 1], x[5]);
  }
};

/// Applies a transform along both axes: load(row, column), then store(row, column, value).
template <class T, class Load, class Store>
HWY_INLINE void both_axes(Load load, Store store) {
  V middle[T::kOut][T::kIn];
#pragma GCC unroll 6
  for (int j = 0; j < T::kIn; ++j) {
    V in[T::kIn];
    V out[T::kOut];
#pragma GCC unroll 6
    for (int i = 0; i < T::kIn; ++i) in[i] = load(i, j);
    T::apply(in, out);
#pragma GCC unroll 6
    for (int i = 0; i < T::kOut; ++i) middle[i][j] = out[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < T::kOut; ++i) {
    V out[T::kOut];
    T::apply(middle[i], out);
#pragma GCC unroll 6
    for (int j = 0; j < T::kOut; ++j) store(i, j, out[j]);
  }
}

/// Transforms pixels to the points.
template <class T>
HWY_INLINE void transform(const float* const* pixels, std::int64_t n, float* to,
                          std::ptrdiff_t plane) {
  for (std::int64_t c = 0; c < n; c += kLanes) {
    both_axes<T>([&](int i, int j) HWY_ATTR { return hn::LoadU(D(), pixels[i * T::kIn + j] + c); },
                 [&](int i, int j, V v)
                     HWY_ATTR { hn::StoreU(v, D(), to + (i * 6 + j) * plane + c); });
  }
}

template <int kTaps>
HWY_INLINE void weights_to_points(const float* taps, std::ptrdiff_t step, std::int64_t count,
                                  float* to, std::ptrdiff_t plane) {
  for (std::int64_t c = 0; c < count; c += kLanes) {
    both_axes<ToPoints<kTaps, true>>(
        [&](int i, int j) HWY_ATTR { return hn::LoadU(D(), taps + (i * kTaps + j) * step + c); },
        [&](int i, int j, V v) HWY_ATTR { hn::StoreU(v, D(), to + (i * 6 + j) * plane + c); });
  }
}

template <int kTaps>
HWY_INLINE void points_to_weights(const float* sums, std::ptrdiff_t plane, std::int64_t count,
                                  float* taps, std::ptrdiff_t step) {
  for (std::int64_t c = 0; c < count; c += kLanes) {
    both_axes<FromPoints<kTaps, true>>(
        [&](int i, int j) HWY_ATTR { return hn::LoadU(D(), sums + (i * 6 + j) * plane + c); },
        [&](int i, int j, V v) HWY_ATTR { hn::StoreU(v, D(), taps + (i * kTaps + j) * step + c); });
  }
}

template <int kResults>
HWY_INLINE void points_to_results(const float* sums, std::ptrdiff_t plane, const float* bias,
                                  std::int64_t count, float* const* pixels) {
  for (std::int64_t c = 0; c < count; c += kLanes) {
    const V start = hn::LoadU(D(), bias + c);
    both_axes<FromPoints<kResults, false>>(
        [&](int i, int j) HWY_ATTR { return hn::LoadU(D(), sums + (i * 6 + j) * plane + c); },
        [&](int i, int j, V v) HWY_ATTR {
          float* pixel = pixels[i * kResults + j];
          if (pixel != nullptr) hn::StoreU(hn::Add(v, start), D(), pixel + c);
        });
  }
}

HWY_ATTR void source_of(const float* const* pixels, std::int64_t n, float* to,
                        std::ptrdiff_t plane) {
  transform<Source>(pixels, n, to, plane);
}

HWY_ATTR void gradient_of(std::int64_t kernel, const float* const* pixels, std::int64_t n,
                          float* to, std::ptrdiff_t plane) {
  if (kernel == 3) {
    transform<ToPoints<4, false>>(pixels, n, to, plane);
  } else {
    transform<ToPoints<2, false>>(pixels, n, to, plane);
  }
}

HWY_ATTR void weights_of(std::int64_t kernel, const float* taps, std::ptrdiff_t step,
                         std::int64_t n, float* to, std::ptrdiff_t plane) {
  if (kernel == 3) {
    weights_to_points<3>(taps, step, n, to, plane);
  } else {
    weights_to_points<5>(taps, step, n, to, plane);
  }
}

HWY_ATTR void results_of(std::int64_t kernel, const float* sums, std::ptrdiff_t plane,
                         const float* bias, std::int64_t n, float* const* pixels) {
  if (kernel == 3) {
    points_to_results<4>(sums, plane, bias, n, pixels);
  } else {
    points_to_results<2>(sums, plane, bias, n, pixels);
  }
}

HWY_ATTR void weight_results_of(std::int64_t kernel, const float* sums, std::ptrdiff_t plane,
                                std::int64_t n, float* taps, std::ptrdiff_t step) {
  if (kernel == 3) {
    points_to_weights<3>(sums, plane, n, taps, step);
  } else {
    points_to_weights<5>(sums, plane, n, taps, step);
  }
}

}  // namespace onnxgrad::ops::winograd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::winograd {

HWY_EXPORT(source_of);
HWY_EXPORT(gradient_of);
HWY_EXPORT(weights_of);
HWY_EXPORT(results_of);
HWY_EXPORT(weight_results_of);

void transform_source(device::Isa isa, const float* const* pixels, std::int64_t n, float* to,
                      std::ptrdiff_t plane) {
  device::chosen(HWY_DISPATCH_TABLE(source_of), isa)(pixels, n, to, plane);
}

void transform_gradient(device::Isa isa, std::int64_t kernel, const float* const* pixels,
                        std::int64_t n, float* to, std::ptrdiff_t plane) {
  device::chosen(HWY_DISPATCH_TABLE(gradient_of), isa)(kernel, pixels, n, to, plane);
}

void transform_weights(device::Isa isa, std::int64_t kernel, const float* taps, std::ptrdiff_t step,
                       std::int64_t n, float* to, std::ptrdiff_t plane) {
  device::chosen(HWY_DISPATCH_TABLE(weights_of), isa)(kernel, taps, step, n, to, plane);
}

void write_results(device::Isa isa, std::int64_t kernel, const float* sums, std::ptrdiff_t plane,
                   const float* bias, std::int64_t n, float* const* pixels) {
  device::chosen(HWY_DISPATCH_TABLE(results_of), isa)(kernel, sums, plane, bias, n, pixels);
}

void write_weights(device::Isa isa, std::int64_t kernel, const float* sums, std::ptrdiff_t plane,
                   std::int64_t n, float* taps, std::ptrdiff_t step) {
  device::chosen(HWY_DISPATCH_TABLE(weight_results_of), isa)(kernel, sums, plane, n, taps, step);
}

}  // namespace onnxgrad::ops::winograd
#endif  // HWY_ONCE

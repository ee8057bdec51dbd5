#include "ops/fused/activation_rows_simd.h"

#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fused/activation_rows_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"
#include "device/cpu/tile_functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::activation_rows::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

using opdef::ActivationFunction;

template <class V>
struct Point {
  V y;
  V slope;
};

// Phi(-a) = exp(-a^2 / 2) Q(t) / (a + 3) with t = (a - 3) / (a + 3), for a in [0, 14.5], where the
// exponential ends. Q interpolates erfcx(a / sqrt(2)) (a + 3) / 2 at Chebyshev nodes; relative
// error 6.4e-8.
inline constexpr float kNormalTail[] = {7.290836602e-01F,  -5.093322405e-01F, 2.300197494e-01F,
                                        -4.725689332e-02F, -1.048274147e-02F, 6.926805367e-03F,
                                        1.082476420e-03F,  -9.058095814e-04F, -2.712444061e-04F};
inline constexpr double kInverseRootTwoPi = 0.39894228040143268;

template <class D, class V>
HWY_INLINE Point<V> gelu(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  const V a = hn::Min(hn::Abs(x), hn::Set(d, sizeof(T) == 4 ? T(14.5) : T(38.7)));
  const V e = dn::exp_below_88(d, hn::Mul(hn::Mul(a, a), hn::Set(d, T(-0.5))));
  V p;  // Phi(x)
  if constexpr (sizeof(T) == 4) {
    const V r = dn::reciprocal_of(d, hn::Add(a, hn::Set(d, T(3))));
    const V t = hn::NegMulAdd(r, hn::Set(d, T(6)), one);
    const V tail = hn::Mul(hn::Mul(e, r), dn::horner(d, t, kNormalTail));
    p = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  } else {
    const V half = hn::Set(d, T(0.5));
    p = hn::MulAdd(half, dn::erf_of(d, hn::Mul(x, hn::Set(d, T(0.70710678118654752)))), half);
  }
  const V density = hn::Mul(e, hn::Set(d, static_cast<T>(kInverseRootTwoPi)));
  return {hn::Mul(x, p), hn::MulAdd(x, density, p)};
}

// y = x s(w(x)) with the sigmoid s:  y' = s + y (1 - s) w'.
template <class D, class V>
HWY_INLINE Point<V> gated(D d, V x, V w, V w_slope) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  const V limit = hn::Set(d, sizeof(T) == 4 ? T(85) : T(708));
  const V e = dn::exp_below_88(d, hn::Min(hn::Neg(w), limit));
  const V s = dn::reciprocal_of(d, hn::Add(one, e));
  const V y = hn::Mul(x, s);
  return {y, hn::MulAdd(hn::Mul(y, hn::Sub(one, s)), w_slope, s)};
}

template <ActivationFunction kFunction, class D, class V>
HWY_INLINE Point<V> point(D d, V x) {
  using T = hn::TFromD<D>;
  if constexpr (kFunction == ActivationFunction::kGelu) {
    return gelu(d, x);
  } else if constexpr (kFunction == ActivationFunction::kTanhGelu) {
    // (1 + tanh(z)) / 2 = s(2 z)
    constexpr double kLinear = 1.5957691216057308;  // 2 sqrt(2 / pi)
    constexpr double kCubic = kLinear * 0.044715;
    const V square = hn::Mul(x, x);
    const V linear = hn::Set(d, static_cast<T>(kLinear));
    const V w = hn::Mul(x, hn::MulAdd(square, hn::Set(d, static_cast<T>(kCubic)), linear));
    return gated(d, x, w, hn::MulAdd(square, hn::Set(d, static_cast<T>(3 * kCubic)), linear));
  } else {
    return gated(d, x, x, hn::Set(d, T(1)));
  }
}

template <ActivationFunction kFunction, class T>
HWY_INLINE void apply_to(const T* x, T* y, T* slope, std::int64_t count) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto at = point<kFunction>(d, hn::LoadU(d, x + i));
    hn::StoreU(at.y, d, y + i);
    if (slope != nullptr) hn::StoreU(at.slope, d, slope + i);
  }
  if (i == count) return;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(count - i));
  const auto at = point<kFunction>(d, dn::load_first(d, mask, x + i, count - i));
  dn::store_first(at.y, d, mask, y + i, count - i);
  if (slope != nullptr) dn::store_first(at.slope, d, mask, slope + i, count - i);
}

template <ActivationFunction kFunction>
HWY_INLINE void multiply_slopes(const float* x, const float* dy, float* dx, std::int64_t count) {
  const hn::ScalableTag<float> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto at = point<kFunction>(d, hn::LoadU(d, x + i));
    hn::StoreU(hn::Mul(at.slope, hn::LoadU(d, dy + i)), d, dx + i);
  }
  if (i == count) return;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(count - i));
  const auto at = point<kFunction>(d, dn::load_first(d, mask, x + i, count - i));
  const auto rest = dn::load_first(d, mask, dy + i, count - i);
  dn::store_first(hn::Mul(at.slope, rest), d, mask, dx + i, count - i);
}

template <class T>
HWY_INLINE void apply_any(ActivationFunction function, const T* x, T* y, T* slope,
                          std::int64_t count) {
  switch (function) {
    case ActivationFunction::kGelu:
      return apply_to<ActivationFunction::kGelu>(x, y, slope, count);
    case ActivationFunction::kTanhGelu:
      return apply_to<ActivationFunction::kTanhGelu>(x, y, slope, count);
    case ActivationFunction::kSilu:
      return apply_to<ActivationFunction::kSilu>(x, y, slope, count);
  }
}

HWY_ATTR void multiply_any(ActivationFunction function, const float* x, const float* dy, float* dx,
                           std::int64_t count) {
  switch (function) {
    case ActivationFunction::kGelu:
      return multiply_slopes<ActivationFunction::kGelu>(x, dy, dx, count);
    case ActivationFunction::kTanhGelu:
      return multiply_slopes<ActivationFunction::kTanhGelu>(x, dy, dx, count);
    case ActivationFunction::kSilu:
      return multiply_slopes<ActivationFunction::kSilu>(x, dy, dx, count);
  }
}

HWY_ATTR void apply_float(ActivationFunction function, const float* x, float* y, float* slope,
                          std::int64_t count) {
  apply_any(function, x, y, slope, count);
}
HWY_ATTR void apply_double(ActivationFunction function, const double* x, double* y, double* slope,
                           std::int64_t count) {
  apply_any(function, x, y, slope, count);
}

}  // namespace onnxgrad::ops::activation_rows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::activation_rows {

HWY_EXPORT(apply_float);
HWY_EXPORT(apply_double);
HWY_EXPORT(multiply_any);

void apply(device::Isa isa, opdef::ActivationFunction function, const float* x, float* y,
           float* slope, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(apply_float), isa)(function, x, y, slope, count);
}
void apply(device::Isa isa, opdef::ActivationFunction function, const double* x, double* y,
           double* slope, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(apply_double), isa)(function, x, y, slope, count);
}
void multiply_slopes(device::Isa isa, opdef::ActivationFunction function, const float* x,
                     const float* dy, float* dx, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(multiply_any), isa)(function, x, dy, dx, count);
}

}  // namespace onnxgrad::ops::activation_rows
#endif  // HWY_ONCE

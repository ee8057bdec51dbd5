#include <algorithm>
#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/image/weighted_sums_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/image/weighted_sums_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::weighted::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
inline constexpr std::int64_t kLanes = hn::MaxLanes(Tag<T>());

// Loads the first `count` elements, up to a vector, without reading behind them.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> load_some(const T* from, std::int64_t count) {
  const Tag<T> d;
  if (count >= kLanes<T>) return hn::LoadU(d, from);
  return dn::load_first(d, hn::FirstN(d, static_cast<std::size_t>(count)), from, count);
}

template <class T>
HWY_INLINE void store_some(hn::Vec<Tag<T>> v, T* to, std::int64_t count) {
  const Tag<T> d;
  if (count >= kLanes<T>) return hn::StoreU(v, d, to);
  dn::store_first(v, d, hn::FirstN(d, static_cast<std::size_t>(count)), to, count);
}

template <class T>
HWY_INLINE void sum_rows_of(const T* x, const std::int64_t* offsets, const T* weights,
                            std::int64_t taps, std::int64_t n, T* y) {
  const Tag<T> d;
  std::int64_t i = 0;
  for (; i + 2 * kLanes<T> <= n; i += 2 * kLanes<T>) {
    const auto first = hn::Set(d, weights[0]);
    auto low = hn::Mul(first, hn::LoadU(d, x + offsets[0] + i));
    auto high = hn::Mul(first, hn::LoadU(d, x + offsets[0] + i + kLanes<T>));
    for (std::int64_t t = 1; t < taps; ++t) {
      const auto weight = hn::Set(d, weights[t]);
      low = hn::MulAdd(weight, hn::LoadU(d, x + offsets[t] + i), low);
      high = hn::MulAdd(weight, hn::LoadU(d, x + offsets[t] + i + kLanes<T>), high);
    }
    hn::StoreU(low, d, y + i);
    hn::StoreU(high, d, y + i + kLanes<T>);
  }
  for (; i < n; i += kLanes<T>) {
    const std::int64_t some = std::min(n - i, kLanes<T>);
    auto sum = hn::Mul(hn::Set(d, weights[0]), load_some(x + offsets[0] + i, some));
    for (std::int64_t t = 1; t < taps; ++t) {
      sum = hn::MulAdd(hn::Set(d, weights[t]), load_some(x + offsets[t] + i, some), sum);
    }
    store_some(sum, y + i, some);
  }
}

HWY_ATTR void sum_rows_float(const float* x, const std::int64_t* offsets, const float* weights,
                             std::int64_t taps, std::int64_t n, float* y) {
  sum_rows_of(x, offsets, weights, taps, n, y);
}
HWY_ATTR void sum_rows_double(const double* x, const std::int64_t* offsets, const double* weights,
                              std::int64_t taps, std::int64_t n, double* y) {
  sum_rows_of(x, offsets, weights, taps, n, y);
}

}  // namespace onnxgrad::ops::weighted::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::weighted {

HWY_EXPORT(sum_rows_float);
HWY_EXPORT(sum_rows_double);

void sum_rows(device::Isa isa, const float* x, const std::int64_t* offsets, const float* weights,
              std::int64_t taps, std::int64_t n, float* y) {
  device::chosen(HWY_DISPATCH_TABLE(sum_rows_float), isa)(x, offsets, weights, taps, n, y);
}

void sum_rows(device::Isa isa, const double* x, const std::int64_t* offsets, const double* weights,
              std::int64_t taps, std::int64_t n, double* y) {
  device::chosen(HWY_DISPATCH_TABLE(sum_rows_double), isa)(x, offsets, weights, taps, n, y);
}

}  // namespace onnxgrad::ops::weighted
#endif  // HWY_ONCE

#include <algorithm>
#include <cstdint>

#include "device/cpu/simd.h"
#include "ops/image/weighted_sums.h"

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

// The first `count` elements, up to a vector, without reading behind them.
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

// x[indices[0]], x[indices[1]], ...: a vector of them, x[0] behind the last.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gather_some(const T* x, const std::int32_t* indices,
                                       std::int64_t count) {
  const Tag<T> d;
  const hn::RebindToSigned<Tag<T>> di;
  if constexpr (sizeof(T) == 4) {
    return hn::GatherIndex(d, x, load_some<std::int32_t>(indices, count));
  } else {
    const hn::Rebind<std::int32_t, Tag<T>> narrow;
    if (count >= kLanes<T>) {
      return hn::GatherIndex(d, x, hn::PromoteTo(di, hn::LoadU(narrow, indices)));
    }
    HWY_ALIGN std::int32_t some[kLanes<T>] = {};
    std::copy_n(indices, count, some);
    return hn::GatherIndex(d, x, hn::PromoteTo(di, hn::Load(narrow, some)));
  }
}

template <class T>
HWY_INLINE void gather_sums_of(const T* x, const Taps<T>& taps, std::int64_t count, T* y) {
  for (std::int64_t o = 0; o < count; o += kLanes<T>) {
    const std::int64_t some = std::min(count - o, kLanes<T>);
    auto sum = hn::Mul(load_some(taps.weights + o, some), gather_some(x, taps.indices + o, some));
    for (std::int64_t t = 1; t < taps.taps; ++t) {
      const std::int64_t at = t * taps.stride + o;
      sum = hn::MulAdd(load_some(taps.weights + at, some), gather_some(x, taps.indices + at, some),
                       sum);
    }
    store_some(sum, y + o, some);
  }
}

template <class T>
HWY_INLINE void add_gathered_of(const T* x, const Taps<T>& taps, const T* dy, std::int64_t count,
                                T* sums) {
  for (std::int64_t o = 0; o < count; o += kLanes<T>) {
    const std::int64_t some = std::min(count - o, kLanes<T>);
    const auto upstream = load_some(dy + o, some);
    for (std::int64_t t = 0; t < taps.taps; ++t) {
      const std::int64_t at = t * taps.stride + o;
      const auto value = gather_some(x, taps.indices + at, some);
      store_some(hn::MulAdd(upstream, value, load_some(sums + at, some)), sums + at, some);
    }
  }
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

HWY_ATTR void gather_sums_float(const float* x, const Taps<float>& taps, std::int64_t count,
                                float* y) {
  gather_sums_of(x, taps, count, y);
}
HWY_ATTR void gather_sums_double(const double* x, const Taps<double>& taps, std::int64_t count,
                                 double* y) {
  gather_sums_of(x, taps, count, y);
}
HWY_ATTR void add_gathered_float(const float* x, const Taps<float>& taps, const float* dy,
                                 std::int64_t count, float* sums) {
  add_gathered_of(x, taps, dy, count, sums);
}
HWY_ATTR void add_gathered_double(const double* x, const Taps<double>& taps, const double* dy,
                                  std::int64_t count, double* sums) {
  add_gathered_of(x, taps, dy, count, sums);
}
HWY_ATTR void sum_rows_float(const float* x, const std::int64_t* offsets, const float* weights,
                             std::int64_t taps, std::int64_t n, float* y) {
  sum_rows_of(x, offsets, weights, taps, n, y);
}
HWY_ATTR void sum_rows_double(const double* x, const std::int64_t* offsets, const double* weights,
                              std::int64_t taps, std::int64_t n, double* y) {
  sum_rows_of(x, offsets, weights, taps, n, y);
}
HWY_ATTR void gather_words_of(const std::uint32_t* x, const std::int32_t* indices,
                              std::int64_t count, std::uint32_t* y) {
  for (std::int64_t o = 0; o < count; o += kLanes<std::uint32_t>) {
    const std::int64_t some = std::min(count - o, kLanes<std::uint32_t>);
    store_some(gather_some(x, indices + o, some), y + o, some);
  }
}

}  // namespace onnxgrad::ops::weighted::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::weighted {

HWY_EXPORT(gather_sums_float);
HWY_EXPORT(gather_sums_double);
HWY_EXPORT(add_gathered_float);
HWY_EXPORT(add_gathered_double);
HWY_EXPORT(sum_rows_float);
HWY_EXPORT(sum_rows_double);
HWY_EXPORT(gather_words_of);

void gather_sums(const float* x, const Taps<float>& taps, std::int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(gather_sums_float)(x, taps, count, y);
}

void gather_sums(const double* x, const Taps<double>& taps, std::int64_t count, double* y) {
  HWY_DYNAMIC_DISPATCH(gather_sums_double)(x, taps, count, y);
}

void add_gathered(const float* x, const Taps<float>& taps, const float* dy, std::int64_t count,
                  float* sums) {
  HWY_DYNAMIC_DISPATCH(add_gathered_float)(x, taps, dy, count, sums);
}

void add_gathered(const double* x, const Taps<double>& taps, const double* dy, std::int64_t count,
                  double* sums) {
  HWY_DYNAMIC_DISPATCH(add_gathered_double)(x, taps, dy, count, sums);
}

void sum_rows(const float* x, const std::int64_t* offsets, const float* weights, std::int64_t taps,
              std::int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(sum_rows_float)(x, offsets, weights, taps, n, y);
}

void sum_rows(const double* x, const std::int64_t* offsets, const double* weights,
              std::int64_t taps, std::int64_t n, double* y) {
  HWY_DYNAMIC_DISPATCH(sum_rows_double)(x, offsets, weights, taps, n, y);
}

void gather_words(const std::uint32_t* x, const std::int32_t* indices, std::int64_t count,
                  std::uint32_t* y) {
  HWY_DYNAMIC_DISPATCH(gather_words_of)(x, indices, count, y);
}

}  // namespace onnxgrad::ops::weighted
#endif  // HWY_ONCE

#include "ops/nn/conv/depthwise_tiles_simd.h"

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/conv/depthwise_tiles_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::depth::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;

// Number of accumulators: enough to hide the latency of multiply-adds.
constexpr int kPixels = 8;
constexpr int kTaps = 9;

/// Computes kCount results from pixel i on.
template <int kCount, class T>
HWY_INLINE void result_block(const DepthResults<T>& r, std::int64_t i) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  V sum[kCount];
  const T* from[kCount];
  const V start = hn::LoadU(d, r.start);
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) {
    sum[j] = start;
    from[j] = r.source + r.places[i + j];
  }
  const T* weight = r.weights;
  for (std::int64_t t = 0; t < r.taps; ++t, weight += hn::MaxLanes(d)) {
    const V w = hn::LoadU(d, weight);
    const std::ptrdiff_t offset = r.offsets[t];
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) {
      sum[j] = hn::MulAdd(hn::LoadU(d, from[j] + offset), w, sum[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) hn::StoreU(sum[j], d, r.result + r.result_places[i + j]);
}

template <class T>
HWY_INLINE void results_of(const DepthResults<T>& r) {
  std::int64_t i = 0;
  for (; i + kPixels <= r.count; i += kPixels) result_block<kPixels>(r, i);
  if (i + 4 <= r.count) {
    result_block<4>(r, i);
    i += 4;
  }
  if (i + 2 <= r.count) {
    result_block<2>(r, i);
    i += 2;
  }
  if (i < r.count) result_block<1>(r, i);
}

/// Computes kCount taps from t on.
template <int kCount, class T>
HWY_INLINE void sum_block(const DepthSums<T>& s, std::int64_t t) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  V sum[kCount];
  std::ptrdiff_t offset[kCount];
#pragma GCC unroll 9
  for (int j = 0; j < kCount; ++j) {
    sum[j] = hn::LoadU(d, s.sums + (t + j) * kLanes);
    offset[j] = s.offsets[t + j];
  }
  for (std::int64_t i = 0; i < s.count; ++i) {
    const V y = hn::LoadU(d, s.y + i * kLanes);
    const T* from = s.source + s.places[i];
#pragma GCC unroll 9
    for (int j = 0; j < kCount; ++j) {
      sum[j] = hn::MulAdd(hn::LoadU(d, from + offset[j]), y, sum[j]);
    }
  }
#pragma GCC unroll 9
  for (int j = 0; j < kCount; ++j) hn::StoreU(sum[j], d, s.sums + (t + j) * kLanes);
}

template <class T>
HWY_INLINE void sums_of(const DepthSums<T>& s) {
  std::int64_t t = 0;
  for (; t + kTaps <= s.taps; t += kTaps) sum_block<kTaps>(s, t);
  for (; t + 5 <= s.taps; t += 5) sum_block<5>(s, t);
  for (; t + 3 <= s.taps; t += 3) sum_block<3>(s, t);
  for (; t < s.taps; ++t) sum_block<1>(s, t);
}

HWY_ATTR void float_results(const DepthResults<float>& r) { results_of(r); }
HWY_ATTR void double_results(const DepthResults<double>& r) { results_of(r); }
HWY_ATTR void float_sums(const DepthSums<float>& s) { sums_of(s); }
HWY_ATTR void double_sums(const DepthSums<double>& s) { sums_of(s); }
HWY_ATTR std::int64_t float_lanes() { return hn::MaxLanes(Tag<float>()); }

}  // namespace onnxgrad::ops::depth::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::depth {

HWY_EXPORT(float_results);
HWY_EXPORT(double_results);
HWY_EXPORT(float_sums);
HWY_EXPORT(double_sums);
HWY_EXPORT(float_lanes);

template <>
std::int64_t depth_lanes<float>(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(float_lanes), isa)();
}

template <>
std::int64_t depth_lanes<double>(device::Isa isa) {
  return depth_lanes<float>(isa) / 2;
}

template <>
void add_results(device::Isa isa, const DepthResults<float>& results) {
  device::chosen(HWY_DISPATCH_TABLE(float_results), isa)(results);
}

template <>
void add_results(device::Isa isa, const DepthResults<double>& results) {
  device::chosen(HWY_DISPATCH_TABLE(double_results), isa)(results);
}

template <>
void add_sums(device::Isa isa, const DepthSums<float>& sums) {
  device::chosen(HWY_DISPATCH_TABLE(float_sums), isa)(sums);
}

template <>
void add_sums(device::Isa isa, const DepthSums<double>& sums) {
  device::chosen(HWY_DISPATCH_TABLE(double_sums), isa)(sums);
}

}  // namespace onnxgrad::ops::depth
#endif  // HWY_ONCE

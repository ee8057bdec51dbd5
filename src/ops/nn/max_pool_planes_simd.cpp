#include <algorithm>
#include <bit>
#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/nn/max_pool_planes_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/max_pool_planes_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::planes::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::ScalableTag<std::int32_t>;
using VF = hn::Vec<F>;
using VI = hn::Vec<I>;

constexpr std::int64_t kLanes = hn::MaxLanes(F());

// Loads the first `count` elements (up to a vector) from `from`, without reading past them.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_some(D d, const T* from, std::int64_t count) {
  constexpr std::int64_t kCount = hn::MaxLanes(D());
  if (count >= kCount) return hn::LoadU(d, from);
  if (count <= 0) return hn::Zero(d);
  return dn::load_first(d, hn::FirstN(d, static_cast<std::size_t>(count)), from, count);
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_some(hn::Vec<D> v, D d, T* to, std::int64_t count) {
  constexpr std::int64_t kCount = hn::MaxLanes(D());
  if (count >= kCount) return hn::StoreU(v, d, to);
  if (count <= 0) return;
  dn::store_first(v, d, hn::FirstN(d, static_cast<std::size_t>(count)), to, count);
}

// Stores base + offsets as int64.
HWY_INLINE void store_indices(VI offsets, std::int64_t base, std::int64_t* to, std::int64_t count) {
  const hn::ScalableTag<std::int64_t> d;
  const hn::Half<I> half;
  const auto start = hn::Set(d, base);
  const auto low = hn::PromoteTo(d, hn::LowerHalf(half, offsets));
  const auto high = hn::PromoteTo(d, hn::UpperHalf(half, offsets));
  store_some(hn::Add(start, low), d, to, count);
  store_some(hn::Add(start, high), d, to + kLanes / 2, count - kLanes / 2);
}

// Returns true where `a` replaces `best`, which comes before it.
HWY_INLINE auto replaces(VF a, VF best) {
  return hn::Or(hn::Gt(a, best), hn::AndNot(hn::IsNaN(best), hn::IsNaN(a)));
}

struct Columns {
  VF even;
  VF odd;
};

// Loads elements 0, 2, 4, ... and 1, 3, 5, ... of 2 * count elements.
HWY_INLINE Columns load_columns(const float* from, std::int64_t count) {
  const VF low = load_some(F(), from, 2 * count);
  const VF high = load_some(F(), from + kLanes, 2 * count - kLanes);
  return {hn::ConcatEven(F(), high, low), hn::ConcatOdd(F(), high, low)};
}

HWY_INLINE void store_columns(VF even, VF odd, float* to, std::int64_t count) {
  const F d;
  if (count >= kLanes) return hn::StoreInterleaved2(even, odd, d, to);
  HWY_ALIGN float lanes[2 * kLanes];
  hn::StoreInterleaved2(even, odd, d, lanes);
  store_some(hn::Load(d, lanes), d, to, 2 * count);
  store_some(hn::Load(d, lanes + kLanes), d, to + kLanes, 2 * count - kLanes);
}

// Pools one row of windows, over the rows x and x + width.
HWY_INLINE void halve_row(const float* x, std::int64_t width, float* y, std::int64_t* indices,
                          std::int64_t base) {
  const I di;
  const VI step = hn::Set(di, static_cast<std::int32_t>(width));
  const VI one = hn::Set(di, 1);
  for (std::int64_t o = 0; o < width / 2; o += kLanes) {
    const std::int64_t count = width / 2 - o;
    const Columns top = load_columns(x + 2 * o, std::min(count, kLanes));
    const Columns bottom = load_columns(x + width + 2 * o, std::min(count, kLanes));
    const auto top_odd = replaces(top.odd, top.even);
    const auto bottom_odd = replaces(bottom.odd, bottom.even);
    const VF upper = hn::IfThenElse(top_odd, top.odd, top.even);
    const VF lower = hn::IfThenElse(bottom_odd, bottom.odd, bottom.even);
    const auto below = replaces(lower, upper);
    if (y != nullptr) store_some(hn::IfThenElse(below, lower, upper), F(), y + o, count);
    if (indices == nullptr) continue;
    const VI upper_odd = hn::IfThenElseZero(hn::RebindMask(di, top_odd), one);
    const VI lower_odd = hn::IfThenElseZero(hn::RebindMask(di, bottom_odd), one);
    const VI within =
        hn::IfThenElse(hn::RebindMask(di, below), hn::Add(lower_odd, step), upper_odd);
    const VI columns = hn::ShiftLeft<1>(hn::Iota(di, static_cast<std::int32_t>(o)));
    store_indices(hn::Add(columns, within), base, indices + o, count);
  }
}

HWY_ATTR void halve(const HalvedPlanes& planes, const float* x, float* y, std::int64_t* indices) {
  const std::int64_t width = planes.width;
  for (std::int64_t plane = 0; plane < planes.count; ++plane, x += planes.size()) {
    const std::int64_t base = (planes.first + plane) * planes.size();
    for (std::int64_t row = 0; row < planes.height / 2; ++row) {
      halve_row(x + 2 * row * width, width, y, indices, base + 2 * row * width);
      if (y != nullptr) y += width / 2;
      if (indices != nullptr) indices += width / 2;
    }
  }
}

// Loads `count` indices as offsets from `first` + 0, 2, 4, ..; false if one is not in its window.
HWY_INLINE bool load_places(const std::int64_t* indices, std::int64_t first, std::int64_t width,
                            std::int64_t count, VI& places) {
  const I di;
  // The low 32 bits give the offsets; the high 32 bits must equal those of `first`, as long as no
  // carry occurs.
  const auto low_of_first = static_cast<std::uint32_t>(first);
  if (std::endian::native == std::endian::little && low_of_first < 0x70000000U &&
      width < 0x01000000) {
    const auto* from = reinterpret_cast<const std::int32_t*>(indices);
    const VI a = load_some(di, from, 2 * count);
    const VI b = load_some(di, from + kLanes, 2 * count - kLanes);
    const VI high = hn::Set(di, static_cast<std::int32_t>(first >> 32));
    const VI starts = hn::Add(hn::Set(di, static_cast<std::int32_t>(low_of_first)),
                              hn::ShiftLeft<1>(hn::Iota(di, 0)));
    places = hn::Sub(hn::ConcatEven(di, b, a), starts);
    const VI right = hn::Set(di, 1);
    const VI below = hn::Set(di, static_cast<std::int32_t>(width));
    const auto column = hn::Or(hn::Eq(places, hn::Zero(di)), hn::Eq(places, right));
    const auto column_below = hn::Or(hn::Eq(places, below), hn::Eq(places, hn::Add(below, right)));
    const auto fits = hn::And(hn::Or(column, column_below), hn::Eq(hn::ConcatOdd(di, b, a), high));
    const auto is_behind = hn::Not(hn::FirstN(di, static_cast<std::size_t>(count)));
    return hn::AllTrue(di, hn::Or(fits, is_behind));
  }
  HWY_ALIGN std::int32_t lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t within = indices[i] - first - 2 * i;
    if (within != 0 && within != 1 && within != width && within != width + 1) return false;
    lanes[i] = static_cast<std::int32_t>(within);
  }
  places = hn::Load(di, lanes);
  return true;
}

// Writes the two rows of dx; returns false if an index is outside its window.
HWY_INLINE bool spread_row(const float* dy, const std::int64_t* indices, std::int64_t width,
                           float* dx, std::int64_t base) {
  const F d;
  const I di;
  const VI step = hn::Set(di, static_cast<std::int32_t>(width));
  const VI one = hn::Set(di, 1);
  for (std::int64_t o = 0; o < width / 2; o += kLanes) {
    const std::int64_t count = std::min(width / 2 - o, kLanes);
    VI within;
    if (!load_places(indices + o, base + 2 * o, width, count, within)) return false;
    const VF values = load_some(d, dy + o, count);
    const auto at = [&](VI place) HWY_ATTR {
      return hn::IfThenElseZero(hn::RebindMask(d, hn::Eq(within, place)), values);
    };
    store_columns(at(hn::Zero(di)), at(one), dx + 2 * o, count);
    store_columns(at(step), at(hn::Add(step, one)), dx + width + 2 * o, count);
  }
  if (width % 2 != 0) dx[width - 1] = dx[2 * width - 1] = 0;
  return true;
}

HWY_ATTR bool spread(const HalvedPlanes& planes, const float* dy, const std::int64_t* indices,
                     float* dx) {
  const std::int64_t width = planes.width;
  for (std::int64_t plane = 0; plane < planes.count; ++plane, dx += planes.size()) {
    const std::int64_t base = (planes.first + plane) * planes.size();
    for (std::int64_t row = 0; row < planes.height / 2; ++row) {
      const std::int64_t offset = 2 * row * width;
      if (!spread_row(dy, indices, width, dx + offset, base + offset)) return false;
      dy += width / 2;
      indices += width / 2;
    }
    if (planes.height % 2 != 0) std::fill_n(dx + (planes.height - 1) * width, width, 0.0f);
  }
  return true;
}

// Pools windows [o, o + count) of one plane, count up to a vector.
HWY_INLINE void pool_windows(const TapTable& table, std::int64_t o, const float* x, float* y,
                             std::int64_t* indices, std::int64_t base) {
  const F d;
  const I di;
  const std::int64_t count = std::min(table.windows - o, kLanes);
  const auto positions = [&](std::int64_t tap) HWY_ATTR {
    const std::int32_t* from = table.positions + tap * table.windows + o;
    if (count >= kLanes) return hn::LoadU(di, from);
    return dn::load_first(di, hn::FirstN(di, static_cast<std::size_t>(count)), from, count);
  };
  VI best_position = positions(0);
  VF best = hn::GatherIndex(d, x, best_position);
  for (std::int64_t tap = 1; tap < table.taps; ++tap) {
    const VI position = positions(tap);
    const VF value = hn::GatherIndex(d, x, position);
    const auto better = replaces(value, best);
    best = hn::IfThenElse(better, value, best);
    best_position = hn::IfThenElse(hn::RebindMask(di, better), position, best_position);
  }
  if (y != nullptr) store_some(best, d, y + o, count);
  if (indices != nullptr) store_indices(best_position, base, indices + o, count);
}

HWY_ATTR void pool_taps(const TapTable& table, std::int64_t first, std::int64_t count,
                        const float* x, float* y, std::int64_t* indices) {
  for (std::int64_t plane = 0; plane < count; ++plane, x += table.plane_size) {
    const std::int64_t base = (first + plane) * table.plane_size;
    for (std::int64_t o = 0; o < table.windows; o += kLanes) {
      pool_windows(table, o, x, y, indices, base);
    }
    if (y != nullptr) y += table.windows;
    if (indices != nullptr) indices += table.windows;
  }
}

}  // namespace onnxgrad::ops::planes::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::planes {

HWY_EXPORT(halve);
HWY_EXPORT(spread);
HWY_EXPORT(pool_taps);

void max_pool_halved(device::Isa isa, const HalvedPlanes& planes, const float* x, float* y,
                     std::int64_t* indices) {
  device::chosen(HWY_DISPATCH_TABLE(halve), isa)(planes, x, y, indices);
}

bool max_pool_halved_grad(device::Isa isa, const HalvedPlanes& planes, const float* dy,
                          const std::int64_t* indices, float* dx) {
  return device::chosen(HWY_DISPATCH_TABLE(spread), isa)(planes, dy, indices, dx);
}

void max_pool_taps(device::Isa isa, const TapTable& table, std::int64_t first, std::int64_t count,
                   const float* x, float* y, std::int64_t* indices) {
  device::chosen(HWY_DISPATCH_TABLE(pool_taps), isa)(table, first, count, x, y, indices);
}

}  // namespace onnxgrad::ops::planes
#endif  // HWY_ONCE

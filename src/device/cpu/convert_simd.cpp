#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/cpu/convert.h"
#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/convert_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/f16-inl.h"
#include "device/cpu/simd-inl.h"

// Vectorised conversions that are frequent in training steps: bool to other types and back, and
// between floating-point types, float16 and bfloat16 among them.

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Converts full vectors with `convert`, the rest through a separate vector. Kernels convert arrays
/// in parts that fit the L1 cache: elements of the narrower type, which is in memory, are
/// prefetched beyond this part.
template <class To, class From, class F>
HWY_INLINE void convert_vectors(To* to, const From* from, std::int64_t n, F convert) {
  // Vectors have as many lanes as the wider type.
  using Wide = std::conditional_t<(sizeof(From) > sizeof(To)), From, To>;
  const hn::ScalableTag<Wide> wide;
  const hn::Rebind<From, decltype(wide)> d_from;
  const hn::Rebind<To, decltype(wide)> d_to;
  constexpr std::int64_t kLanes = hn::MaxLanes(wide);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (sizeof(From) < sizeof(To)) __builtin_prefetch(from + n + i);
    if constexpr (sizeof(From) > sizeof(To)) __builtin_prefetch(to + n + i, 1);
    hn::StoreU(convert(hn::LoadU(d_from, from + i)), d_to, to + i);
  }
  if (i == n) return;
  HWY_ALIGN From rest[kLanes] = {};
  HWY_ALIGN To result[kLanes];
  for (std::int64_t r = i; r < n; ++r) rest[r - i] = from[r];
  hn::Store(convert(hn::Load(d_from, rest)), d_to, result);
  for (std::int64_t r = i; r < n; ++r) to[r] = result[r - i];
}

void mask_to_float(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  convert_vectors(static_cast<float*>(to), static_cast<const std::uint8_t*>(from), n,
                  [&](auto v) { return hn::ConvertTo(d, hn::PromoteTo(di, v)); });
}

void float_to_mask(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> du;
  convert_vectors(static_cast<std::uint8_t*>(to), static_cast<const float*>(from), n, [&](auto v) {
    const auto is_set = hn::RebindMask(di, hn::Ne(v, hn::Zero(d)));
    return hn::DemoteTo(du, hn::IfThenElseZero(is_set, hn::Set(di, 1)));
  });
}

void float_to_double(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<double> d;
  convert_vectors(static_cast<double*>(to), static_cast<const float*>(from), n,
                  [&](auto v) { return hn::PromoteTo(d, v); });
}

void double_to_float(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  convert_vectors(static_cast<float*>(to), static_cast<const double*>(from), n,
                  [&](auto v) { return hn::DemoteTo(df, v); });
}

template <class Format>
void f16_to_float(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<float> d;
  convert_vectors(static_cast<float*>(to), static_cast<const std::uint16_t*>(from), n,
                  [&](auto v) { return Format::load(d, v); });
}

template <class Format>
void float_to_f16(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<float> d;
  convert_vectors(static_cast<std::uint16_t*>(to), static_cast<const float*>(from), n,
                  [&](auto v) { return Format::store(d, v); });
}

template <class Format>
void f16_to_double(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  convert_vectors(static_cast<double*>(to), static_cast<const std::uint16_t*>(from), n,
                  [&](auto v) { return hn::PromoteTo(d, Format::load(df, v)); });
}

template <class Format>
void double_to_f16(void* to, const void* from, std::int64_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  convert_vectors(static_cast<std::uint16_t*>(to), static_cast<const double*>(from), n,
                  [&](auto v) { return Format::store(df, to_odd_floats(d, v)); });
}

template <class From, class F>
HWY_INLINE void convert_rows(float* to, std::ptrdiff_t to_row, const void* raw,
                             std::ptrdiff_t from_row, std::int64_t rows, std::int64_t columns,
                             F convert) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<From, decltype(d)> d_from;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  constexpr std::ptrdiff_t kPrefetchDistance = 4;  // rows, which may be short
  const auto* from = static_cast<const From*>(raw);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      __builtin_prefetch(from + kPrefetchDistance * from_row + j);
      hn::StoreU(convert(hn::LoadU(d_from, from + j)), d, to + j);
    }
    if (j < columns) {
      HWY_ALIGN From rest[kLanes] = {};
      for (std::int64_t r = j; r < columns; ++r) rest[r - j] = from[r];
      hn::StoreU(convert(hn::Load(d_from, rest)), d, to + j);
    }
    from += from_row;
    to += to_row;
  }
}

template <class Format>
void widen_rows(float* to, std::ptrdiff_t to_row, const void* from, std::ptrdiff_t from_row,
                std::int64_t rows, std::int64_t columns) {
  const hn::ScalableTag<float> d;
  convert_rows<std::uint16_t>(to, to_row, from, from_row, rows, columns,
                              [&](auto v) { return Format::load(d, v); });
}

template <class Format>
void round_rows(float* to, std::ptrdiff_t to_row, const void* from, std::ptrdiff_t from_row,
                std::int64_t rows, std::int64_t columns) {
  const hn::ScalableTag<float> d;
  convert_rows<float>(to, to_row, from, from_row, rows, columns,
                      [&](auto v) { return round_to_f16<Format>(d, v); });
}

template <class Format>
ConvertRowsFn widening_of(bool rounds) {
  return rounds ? round_rows<Format> : widen_rows<Format>;
}

ConvertRowsFn widening(DataType half, bool rounds) {
  return half == DataType::kFloat16 ? widening_of<Float16Format>(rounds)
                                    : widening_of<Bfloat16Format>(rounds);
}

void add_widened(double* to, const float* from, std::int64_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto wide = hn::PromoteTo(d, hn::LoadU(df, from + i));
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), wide), d, to + i);
  }
  for (; i < n; ++i) to[i] += static_cast<double>(from[i]);
}

template <class Format>
ConvertFn find_from_f16(DataType to) {
  if (to == DataType::kFloat32) return f16_to_float<Format>;
  return to == DataType::kFloat64 ? f16_to_double<Format> : nullptr;
}

template <class Format>
ConvertFn find_to_f16(DataType from) {
  if (from == DataType::kFloat32) return float_to_f16<Format>;
  return from == DataType::kFloat64 ? double_to_f16<Format> : nullptr;
}

ConvertFn find(DataType from, DataType to) {
  if (from == DataType::kFloat16) return find_from_f16<Float16Format>(to);
  if (from == DataType::kBfloat16) return find_from_f16<Bfloat16Format>(to);
  if (to == DataType::kFloat16) return find_to_f16<Float16Format>(from);
  if (to == DataType::kBfloat16) return find_to_f16<Bfloat16Format>(from);
  if (from == DataType::kBool && to == DataType::kFloat32) return mask_to_float;
  if (from == DataType::kFloat32 && to == DataType::kBool) return float_to_mask;
  if (from == DataType::kFloat32 && to == DataType::kFloat64) return float_to_double;
  if (from == DataType::kFloat64 && to == DataType::kFloat32) return double_to_float;
  return nullptr;
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(find);
HWY_EXPORT(widening);
HWY_EXPORT(add_widened);

ConvertFn find_vector_conversion(Isa isa, DataType from, DataType to) {
  return chosen(HWY_DISPATCH_TABLE(find), isa)(from, to);
}

void add_widened(Isa isa, double* to, const float* from, std::int64_t n) {
  chosen(HWY_DISPATCH_TABLE(add_widened), isa)(to, from, n);
}

ConvertRowsFn find_widening(Isa isa, DataType half, bool rounds) {
  return chosen(HWY_DISPATCH_TABLE(widening), isa)(half, rounds);
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE

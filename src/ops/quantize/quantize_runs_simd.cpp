#include "ops/quantize/quantize_runs.h"

#include <cstdint>
#include <limits>

#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/quantize_runs_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#undef ONNXGRAD_QUANTIZES_BY_RECIPROCAL

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::quantize::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
using Numbers = hn::Rebind<std::int32_t, Floats>;
inline constexpr std::int64_t kLanes = hn::MaxLanes(Floats());

// A scale and a zero point for all elements.
struct Shared {
  float factor;
  float offset;
  HWY_INLINE Vector scale(std::int64_t /*i*/) const { return hn::Set(Floats(), factor); }
  HWY_INLINE Vector zero(std::int64_t /*i*/) const { return hn::Set(Floats(), offset); }
};

// One for each element.
struct Own {
  const float* factors;
  const float* offsets;
  HWY_INLINE Vector scale(std::int64_t i) const { return hn::LoadU(Floats(), factors + i); }
  HWY_INLINE Vector zero(std::int64_t i) const { return hn::LoadU(Floats(), offsets + i); }
};

// The first `count` as a whole vector, in `space`.
HWY_INLINE Shared padded(const Shared& factors, std::int64_t /*count*/, float* /*space*/) {
  return factors;
}
HWY_INLINE Own padded(const Own& factors, std::int64_t count, float* space) {
  for (std::int64_t i = 0; i < kLanes; ++i) {
    space[i] = i < count ? factors.factors[i] : 1.0F;
    space[kLanes + i] = i < count ? factors.offsets[i] : 0.0F;
  }
  return {space, space + kLanes};
}

// Calls f(x, factors, i, y) for vectors of elements from the i-th on; the last one may overlap the
// one before it.
template <class X, class Y, class Factors, class F>
HWY_INLINE void visit_vectors(const X* x, const Factors& factors, Y* y, std::int64_t count, F f) {
  if (count < kLanes) {
    HWY_ALIGN X from[kLanes] = {};
    HWY_ALIGN Y to[kLanes];
    HWY_ALIGN float space[2 * kLanes];
    for (std::int64_t i = 0; i < count; ++i) from[i] = x[i];
    f(from, padded(factors, count, space), std::int64_t{0}, to);
    for (std::int64_t i = 0; i < count; ++i) y[i] = to[i];
    return;
  }
  for (std::int64_t i = 0; i + kLanes <= count; i += kLanes) f(x, factors, i, y);
  if (count % kLanes != 0) f(x, factors, count - kLanes, y);
}

// At least `low`, which NaN becomes, and at most `high`.
HWY_INLINE Vector clamped(Vector x, Vector low, Vector high) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Min(hn::Max(x, low), high);  // maxps returns its second operand if either is NaN
#else
  return hn::Min(hn::IfThenElse(hn::Gt(x, low), x, low), high);
#endif
}

// 1.5 * 2^23: the sum with a number below 2^22 is rounded to a whole number, ties to even, whose
// bits are the lowest ones of the sum.
constexpr float kWhole = 12582912.0F;

// Numbers of T as sums with kWhole.
template <class T>
HWY_INLINE void store_numbers(Vector sums, T* to) {
  const hn::RebindToUnsigned<Floats> bits;
  const auto words = hn::BitCast(bits, sums);
  if constexpr (sizeof(T) == 1) {
    const hn::Rebind<std::uint8_t, Floats> narrow;
    const auto bytes = hn::U8FromU32(hn::And(words, hn::Set(bits, 0xFF)));
    hn::StoreU(bytes, narrow, reinterpret_cast<std::uint8_t*>(to));
  } else {
    const hn::Rebind<T, Floats> narrow;
    const auto low = hn::BitCast(Numbers(), hn::ShiftLeft<16>(words));
    if constexpr (std::numeric_limits<T>::is_signed) {
      hn::StoreU(hn::DemoteTo(narrow, hn::ShiftRight<16>(low)), narrow, to);
    } else {
      const auto value = hn::ShiftRight<16>(hn::BitCast(bits, low));
      hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(Numbers(), value)), narrow, to);
    }
  }
}

// x / scale, at least `low` and at most `high`, to the nearest whole number, plus kWhole.
HWY_INLINE Vector rounded_quotient(Vector x, Vector scale, Vector low, Vector high) {
  return hn::Add(clamped(hn::Div(x, scale), low, high), hn::Set(Floats(), kWhole));
}

// Bounds of the quotients: those of T before the zero point is added.
template <class T>
HWY_INLINE Vector low_of(Vector zero) {
  return hn::Sub(hn::Set(Floats(), static_cast<float>(std::numeric_limits<T>::min())), zero);
}
template <class T>
HWY_INLINE Vector high_of(Vector zero) {
  return hn::Sub(hn::Set(Floats(), static_cast<float>(std::numeric_limits<T>::max())), zero);
}

template <class T, class Factors>
HWY_INLINE void quantize_by_division(const float* x, const Factors& factors, T* y,
                                     std::int64_t count) {
  visit_vectors(x, factors, y, count,
                [&](const float* from, const auto& own, std::int64_t i, T* to) HWY_ATTR {
                  const Vector zero = own.zero(i);
                  const Vector whole = rounded_quotient(hn::LoadU(Floats(), from + i), own.scale(i),
                                                        low_of<T>(zero), high_of<T>(zero));
                  store_numbers(hn::Add(whole, zero), to + i);
                });
}

// Numbers of 8 bits with one scale are computed without divisions, where products and sums are
// rounded once: the product with the reciprocal is corrected by what remains (Markstein,
// Computation of elementary functions on the IBM RISC System/6000 processor, 1990).
#if HWY_TARGET != HWY_SCALAR && (HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64)
#define ONNXGRAD_QUANTIZES_BY_RECIPROCAL 1

template <class T>
class Reciprocal {
 public:
  explicit Reciprocal(const Shared& factors)
      : scale_(hn::Set(d, factors.factor)),
        reciprocal_(hn::Set(d, 1.0F / factors.factor)),
        low_(low_of<T>(factors.zero(0))),
        high_(high_of<T>(factors.zero(0))) {
    // What makes of kWhole plus a number the code, counted from the lowest one.
    constexpr std::int32_t kBits = 0x4B400000;
    const auto zero = static_cast<std::int32_t>(factors.offset);
    offset_ = hn::Set(di, zero - kBits - std::numeric_limits<T>::min());
    HWY_ALIGN std::int32_t order[kLanes];
    constexpr std::int64_t kBlocks = kLanes / 4;
    for (std::int64_t i = 0; i < kLanes; ++i) {
      order[i] = static_cast<std::int32_t>(4 * (i % kBlocks) + i / kBlocks);
    }
    order_ = hn::SetTableIndices(di, order);
  }

  // Four vectors of x as bytes.
  HWY_INLINE void store(const float* x, T* y) const {
    for (std::int64_t k = 0; k < 4; ++k) __builtin_prefetch(x + (16 + k) * kLanes);
    const auto ab = hn::Or(codes(x), hn::ShiftLeft<8>(codes(x + kLanes)));
    const auto cd =
        hn::Or(hn::ShiftLeft<16>(codes(x + 2 * kLanes)), hn::ShiftLeft<24>(codes(x + 3 * kLanes)));
    auto all = hn::Or(ab, cd);
    if (std::numeric_limits<T>::is_signed) {
      all = hn::Xor(all, hn::Set(di, static_cast<std::int32_t>(0x80808080U)));
    }
    // The bytes of each vector next to each other, within 128 bits, then as a whole.
    HWY_ALIGN static constexpr std::uint8_t kBytes[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                          2, 6, 10, 14, 3, 7, 11, 15};
    const hn::Repartition<std::uint8_t, Floats> bytes;
    const auto words = hn::BitCast(
        di, hn::TableLookupBytes(hn::BitCast(bytes, all), hn::LoadDup128(bytes, kBytes)));
    const auto sorted = hn::TableLookupLanes(words, order_);
    hn::StoreU(hn::BitCast(bytes, sorted), bytes, reinterpret_cast<std::uint8_t*>(y));
  }

 private:
  HWY_INLINE hn::Vec<Numbers> codes(const float* from) const {
    const Vector x = hn::LoadU(d, from);
    const Vector estimate = hn::Min(hn::Mul(x, reciprocal_), hn::Set(d, kFar));
    const Vector rest = hn::NegMulAdd(estimate, scale_, x);
    const Vector quotient = clamped(hn::MulAdd(rest, reciprocal_, estimate), low_, high_);
    return hn::Add(hn::BitCast(di, hn::Add(quotient, hn::Set(d, kWhole))), offset_);
  }

  static constexpr float kFar = 1048576.0F;  // beyond every result
  Floats d = {};
  Numbers di = {};
  Vector scale_;
  Vector reciprocal_;
  Vector low_;
  Vector high_;
  hn::Vec<Numbers> offset_;
  decltype(hn::SetTableIndices(Numbers(), static_cast<const std::int32_t*>(nullptr))) order_;
};
#endif

template <class T>
HWY_ATTR void quantize_run(const float* x, float scale, float zero, T* y, std::int64_t count) {
  const Shared factors{scale, zero};
#ifdef ONNXGRAD_QUANTIZES_BY_RECIPROCAL
  const float size = scale < 0 ? -scale : scale;
  if (sizeof(T) == 1 && size > 1e-30F && size < 1e30F) {  // neither is denormal
    const Reciprocal<T> reciprocal(factors);
    constexpr std::int64_t kStep = 4 * kLanes;
    std::int64_t i = 0;
    for (; i + kStep <= count; i += kStep) reciprocal.store(x + i, y + i);
    return quantize_by_division(x + i, factors, y + i, count - i);
  }
#endif
  quantize_by_division(x, factors, y, count);
}

template <class T>
HWY_ATTR void quantize_each(const float* x, const float* scale, const float* zero, T* y,
                            std::int64_t count) {
  quantize_by_division(x, Own{scale, zero}, y, count);
}

template <class T>
HWY_INLINE Vector numbers(const T* from) {
  if constexpr (sizeof(T) == 4) {
    return hn::ConvertTo(Floats(), hn::LoadU(Numbers(), from));
  } else {
    const hn::Rebind<T, Floats> narrow;
    return hn::ConvertTo(Floats(), hn::PromoteTo(Numbers(), hn::LoadU(narrow, from)));
  }
}

template <class T, class Factors>
HWY_INLINE void dequantize(const T* x, const Factors& factors, float* y, std::int64_t count) {
  visit_vectors(x, factors, y, count,
                [&](const T* from, const auto& own, std::int64_t i, float* to) HWY_ATTR {
                  const Vector steps = hn::Sub(numbers(from + i), own.zero(i));
                  hn::StoreU(hn::Mul(steps, own.scale(i)), Floats(), to + i);
                });
}

template <class T>
HWY_ATTR void dequantize_run(const T* x, float scale, float zero, float* y, std::int64_t count) {
  dequantize(x, Shared{scale, zero}, y, count);
}

template <class T>
HWY_ATTR void dequantize_each(const T* x, const float* scale, const float* zero, float* y,
                              std::int64_t count) {
  dequantize(x, Own{scale, zero}, y, count);
}

template <class... T>
RunTables make_tables(DequantizeTable<std::int32_t> int32) {
  return {QuantizeTable<T>{quantize_run<T>, quantize_each<T>}...,
          DequantizeTable<T>{dequantize_run<T>, dequantize_each<T>}..., int32};
}

const RunTables* all_tables() {
  static const RunTables tables =
      make_tables<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t>(
          {dequantize_run<std::int32_t>, dequantize_each<std::int32_t>});
  return &tables;
}

}  // namespace onnxgrad::ops::quantize::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::quantize {

HWY_EXPORT(all_tables);

const RunTables& run_tables() { return *HWY_DYNAMIC_DISPATCH(all_tables)(); }

}  // namespace onnxgrad::ops::quantize
#endif  // HWY_ONCE

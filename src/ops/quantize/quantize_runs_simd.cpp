#include "ops/quantize/quantize_runs_simd.h"

#include <cstdint>
#include <limits>

#include "device/cpu/dispatch.h"
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

// Scale and zero point for all elements.
struct Shared {
  float factor;
  float offset;
  HWY_INLINE Vector scale(std::int64_t /*i*/) const { return hn::Set(Floats(), factor); }
  HWY_INLINE Vector zero(std::int64_t /*i*/) const { return hn::Set(Floats(), offset); }
};

// Scale and zero point for each element.
struct Own {
  const float* factors;
  const float* offsets;
  HWY_INLINE Vector scale(std::int64_t i) const { return hn::LoadU(Floats(), factors + i); }
  HWY_INLINE Vector zero(std::int64_t i) const { return hn::LoadU(Floats(), offsets + i); }
};

// Copies the first `count` factors to a whole vector, in `space`.
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

// Calls f(x, factors, i, y) for vectors of elements from index i on; the last vector may overlap
// the one before it.
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

// Clamps x to [low, high]; NaN becomes `low`.
HWY_INLINE Vector clamped(Vector x, Vector low, Vector high) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Min(hn::Max(x, low), high);  // maxps returns its second operand if either is NaN
#else
  return hn::Min(hn::IfThenElse(hn::Gt(x, low), x, low), high);
#endif
}

// 1.5 * 2^23: adding it rounds a number below 2^22 to an integer, ties to even, whose bits are the
// lowest bits of the sum.
constexpr float kWhole = 12582912.0F;

// Converts T to floats offset by kWhole.
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

// Returns x / scale, clamped to [low, high] and rounded to the nearest integer, plus kWhole.
HWY_INLINE Vector rounded_quotient(Vector x, Vector scale, Vector low, Vector high) {
  return hn::Add(clamped(hn::Div(x, scale), low, high), hn::Set(Floats(), kWhole));
}

// Bounds of the quotients: the range of T before the zero point is added.
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

// 8-bit types with one positive scale are quantized without divisions on targets with fused
// multiply-add: the product with the reciprocal is corrected by its remainder (Markstein,
// Computation of elementary functions on the IBM RISC System/6000 processor, 1990).
#if HWY_TARGET != HWY_SCALAR && (HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64)
#define ONNXGRAD_QUANTIZES_BY_RECIPROCAL 1

template <class T>
class Reciprocal {
 public:
  explicit Reciprocal(const Shared& factors)
      : scale_(hn::Set(d, factors.factor)),
        reciprocal_(hn::Set(d, 1.0F / factors.factor)),
        low_(hn::Mul(low_of<T>(factors.zero(0)), scale_)),
        high_(hn::Mul(high_of<T>(factors.zero(0)), scale_)),
        zero_(hn::Set(bytes, static_cast<std::uint8_t>(static_cast<int>(factors.offset)))) {}

  // Stores four vectors of x as bytes.
  HWY_INLINE void store(const float* x, T* y) const {
    for (std::int64_t k = 0; k < 4; ++k) __builtin_prefetch(x + (16 + k) * kLanes);
    const auto low = hn::ConcatEven(words, whole(x + kLanes), whole(x));
    const auto high = hn::ConcatEven(words, whole(x + 3 * kLanes), whole(x + 2 * kLanes));
    const auto all = hn::ConcatEven(bytes, hn::BitCast(bytes, high), hn::BitCast(bytes, low));
    hn::StoreU(hn::Add(all, zero_), bytes, reinterpret_cast<std::uint8_t*>(y));
  }

 private:
  using Words = hn::Repartition<std::uint16_t, Floats>;
  using Bytes = hn::Repartition<std::uint8_t, Floats>;

  // Returns x / scale, rounded, in the lowest byte of each lane. Clamping comes first: the
  // quotients of the rounded bounds are the integers that they stand for.
  HWY_INLINE hn::Vec<Words> whole(const float* from) const {
    const Vector x = clamped(hn::LoadU(d, from), low_, high_);
    const Vector estimate = hn::Mul(x, reciprocal_);
    const Vector rest = hn::NegMulAdd(estimate, scale_, x);
    const Vector quotient = hn::MulAdd(rest, reciprocal_, estimate);
    return hn::BitCast(words, hn::Add(quotient, hn::Set(d, kWhole)));
  }

  Floats d = {};
  Words words = {};
  Bytes bytes = {};
  Vector scale_;
  Vector reciprocal_;
  Vector low_;
  Vector high_;
  hn::Vec<Bytes> zero_;
};
#endif

template <class T>
HWY_ATTR void quantize_run(const float* x, float scale, float zero, T* y, std::int64_t count) {
  const Shared factors{scale, zero};
#ifdef ONNXGRAD_QUANTIZES_BY_RECIPROCAL
  if (sizeof(T) == 1 && scale > 1e-30F && scale < 1e30F) {  // the reciprocal is not denormal
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

const RunTables& run_tables(device::Isa isa) {
  return *device::chosen(HWY_DISPATCH_TABLE(all_tables), isa)();
}

}  // namespace onnxgrad::ops::quantize
#endif  // HWY_ONCE

// Conversion of vectors between float and float16 or bfloat16, to nearest, ties to even; included
// once per instruction set. Subnormal float16 values are exact even where subnormal floats are
// flushed to zero.
#if defined(ONNXGRAD_DEVICE_CPU_F16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_F16_INL_H_
#undef ONNXGRAD_DEVICE_CPU_F16_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_F16_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
inline constexpr bool kHasF16c = true;  // smaller numbers are better instruction sets
#else
inline constexpr bool kHasF16c = false;
#endif

/// Conversions of a 16-bit format, as template arguments: `load` converts bits to float, `store`
/// rounds float to bits, `round` does both. D is Highway's tag of float vectors.
struct Float16Format {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> bits) {
    if constexpr (kHasF16c) {
      const hn::Rebind<hwy::float16_t, D> dh;
      return hn::PromoteTo(d, hn::BitCast(dh, bits));
    } else {
      const hn::Rebind<std::int32_t, D> di;
      const auto wide = hn::PromoteTo(di, bits);
      const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(di, 0x8000)));
      const auto magnitude = hn::And(wide, hn::Set(di, 0x7FFF));
      const auto shifted = hn::ShiftLeft<13>(magnitude);
      const auto normal = hn::Add(shifted, hn::Set(di, 112 << 23));  // the bias is 127, not 15
      const auto tiny = hn::BitCast(di, hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-24F)));
      const auto endless = hn::Or(shifted, hn::Set(di, 0x7F800000));
      auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x400)), tiny, normal);
      result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7BFF)), endless, result);
      return hn::BitCast(d, hn::Or(result, sign));
    }
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> store([[maybe_unused]] D d,
                                                                hn::Vec<D> v) {
    const hn::Rebind<std::uint16_t, D> du;
    if constexpr (kHasF16c) {
      const hn::Rebind<hwy::float16_t, D> dh;
      return hn::BitCast(du, hn::DemoteTo(dh, v));
    } else {
      const hn::Rebind<std::int32_t, D> di;
      const auto bits = hn::BitCast(di, v);
      const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
      const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
      // Adding 0.5 leaves the ten bits of a subnormal result, rounded, at the end of the sum.
      const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
      const auto tiny = hn::Sub(hn::BitCast(di, sum), hn::Set(di, 0x3F000000));
      const auto is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
      const auto rounded = hn::Add(hn::Add(magnitude, is_odd), hn::Set(di, 0xFFF - 0x38000000));
      auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), tiny,
                                   hn::ShiftRight<13>(rounded));
      result =
          hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477FEFFF)), hn::Set(di, 0x7C00), result);
      result =
          hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), hn::Set(di, 0x7E00), result);
      return hn::DemoteTo(du, hn::Or(result, sign));
    }
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> round(D d, hn::Vec<D> v) {
    return load(d, store(d, v));
  }
};

struct Bfloat16Format {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> bits) {
    const hn::Rebind<std::uint32_t, D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> store(D d, hn::Vec<D> v) {
    const auto bits = hn::ShiftRight<16>(rounded_bits(d, v));
    return hn::TruncateTo(hn::Rebind<std::uint16_t, D>(), bits);
  }

  /// Returns load(store(v)).
  template <class D>
  static HWY_INLINE hn::Vec<D> round(D d, hn::Vec<D> v) {
    const hn::Rebind<std::uint32_t, D> du;
    return hn::BitCast(d, hn::And(rounded_bits(d, v), hn::Set(du, 0xFFFF0000)));
  }

 private:
  /// Returns bits whose upper 16 are the rounded bfloat16.
  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint32_t, D>> rounded_bits(D, hn::Vec<D> v) {
    const hn::Rebind<std::uint32_t, D> du;
    const auto bits = hn::BitCast(du, v);
    const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto sum = hn::Add(bits, hn::Add(is_odd, hn::Set(du, 0x7FFF)));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
    return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(du, 0x400000)), sum);
  }
};

/// Loads the first `count` lanes, with zeros after them; reads nothing else.
template <class D16>
HWY_INLINE hn::Vec<D16> load_first_halves(D16 d, const std::uint16_t* from, std::int64_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN std::uint16_t lanes[hn::MaxLanes(D16())] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(count)), d, from);
#endif
}

/// Writes the first `count` lanes and nothing else.
template <class D16>
HWY_INLINE void store_first_halves(hn::Vec<D16> v, D16 d, std::uint16_t* to, std::int64_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN std::uint16_t lanes[hn::MaxLanes(D16())];
  hn::Store(v, d, lanes);
  for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
#else
  hn::BlendedStore(v, hn::FirstN(d, static_cast<std::size_t>(count)), d, to);
#endif
}

/// Converts double to float so that a second rounding, to 16 bits, gives the same as one rounding:
/// see base::to_odd_float.
template <class D>
HWY_INLINE auto to_odd_floats(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto lost = hn::Set(du, (std::uint64_t{1} << 29) - 1);
  const auto is_exact = hn::Eq(hn::And(lost, bits), hn::Zero(du));
  const auto odd = hn::Or(hn::AndNot(lost, bits), hn::Set(du, std::uint64_t{1} << 29));
  const auto kept = hn::BitCast(d, hn::IfThenElse(is_exact, bits, odd));
  const auto magic = hn::Set(d, 0x1.8p-81);
  const auto size = hn::Abs(v);
  const auto tiny = hn::CopySign(hn::Sub(hn::Add(size, magic), magic), v);
  const auto result = hn::IfThenElse(hn::Lt(size, hn::Set(d, 0x1p-126)), tiny, kept);
  return hn::DemoteTo(hn::Rebind<float, D>(), result);
}

/// Rounds to the nearest 16-bit float, as a value of the lanes' type.
template <class Format, class D>
HWY_INLINE hn::Vec<D> round_to_f16(D d, hn::Vec<D> v) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return Format::round(d, v);
  } else {
    const hn::Rebind<float, D> df;
    return hn::PromoteTo(d, Format::load(df, Format::store(df, to_odd_floats(d, v))));
  }
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

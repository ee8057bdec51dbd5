#ifndef ONNXGRAD_BASE_F16_H_
#define ONNXGRAD_BASE_F16_H_

#include <bit>
#include <cmath>
#include <cstdint>

// Conversion of stored float16 (IEEE binary16) and bfloat16 to and from float. To nearest, ties to
// even; NaN stays NaN, values that are too large become infinity.

namespace onnxgrad::base {

struct Float16 {
  std::uint16_t bits = 0;
};

struct Bfloat16 {
  std::uint16_t bits = 0;
};

inline float to_float(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  // The exponent's bias is 15, not 127: multiplying by 2^112 corrects it, for subnormal numbers
  // too.
  float result = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  if (magnitude >= 0x7C00U) result = std::bit_cast<float>(0x7F800000U | (magnitude << 13));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(result) | sign);
}

inline Bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  const std::uint32_t rounding = 0x7FFFU + ((bits >> 16) & 1U);
  return {static_cast<std::uint16_t>((bits + rounding) >> 16)};
}

inline Float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t result = 0;
  if (magnitude > 0x7F800000U) {
    result = 0x7E00U;
  } else if (magnitude >= 0x477FF000U) {  // rounds to 65536 or more
    result = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: subnormal
    // Adding 0.5 leaves the result's 10 bits, rounded, at the end of the sum.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    result = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5F);
  } else {
    const std::uint32_t rounding = 0xFFFU + ((magnitude >> 13) & 1U);
    result = (magnitude - 0x38000000U + rounding) >> 13;
  }
  return {static_cast<std::uint16_t>(result | sign)};
}

/// The float for which to_float16 and to_bfloat16 return the 16-bit number nearest to `value`:
/// rounded to odd (towards zero, with the last bit set if inexact), so that a number just beside
/// the middle of two 16-bit numbers does not become the middle. Subnormal floats have fewer bits:
/// there it is the nearest bfloat16, a multiple of 2^-133.
inline float to_odd_float(double value) {
  if (std::fabs(value) < 0x1p-126) {
    constexpr double kMagic = 0x1.8p-81;  // the last bit of numbers of this size is 2^-133
    const double rounded = (std::fabs(value) + kMagic) - kMagic;
    return static_cast<float>(std::copysign(rounded, value));
  }
  constexpr std::uint64_t kLost = (std::uint64_t{1} << 29) - 1;
  auto bits = std::bit_cast<std::uint64_t>(value);
  if ((bits & kLost) != 0) bits = (bits & ~kLost) | (kLost + 1);
  return static_cast<float>(std::bit_cast<double>(bits));
}

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_F16_H_

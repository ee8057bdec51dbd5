#ifndef ONNXGRAD_TESTS_CUDA_STANDINS_NUMBERS_H_
#define ONNXGRAD_TESTS_CUDA_STANDINS_NUMBERS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Floating-point numbers of 16 bits and tf32, for the stand-ins of libraries.

namespace onnxgrad::cuda_standin {

inline double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// To the nearest, ties to even.
inline std::uint16_t half_bits(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7E00;
  if (magnitude == 0) return sign;
  if (magnitude >= 65520) return sign | 0x7C00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent, -13);  // of subnormal numbers
  const double scaled = std::nearbyint(std::ldexp(magnitude, 11 - exponent));
  return static_cast<std::uint16_t>(sign + ((exponent + 13) << 10) + static_cast<int>(scaled));
}

inline double bfloat16_value(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline std::uint16_t bfloat16_bits(double value) {
  const auto narrow = static_cast<float>(value);
  std::uint32_t wide = 0;
  std::memcpy(&wide, &narrow, sizeof wide);
  const std::uint32_t rounded = wide + 0x7FFF + (wide >> 16 & 1);
  return static_cast<std::uint16_t>((std::isnan(narrow) ? wide | 0x400000 : rounded) >> 16);
}

/// As tensor cores read a factor of float32: with 10 bits of the fraction.
inline double tf32(double value) {
  const auto narrow = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof bits);
  bits = (bits + 0x1000) & ~std::uint32_t{0x1FFF};
  float back = 0;
  std::memcpy(&back, &bits, sizeof back);
  return back;
}

}  // namespace onnxgrad::cuda_standin

#endif  // ONNXGRAD_TESTS_CUDA_STANDINS_NUMBERS_H_

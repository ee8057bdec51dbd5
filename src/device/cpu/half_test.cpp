#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "device/cpu/convert.h"

namespace onnxgrad::device::half_test {
namespace {

using base::Bfloat16;
using base::Float16;
using base::to_bfloat16;
using base::to_float16;

/// By the definition of the format: sign, exponent, fraction.
double decode(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const double significand = std::ldexp(fraction, -fraction_bits) + (exponent == 0 ? 0 : 1);
  return sign * std::ldexp(significand, (exponent == 0 ? 1 : exponent) - bias);
}

TEST(Half, EveryNumberThereAndBack) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double half = decode(bits, 5, 10);
    const double brain = decode(bits, 8, 7);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(to_float(Float16{bits}))) << i;
      EXPECT_TRUE(std::isnan(to_float(to_float16(to_float(Float16{bits}))))) << i;
    } else {
      EXPECT_EQ(to_float(Float16{bits}), half) << i;
      EXPECT_EQ(to_float16(static_cast<float>(half)).bits, bits) << i;
    }
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(to_float(Bfloat16{bits}))))) << i;
    } else {
      EXPECT_EQ(to_float(Bfloat16{bits}), brain) << i;
      EXPECT_EQ(to_bfloat16(static_cast<float>(brain)).bits, bits) << i;
    }
  }
}

// Half way between two neighbours the even one is taken; a hair beyond, the nearer one.
TEST(Half, RoundsToNearestEven) {
  for (std::uint16_t bits = 0; bits < 0x7BFF; ++bits) {
    const double low = decode(bits, 5, 10);
    const double high = decode(static_cast<std::uint16_t>(bits + 1), 5, 10);
    const auto middle = static_cast<float>((low + high) / 2);
    const auto even = static_cast<std::uint16_t>(bits + bits % 2);
    EXPECT_EQ(to_float16(middle).bits, even);
    EXPECT_EQ(to_float16(std::nextafter(middle, 1e6F)).bits, bits + 1);
    EXPECT_EQ(to_float16(std::nextafter(middle, 0.0F)).bits, bits);
  }
  EXPECT_EQ(to_float16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(to_float16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_float16(-1e30F).bits, 0xFC00);
  EXPECT_EQ(to_bfloat16(1.00390625F).bits, 0x3F80);  // half way to 1.0078125
  EXPECT_EQ(to_bfloat16(1.01171875F).bits, 0x3F82);
}

TEST(Convert, FloatsToIntegersGoThroughInt64) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double numbers[] = {1.9, -1.9, 300, -300, 1e30, -1e30, nan, 0};
  std::int8_t small[8];
  std::int64_t large[8];
  std::uint8_t natural[8];
  bool truth[8];
  find_conversion(DataType::kFloat64, DataType::kInt8)(small, numbers, 8);
  find_conversion(DataType::kFloat64, DataType::kInt64)(large, numbers, 8);
  find_conversion(DataType::kFloat64, DataType::kUint8)(natural, numbers, 8);
  find_conversion(DataType::kFloat64, DataType::kBool)(truth, numbers, 8);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  const std::int64_t expected_small[] = {1, -1, 44, -44, -1, 0, 0, 0};
  const std::int64_t expected_large[] = {1, -1, 300, -300, kMax, kMin, 0, 0};
  const std::int64_t expected_natural[] = {1, 255, 44, 212, 255, 0, 0, 0};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(small[i], expected_small[i]) << i;
    EXPECT_EQ(large[i], expected_large[i]) << i;
    EXPECT_EQ(natural[i], expected_natural[i]) << i;
    EXPECT_EQ(truth[i], i != 7) << i;  // NaN is not zero
  }
  EXPECT_EQ(find_conversion(DataType::kString, DataType::kFloat32), nullptr);
}

}  // namespace
}  // namespace onnxgrad::device::half_test

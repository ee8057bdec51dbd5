#include "base/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "device/cpu/convert.h"
#include "device/testing/instruction_sets.h"

namespace onnxgrad::device::f16_test {
namespace {

using base::Bfloat16;
using base::Float16;
using base::to_bfloat16;
using base::to_float16;

/// Decodes a 16-bit float by the definition of its format: sign, exponent, fraction.
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

// A double beside the middle of two 16-bit floats is no tie, though the nearest float is.
TEST(Half, DoublesAreRoundedOnce) {
  const double middle = 1 + 0x1p-11;  // between 1 and the next float16
  EXPECT_EQ(to_float16(base::to_odd_float(middle)).bits, 0x3C00);
  EXPECT_EQ(to_float16(base::to_odd_float(middle + 0x1p-50)).bits, 0x3C01);
  EXPECT_EQ(to_float16(base::to_odd_float(-middle - 0x1p-50)).bits, 0xBC01);
  EXPECT_EQ(to_bfloat16(base::to_odd_float(1 + 0x1p-8 + 0x1p-50)).bits, 0x3F81);
  EXPECT_EQ(to_float16(base::to_odd_float(1e300)).bits, 0x7C00);
  EXPECT_EQ(to_bfloat16(base::to_odd_float(-1e300)).bits, 0xFF80);
  // Values beside the middle of two subnormal bfloat16 numbers.
  EXPECT_EQ(to_bfloat16(base::to_odd_float(0x1.8p-133)).bits, 2);
  EXPECT_EQ(to_bfloat16(base::to_odd_float(0x1.7fffffffp-133)).bits, 1);
  EXPECT_EQ(to_bfloat16(base::to_odd_float(-0x1.0p-134)).bits, 0x8000);
  EXPECT_EQ(to_bfloat16(base::to_odd_float(-0x1.0000001p-134)).bits, 0x8001);
}

/// Returns all 16-bit floats, the middles of two neighbours and the values right beside these.
template <class T>
std::vector<T> numbers_around(DataType half) {
  std::vector<T> numbers;
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto at = [half](std::uint32_t bits) {
      const auto stored = static_cast<std::uint16_t>(bits);
      return half == DataType::kFloat16 ? to_float(Float16{stored}) : to_float(Bfloat16{stored});
    };
    const T low = at(i);
    numbers.push_back(low);
    const T middle = (low + static_cast<T>(at(i + 1 < 0x10000 ? i + 1 : 0))) / 2;
    numbers.push_back(middle);
    numbers.push_back(std::nextafter(middle, T(-INFINITY)));
    numbers.push_back(std::nextafter(middle, T(INFINITY)));
  }
  return numbers;
}

std::uint16_t rounded(DataType half, double number) {
  const float single = base::to_odd_float(number);
  return half == DataType::kFloat16 ? to_float16(single).bits : to_bfloat16(single).bits;
}

bool is_nan(DataType half, std::uint16_t bits) {
  return (bits & 0x7FFF) > (half == DataType::kFloat16 ? 0x7C00 : 0x7F80);
}

template <class T>
void compare_vectors(Isa isa, DataType half, DataType wide) {
  const std::vector<T> numbers = numbers_around<T>(half);
  std::vector<std::uint16_t> bits(numbers.size());
  find_vector_conversion(isa, wide, half)(bits.data(), numbers.data(), std::ssize(numbers));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint16_t expected = rounded(half, static_cast<double>(numbers[i]));
    if (is_nan(half, expected)) {
      ASSERT_TRUE(is_nan(half, bits[i])) << i;
    } else {
      ASSERT_EQ(bits[i], expected) << numbers[i];
    }
  }
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<T> back(all.size());
  find_vector_conversion(isa, half, wide)(back.data(), all.data(), std::ssize(all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double expected =
        half == DataType::kFloat16 ? decode(all[i], 5, 10) : decode(all[i], 8, 7);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(back[i])) << i;
    } else {
      ASSERT_EQ(static_cast<double>(back[i]), expected) << i;
      ASSERT_EQ(std::signbit(back[i]), std::signbit(expected)) << i;
    }
  }
}

TEST(Convert, VectorsOfF16AreTheSameOnEveryInstructionSet) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    for (const DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
      compare_vectors<float>(cpu.isa, half, DataType::kFloat32);
      compare_vectors<double>(cpu.isa, half, DataType::kFloat64);
    }
  });
}

// Nothing is read or written behind the last element.
TEST(Convert, F16OfAnyNumber) {
  for (const DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
    for (std::int64_t n = 0; n < 40; ++n) {
      std::vector<float> numbers(static_cast<std::size_t>(n) + 1, 1.5F);
      std::vector<std::uint16_t> bits(numbers.size(), 0xABCD);
      find_conversion(best_isa(), DataType::kFloat32, half)(bits.data(), numbers.data(), n);
      EXPECT_EQ(bits.back(), 0xABCD);
      std::vector<float> back(numbers.size(), 7);
      find_conversion(best_isa(), half, DataType::kFloat32)(back.data(), bits.data(), n);
      EXPECT_EQ(back.back(), 7);
      for (std::size_t i = 0; i + 1 < back.size(); ++i) EXPECT_EQ(back[i], 1.5F);
    }
  }
}

TEST(Convert, FloatsToIntegersGoThroughInt64) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double numbers[] = {1.9, -1.9, 300, -300, 1e30, -1e30, nan, 0};
  std::int8_t small[8];
  std::int64_t large[8];
  std::uint8_t natural[8];
  bool truth[8];
  find_conversion(best_isa(), DataType::kFloat64, DataType::kInt8)(small, numbers, 8);
  find_conversion(best_isa(), DataType::kFloat64, DataType::kInt64)(large, numbers, 8);
  find_conversion(best_isa(), DataType::kFloat64, DataType::kUint8)(natural, numbers, 8);
  find_conversion(best_isa(), DataType::kFloat64, DataType::kBool)(truth, numbers, 8);
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
  EXPECT_EQ(find_conversion(best_isa(), DataType::kString, DataType::kFloat32), nullptr);
}

}  // namespace
}  // namespace onnxgrad::device::f16_test

#include "runtime/finite.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace onnxgrad::runtime {
namespace finite_test {

struct FiniteCase {
  DataType dtype;
  std::size_t bytes;  // of an element
  std::uint64_t largest;
  std::uint64_t infinity;
  std::uint64_t nan;
  std::uint64_t sign;
};

const std::vector<FiniteCase> kCases = {
    {DataType::kFloat64, 8, 0x7FEF'FFFF'FFFF'FFFF, 0x7FF0'0000'0000'0000, 0x7FF0'0000'0000'0001,
     0x8000'0000'0000'0000},
    {DataType::kFloat32, 4, 0x7F7F'FFFF, 0x7F80'0000, 0x7FC0'0000, 0x8000'0000},
    {DataType::kFloat16, 2, 0x7BFF, 0x7C00, 0x7C01, 0x8000},
    {DataType::kBfloat16, 2, 0x7F7F, 0x7F80, 0x7FFF, 0x8000},
};

// One element with these bits among `count` of the largest finite number.
bool finite_with(const FiniteCase& of, std::int64_t count, std::int64_t position,
                 std::uint64_t bits) {
  const auto size = static_cast<std::size_t>(count);
  std::vector<std::byte> data(size * of.bytes);
  for (std::size_t i = 0; i < size; ++i) {
    std::memcpy(&data[i * of.bytes], &of.largest, of.bytes);
  }
  std::memcpy(&data[static_cast<std::size_t>(position) * of.bytes], &bits, of.bytes);
  return all_finite(of.dtype, data.data(), count);
}

TEST(Finite, FindsInfinitiesAndNanAnywhere) {
  for (const FiniteCase& of : kCases) {
    for (const std::int64_t count : {1, 7, 31, 32, 33, 100}) {
      for (std::int64_t position = 0; position < count; ++position) {
        for (const std::uint64_t bits : {of.infinity, of.nan}) {
          EXPECT_FALSE(finite_with(of, count, position, bits)) << of.bytes << " " << position;
          EXPECT_FALSE(finite_with(of, count, position, bits | of.sign));
        }
      }
    }
  }
}

TEST(Finite, NumbersAreFinite) {
  for (const FiniteCase& of : kCases) {
    for (const std::uint64_t bits : {std::uint64_t{0}, std::uint64_t{1}, of.largest}) {
      EXPECT_TRUE(finite_with(of, 100, 50, bits)) << of.bytes << " " << bits;
      EXPECT_TRUE(finite_with(of, 100, 50, bits | of.sign)) << of.bytes << " " << bits;
    }
    EXPECT_TRUE(all_finite(of.dtype, nullptr, 0));
  }
}

TEST(Finite, OtherTypesCountAsFinite) {
  const std::vector<std::byte> data(64, std::byte{0xFF});
  EXPECT_TRUE(all_finite(DataType::kInt64, data.data(), 8));
  EXPECT_TRUE(all_finite(DataType::kBool, data.data(), 64));
}

}  // namespace finite_test
}  // namespace onnxgrad::runtime

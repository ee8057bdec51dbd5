#include "device/cpu/f16_gemm.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/f16.h"
#include "base/memory_budget.h"
#include "device/testing/emulated_amx.h"
#include "device/testing/gemm_checks.h"

// Choices and edges of GEMMs of 16-bit floats; gemm_test.cpp has the rest.

namespace onnxgrad::device::f16_gemm_test {
namespace {

/// Choices for bfloat16 that this processor has, with AMX emulated.
std::vector<F16GemmSpec> implementations() {
  std::vector<F16GemmSpec> all{{.choice = F16GemmChoice::kWidened},
                               {.choice = F16GemmChoice::kAmx, .cpu = with_emulated_amx()}};
  for (const auto one : {F16GemmChoice::kVnni, F16GemmChoice::kAmx}) {
    if (has_f16_gemm(one)) all.push_back({.choice = one});
  }
  return all;
}

TEST(F16Gemm, ChoosesBySizes) {
  const CpuOptions cpu = with_emulated_amx();
  const auto label = [](const F16GemmSpec& spec) { return prepare_f16_gemm(spec).label; };
  EXPECT_EQ(label({.m = 16, .n = 16, .k = 32, .cpu = cpu}), "bfloat16 tiles AMX 16x16x32");
  EXPECT_EQ(label({.m = 15, .n = 16, .k = 32, .cpu = cpu}).find("tiles AMX"), std::string::npos);
  const F16GemmSpec half{.dtype = DataType::kFloat16, .m = 128, .n = 128, .k = 128, .cpu = cpu};
  EXPECT_NE(label(half).find("widened split"), std::string::npos);
}

// With AMX and sums in one block of k, the consumer gets longer rows from a split GEMM.
TEST(F16Gemm, ConsumesShortSumsInRows) {
  std::mt19937 random(13);
  for (int layout = 0; layout < 8; ++layout) {
    GemmCase one{.dtype = DataType::kBfloat16, .rounds_b = (layout & 4) != 0};
    one.gemm = {.m = 100, .n = 1100, .k = 130, .cpu = with_emulated_amx()};
    one.gemm.transpose_a = (layout & 1) != 0;
    one.gemm.transpose_b = (layout & 2) != 0;
    one.gemm.threads = layout % 3 + 1;
    one.gemm.has_consumer = true;
    ASSERT_TRUE(one.can_consume());
    ASSERT_NE(one.prepare().label.find("split"), std::string::npos);
    check(one, random);
  }
}

// Elements beside A in memory do not enter a sum, not even as 0 times infinity.
TEST(F16Gemm, ReadsNoNeighbours) {
  constexpr std::int64_t kRows = 9;
  constexpr std::int64_t kLength = 5;
  constexpr std::int64_t kStride = 7;
  constexpr std::uint16_t kInfinity = 0x7F80;
  const auto one = base::to_bfloat16(1).bits;
  for (F16GemmSpec spec : implementations()) {
    std::vector<std::uint16_t> a(kRows * kStride, kInfinity);
    const std::vector<std::uint16_t> b(kLength * 3, one);
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (i % kStride < kLength) a[i] = base::to_bfloat16(2).bits;
    }
    std::vector<float> c(kRows * 3);
    spec.m = kRows, spec.n = 3, spec.k = kLength;
    spec.a_row_length = kStride;
    const PreparedGemm gemm = prepare_f16_gemm(spec);
    const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
    gemm({.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
    for (const float sum : c) EXPECT_EQ(sum, 10.0F) << gemm.label;
  }
}

}  // namespace
}  // namespace onnxgrad::device::f16_gemm_test

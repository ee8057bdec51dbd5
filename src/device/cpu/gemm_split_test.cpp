#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "base/memory_budget.h"
#include "device/cpu/gemm.h"
#include "device/testing/emulated_amx.h"
#include "device/testing/gemm_checks.h"
#include "device/testing/instruction_sets.h"

// Split GEMM against sums in float64: by AMX where the processor has it, and by the same arithmetic
// in C++ on all processors.

namespace onnxgrad::device::gemm_split_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Calls f with AMX, if this processor has it, and with its arithmetic in C++.
template <class F>
void for_each_target(const F& f) {
  if (amx_target() != nullptr) {
    SCOPED_TRACE("AMX");
    f(CpuOptions());
    if (testing::Test::HasFatalFailure()) return;
  }
  SCOPED_TRACE("emulated");
  f(with_emulated_amx());
}

GemmSpec split(const CpuOptions& cpu, std::int64_t m, std::int64_t n, std::int64_t k,
               int transposes = 0) {
  return {.m = m,
          .n = n,
          .k = k,
          .transpose_a = transposes % 2 != 0,
          .transpose_b = transposes / 2 != 0,
          .choice = GemmChoice::kSplit,
          .cpu = cpu};
}

TEST(GemmSplit, IsChosenForLargeProducts) {
  const CpuOptions cpu = with_emulated_amx();
  const auto label = [](GemmSpec spec) {
    spec.choice = GemmChoice::kBest;
    return prepare_gemm(spec).label.substr(0, 5);
  };
  EXPECT_EQ(label(split(cpu, 128, 128, 128)), "split");
  EXPECT_EQ(label(split(cpu, 1024, 768, 768, 3)), "split");
  EXPECT_NE(label(split(cpu, 128, 128, 32)), "split");
  EXPECT_NE(label(split(cpu, 32, 512, 512)), "split");
  GemmSpec wide = split(cpu, 128, 128, 128);
  wide.dtype = DataType::kFloat64;
  EXPECT_NE(label(wide), "split");
}

// A constant B is packed once, in float32, for few rows of A; for many rows a split GEMM pays.
TEST(GemmSplit, PackedNumbersForFewRows) {
  const CpuOptions cpu = with_emulated_amx();
  GemmSpec spec{.m = 128, .n = 128, .k = 512, .cpu = cpu};
  EXPECT_TRUE(can_pack_b(spec));
  spec.b_is_packed = true;
  EXPECT_EQ(prepare_gemm(spec).label.substr(0, 6), "packed");
  EXPECT_FALSE(can_pack_b({.m = 300, .n = 128, .k = 512, .cpu = cpu}));
  EXPECT_FALSE(can_pack_b({.m = 128, .n = 512, .k = 512, .cpu = cpu}));
  EXPECT_TRUE(can_pack_b({.m = 128, .n = 512, .k = 512, .threads = 2, .cpu = cpu}));
  // A packed B is accepted where the choice without AMX is another one, such as dot products.
  for (const std::int64_t m : {65, 128, 250}) {
    for (const std::int64_t n : {64, 65, 200}) {
      for (const std::int64_t k : {128, 700, 2048, 5000}) {
        GemmSpec packed{.m = m, .n = n, .k = k, .cpu = cpu};
        packed.b_is_packed = can_pack_b(packed);
        EXPECT_NE(prepare_gemm(packed).fn, nullptr);
      }
    }
  }
}

// A split GEMM takes three addends, others four: a kernel's questions before it knows the addends
// must have the same answer.
TEST(GemmSplit, FourAddendsAreForOthers) {
  const CpuOptions cpu = with_emulated_amx();
  GemmSpec spec{.m = 100, .n = 128, .k = 128, .start = GemmStart::kRow, .cpu = cpu};
  spec.more = {GemmStart::kMatrix, GemmStart::kRow, GemmStart::kZero};
  EXPECT_EQ(prepare_gemm(spec).label.substr(0, 5), "split");
  spec.more[2] = GemmStart::kMatrix;
  EXPECT_NE(prepare_gemm(spec).label.substr(0, 5), "split");
  spec.is_scaled = can_scale(spec);
  EXPECT_NE(prepare_gemm(spec).fn, nullptr);
}

TEST(GemmSplit, CanBeSwitchedOff) {
  CpuOptions cpu = with_emulated_amx();
  cpu.amx_for_float32 = false;
  EXPECT_FALSE(cpu.computes_float32_by_amx());
  EXPECT_EQ(prepare_gemm({.m = 128, .n = 128, .k = 128, .cpu = cpu}).label.find("split"),
            std::string::npos);
  EXPECT_EQ(prepare_gemm(split(cpu, 128, 128, 128)).label.find("split"), std::string::npos);
}

TEST(GemmSplit, ProductsOfAllShapes) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(1);
    for (const std::int64_t m : {1, 15, 17, 32, 50}) {
      for (const std::int64_t n : {2, 16, 31, 33, 49}) {
        for (const std::int64_t k : {1, 16, 17, 33, 150}) {
          GemmSpec spec = split(cpu, m, n, k, static_cast<int>(random() % 4));
          spec.threads = static_cast<int>(random() % 3) + 1;
          check_variants<float>(spec, random);
        }
      }
    }
  });
}

// Blocks of all dimensions; an operand that each thread packs, and one that they share.
TEST(GemmSplit, LargeProducts) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(2);
    for (const auto& [m, n, k] : {std::tuple{150, 530, 70},
                                  {530, 150, 70},
                                  {700, 64, 100},
                                  {130, 70, 1100},
                                  {140, 150, 2000},
                                  {20, 1100, 40}}) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        GemmSpec spec = split(cpu, m, n, k, transposes);
        spec.threads = transposes % 3 + 1;
        spec.start = static_cast<GemmStart>(random() % 3);
        check<float>(spec, random, 1, spec.start == GemmStart::kMatrix && random() % 2 == 0);
      }
    }
  });
}

TEST(GemmSplit, AddendsScalesAndColumnSums) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(3);
    for (const auto& [m, n, k] : {std::tuple{70, 90, 100}, {90, 70, 1200}, {300, 33, 64}}) {
      for (const int threads : {1, 2, 3}) {
        GemmSpec spec = split(cpu, m, n, k, threads);
        spec.threads = threads;
        check_more_addends<float>(spec, random, 1);
        check_more_addends<float>(spec, random, 2);
        spec.start = threads == 2 ? GemmStart::kRow : GemmStart::kZero;
        spec.is_scaled = true;
        check_scaled<float>(spec, random);
        spec.sums_columns = true;
        check_scaled<float>(spec, random);
        spec.is_scaled = false;
        check_scaled<float>(spec, random);
      }
    }
  });
}

// Consumers get complete sums; the last two cases have several blocks of k, whose sums are in
// scratch, and one long block.
TEST(GemmSplit, PartsGoToTheConsumer) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(4);
    for (const auto& [m, n, k] : {std::tuple{70, 90, 100},
                                  {300, 600, 128},
                                  {64, 1100, 40},
                                  {130, 70, 2500},
                                  {520, 530, 1100}}) {
      for (const int threads : {1, 3}) {
        GemmSpec spec = split(cpu, m, n, k, threads);
        spec.threads = threads;
        check_consumer<float>(spec, random);
      }
    }
  });
}

std::vector<float> product(const GemmSpec& spec, const std::vector<float>& a,
                           const std::vector<float>& b) {
  const PreparedGemm gemm = prepare_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
  std::vector<float> c(static_cast<std::size_t>(spec.m * spec.n));
  gemm({.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
  return c;
}

TEST(GemmSplit, BitsDoNotDependOnThreads) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(5);
    for (const auto& [m, n, k] : {std::tuple{300, 200, 300}, {100, 500, 1100}, {640, 70, 100}}) {
      const auto a = random_numbers<float>(m * k, random);
      const auto b = random_numbers<float>(k * n, random);
      GemmSpec spec = split(cpu, m, n, k);
      const std::vector<float> expected = product(spec, a, b);
      for (spec.threads = 2; spec.threads <= 5; ++spec.threads) {
        EXPECT_EQ(product(spec, a, b), expected) << spec.threads;
      }
    }
  });
}

/// Returns the root of the mean square error of some elements, in float64.
double error_of(const GemmSpec& spec, const std::vector<float>& a, const std::vector<float>& b) {
  const std::vector<float> c = product(spec, a, b);
  double sum = 0;
  int count = 0;
  for (std::int64_t at = 0; at < spec.m * spec.n; at += 7, ++count) {
    const Expected expected = expected_at(spec, a, b, {}, 1, at / spec.n, at % spec.n);
    const double error = static_cast<double>(c[static_cast<std::size_t>(at)]) - expected.value;
    sum += error * error;
  }
  return std::sqrt(sum / count);
}

// Operands of both signs, positive ones, and ones beside a thousand times smaller weights.
TEST(GemmSplit, IsNoLessAccurateThanMultiplyAdds) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(6);
    for (const std::int64_t k : {64, 128, 784, 1500}) {
      for (int kind = 0; kind < 3; ++kind) {
        GemmSpec spec = split(cpu, 96, 96, k);
        auto a = random_numbers<float>(spec.m * k, random);
        auto b = random_numbers<float>(k * spec.n, random);
        for (float& x : a) x = kind == 1 ? std::abs(x) : x;
        for (float& x : b) x = kind == 1 ? std::abs(x) : kind == 2 ? x * 1.37e-3F : x;
        const double in_parts = error_of(spec, a, b);
        spec.choice = GemmChoice::kBlocked;
        EXPECT_LE(in_parts, 0.9 * error_of(spec, a, b)) << k << ", kind " << kind;
      }
    }
  });
}

TEST(GemmSplit, AmxAgreesWithItsEmulation) {
  if (amx_target() == nullptr) GTEST_SKIP() << "this processor has no AMX";
  std::mt19937 random(7);
  GemmSpec spec = split({}, 130, 170, 300);
  const auto a = random_numbers<float>(spec.m * spec.k, random);
  const auto b = random_numbers<float>(spec.k * spec.n, random);
  const std::vector<float> c = product(spec, a, b);
  spec.cpu = with_emulated_amx();
  const std::vector<float> expected = product(spec, a, b);
  for (std::size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(c[i], expected[i], 4e-6) << i;
}

// Infinity and NaN as multiply-adds give them, and no NaN for infinity.
TEST(GemmSplit, NumbersThatHaveNoParts) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(8);
    for (const float special :
         {kInfinity, -kInfinity, kMost, -kMost, std::numeric_limits<float>::quiet_NaN()}) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        GemmSpec spec = split(cpu, 70, 90, 1100, transposes);
        spec.threads = transposes % 2 + 1;
        auto a = random_numbers<float>(spec.m * spec.k, random);
        auto b = random_numbers<float>(spec.k * spec.n, random);
        for (float& x : b) x = std::abs(x) * 0.01F + 0.001F;
        const std::int64_t row = 37;
        const std::int64_t step = 1050;
        a[static_cast<std::size_t>(spec.transpose_a ? step * spec.m + row : row * spec.k + step)] =
            special;
        const std::vector<float> c = product(spec, a, b);
        for (std::int64_t i = 0; i < spec.m; ++i) {
          for (std::int64_t j = 0; j < spec.n; ++j) {
            const float given = c[static_cast<std::size_t>(i * spec.n + j)];
            if (i != row) {
              ASSERT_TRUE(std::isfinite(given)) << i << ", " << j;
              continue;
            }
            const float y = b[static_cast<std::size_t>(spec.transpose_b ? j * spec.k + step
                                                                        : step * spec.n + j)];
            if (std::isnan(special)) {
              ASSERT_TRUE(std::isnan(given));
            } else if (std::isinf(special)) {
              ASSERT_EQ(given, special);
            } else {
              ASSERT_NEAR(given / (special * y), 1, 1e-5);
            }
          }
        }
      }
    }
  });
}

// Parts of tiny elements are subnormal and count as zero: the element rounded to bfloat16 is left.
TEST(GemmSplit, TinyNumbersKeepTheirFirstPart) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(9);
    GemmSpec spec = split(cpu, 32, 32, 64);
    auto a = random_numbers<float>(spec.m * spec.k, random);
    const auto b = random_numbers<float>(spec.k * spec.n, random);
    const std::vector<float> expected = product(spec, a, b);
    for (const float scale : {0x1p-90F, 0x1p-112F}) {
      std::vector<float> tiny = a;
      for (float& x : tiny) x *= scale;
      const std::vector<float> c = product(spec, tiny, b);
      const double allowed = scale > 0x1p-100F ? 1e-6 : 0.05;
      for (std::size_t i = 0; i < c.size(); ++i) {
        ASSERT_NEAR(c[i] / scale, expected[i], allowed * (std::abs(expected[i]) + 8)) << i;
      }
    }
  });
}

TEST(GemmSplit, EndsWithTilesOfEveryInstructionSet) {
  for_each_instruction_set([](CpuOptions cpu) {
    cpu.amx = &emulated_amx();
    std::mt19937 random(10);
    check_variants<float>(split(cpu, 40, 50, 60), random);
    check_consumer<float>(split(cpu, 40, 50, 60), random);
  });
}

}  // namespace
}  // namespace onnxgrad::device::gemm_split_test

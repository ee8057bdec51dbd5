#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "device/cpu/gemm.h"
#include "device/testing/emulated_amx.h"
#include "device/testing/gemm_checks.h"

// Split GEMM by AMX where the processor has it, and by the same arithmetic in C++ on all
// processors: its choice, and the accuracy of its parts. gemm_test.cpp has the rest.

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
  EXPECT_FALSE(can_pack_b({.m = 128, .n = 512, .k = 512, .threads = 2, .cpu = cpu}));  // same bits
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

/// Returns the root of the mean square error of some elements, in float64.
double error_of(const GemmSpec& spec, GemmRun& run) {
  run.set_case({.gemm = spec});
  run.run();
  double sum = 0;
  int count = 0;
  for (std::int64_t at = 0; at < spec.m * spec.n; at += 7, ++count) {
    const double error = run.c()[at] - run.expected(at / spec.n, at % spec.n).value;
    sum += error * error;
  }
  return std::sqrt(sum / count);
}

template <class F>
void change(TestMatrix& matrix, const F& f) {
  for (std::int64_t i = 0; i < matrix.count(); ++i) {
    matrix.set(i, static_cast<float>(f(matrix[i])));
  }
}

// Operands of both signs, positive ones, and ones beside a thousand times smaller weights.
TEST(GemmSplit, IsNoLessAccurateThanMultiplyAdds) {
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(6);
    for (const std::int64_t k : {64, 128, 784, 1500}) {
      for (int kind = 0; kind < 3; ++kind) {
        GemmSpec spec = split(cpu, 96, 96, k);
        GemmRun run({.gemm = spec}, random);
        if (kind == 1) change(run.a(), [](double x) { return std::abs(x); });
        if (kind == 1) change(run.b(), [](double x) { return std::abs(x); });
        if (kind == 2) change(run.b(), [](double x) { return x * 1.37e-3; });
        const double in_parts = error_of(spec, run);
        spec.choice = GemmChoice::kBlocked;
        EXPECT_LE(in_parts, 0.9 * error_of(spec, run)) << k << ", kind " << kind;
      }
    }
  });
}

TEST(GemmSplit, AmxAgreesWithItsEmulation) {
  if (amx_target() == nullptr) GTEST_SKIP() << "this processor has no AMX";
  std::mt19937 random(7);
  GemmSpec spec = split({}, 130, 170, 300);
  GemmRun run({.gemm = spec}, random);
  run.run();
  std::vector<double> c;
  for (std::int64_t i = 0; i < run.c().count(); ++i) c.push_back(run.c()[i]);
  spec.cpu = with_emulated_amx();
  run.set_case({.gemm = spec});
  run.run();
  for (std::size_t i = 0; i < c.size(); ++i) {
    ASSERT_NEAR(c[i], run.c()[static_cast<std::int64_t>(i)], 4e-6) << i;
  }
}

// The largest finite elements round to an infinite part: their products are those of multiply-adds,
// in all layouts and with several blocks of k.
TEST(GemmSplit, NumbersThatHaveNoParts) {
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  for_each_target([](const CpuOptions& cpu) {
    std::mt19937 random(8);
    for (const double special : {static_cast<double>(kInfinity), kMost, -kMost}) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        GemmSpec spec = split(cpu, 70, 90, 1100, transposes);
        spec.threads = transposes % 2 + 1;
        GemmRun run({.gemm = spec}, random);
        change(run.b(), [](double x) { return std::abs(x) * 0.01 + 0.001; });
        const std::int64_t row = 37;
        const std::int64_t step = 1050;
        run.a().set(spec.transpose_a ? step * spec.m + row : row * spec.k + step, special);
        run.run();
        for (std::int64_t at = 0; at < spec.m * spec.n; ++at) {
          if (at / spec.n != row) {
            ASSERT_TRUE(std::isfinite(run.c()[at])) << at;
            continue;
          }
          const std::int64_t j = at % spec.n;
          const double y = run.b()[spec.transpose_b ? j * spec.k + step : step * spec.n + j];
          if (std::isinf(special)) {
            ASSERT_EQ(run.c()[at], special);
          } else {
            ASSERT_NEAR(run.c()[at] / (special * y), 1, 1e-5);
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
    for (const double scale : {0x1p-90, 0x1p-112}) {
      GemmRun run({.gemm = split(cpu, 32, 32, 64)}, random);
      change(run.a(), [&](double x) { return x * scale; });
      run.run();
      const double allowed = scale > 0x1p-100 ? 1e-6 : 0.05;
      for (std::int64_t i = 0; i < run.c().count(); ++i) {
        const double expected = run.expected(i / 32, i % 32).value / scale;
        ASSERT_NEAR(run.c()[i] / scale, expected, allowed * (std::abs(expected) + 8)) << i;
      }
    }
  });
}

}  // namespace
}  // namespace onnxgrad::device::gemm_split_test

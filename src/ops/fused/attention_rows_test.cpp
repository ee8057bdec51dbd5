#include "ops/fused/attention_rows_simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "device/testing/instruction_sets.h"

namespace onnxgrad::ops::attention_rows_test {
namespace {

// Exponentials of a row are accurate to 1.5 units in the last place, compared with long double;
// subnormal ones to the smallest normal number.
template <class T>
void check_exponentials(device::Isa isa, std::size_t count, double lowest) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::uniform_real_distribution<double> uniform(lowest, 0);
  std::vector<T> x(count);
  for (T& value : x) value = static_cast<T>(uniform(random));
  x[count / 2] = 0;  // maximum 0: no rounding of the difference
  std::vector<T> y = x;
  const auto stats =
      attention_rows::exponentials(isa, y.data(), T(1), static_cast<std::int64_t>(count));
  EXPECT_EQ(stats.largest, T(0));
  long double total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const long double right = std::exp(static_cast<long double>(x[i]));
    const long double allowed = 1.5L * right * std::numeric_limits<T>::epsilon();
    const long double smallest = std::numeric_limits<T>::min();
    ASSERT_LE(std::abs(static_cast<long double>(y[i]) - right), std::max(allowed, smallest))
        << x[i];
    total += right;
  }
  EXPECT_NEAR(static_cast<double>(static_cast<long double>(stats.inverse) * total), 1, 1e-6);
}

TEST(AttentionRows, Exponentials) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    for (const std::size_t count : {1U, 7U, 16U, 100U, 1000U}) {
      for (const double lowest : {-1e-3, -3.0, -80.0, -120.0, -1e30}) {
        check_exponentials<float>(cpu.isa, count, lowest);
        check_exponentials<double>(cpu.isa, count, lowest);
      }
    }
  });
}

TEST(AttentionRows, SpecialScores) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> hidden(20, -infinity);
    hidden[3] = 2;
    EXPECT_EQ(attention_rows::exponentials(cpu.isa, hidden.data(), 1.0F, 20).inverse, 1.0F);
    EXPECT_EQ(hidden[3], 1.0F);
    EXPECT_EQ(std::accumulate(hidden.begin(), hidden.end(), 0.0F), 1.0F);
    std::vector<float> all_hidden(20, -infinity);
    EXPECT_TRUE(
        std::isnan(attention_rows::exponentials(cpu.isa, all_hidden.data(), 1.0F, 20).inverse));
    EXPECT_TRUE(std::isnan(all_hidden[0]));
    std::vector<float> broken(20, 1.0F);
    broken[5] = nan;
    attention_rows::exponentials(cpu.isa, broken.data(), 1.0F, 20);
    EXPECT_TRUE(std::isnan(broken[5]));
  });
}

}  // namespace
}  // namespace onnxgrad::ops::attention_rows_test

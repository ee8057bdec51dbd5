#include "base/philox.h"

#include <gtest/gtest.h>

#include <map>

namespace onnxgrad::base::philox_test {

// Known answers published with Random123 (kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsDifferBySeedUseAndIndex) {
  const auto first = [](std::uint64_t seed, RandomUse use, std::uint32_t index) {
    return PhiloxStream(seed, use, index).next();
  };
  const auto reference = first(0, RandomUse::kShuffle, 0);
  EXPECT_EQ(reference, first(0, RandomUse::kShuffle, 0));
  EXPECT_NE(reference, first(1, RandomUse::kShuffle, 0));
  EXPECT_NE(reference, first(0, RandomUse::kWeights, 0));
  EXPECT_NE(reference, first(0, RandomUse::kShuffle, 1));
}

TEST(Philox, BelowIsUniform) {
  PhiloxStream stream(7, RandomUse::kShuffle, 0);
  std::map<std::uint64_t, int> counts;
  for (int i = 0; i < 60000; ++i) ++counts[stream.below(6)];
  ASSERT_EQ(counts.size(), 6U);
  for (const auto& [value, count] : counts) EXPECT_NEAR(count, 10000, 400) << value;
}

TEST(Philox, UniformAndNormalHaveTheirMoments) {
  PhiloxStream stream(7, RandomUse::kWeights, 3);
  const int n = 100000;
  double sum = 0;
  double normal_sum = 0;
  double normal_squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = stream.uniform();
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    const double z = stream.normal();
    normal_sum += z;
    normal_squares += z * z;
  }
  EXPECT_NEAR(sum / n, 0.5, 0.005);
  EXPECT_NEAR(normal_sum / n, 0, 0.02);
  EXPECT_NEAR(normal_squares / n, 1, 0.03);
}

}  // namespace onnxgrad::base::philox_test

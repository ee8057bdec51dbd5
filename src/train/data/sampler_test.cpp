#include "train/data/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::train::sampler_test {

std::vector<std::int64_t> shuffled(std::uint64_t seed, std::uint32_t epoch, std::size_t rows) {
  std::vector<std::int64_t> order(rows, -1);
  shuffle_rows(seed, epoch, order);
  return order;
}

TEST(Sampler, IsAPermutationAndAFunctionOfSeedAndEpoch) {
  for (const std::size_t rows : {0U, 1U, 2U, 7U, 1000U}) {
    auto order = shuffled(3, 5, rows);
    EXPECT_EQ(order, shuffled(3, 5, rows));
    std::ranges::sort(order);
    std::vector<std::int64_t> identity(rows);
    std::iota(identity.begin(), identity.end(), 0);
    EXPECT_EQ(order, identity);
  }
  EXPECT_NE(shuffled(3, 5, 100), shuffled(3, 6, 100));
  EXPECT_NE(shuffled(3, 5, 100), shuffled(4, 5, 100));
}

TEST(Sampler, EveryRowComesToEveryPlaceEquallyOften) {
  constexpr std::size_t kRows = 5;
  constexpr int kEpochs = 20000;
  std::array<std::array<int, kRows>, kRows> counts{};
  for (std::uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = shuffled(1, epoch, kRows);
    for (std::size_t i = 0; i < kRows; ++i) ++counts[i][static_cast<std::size_t>(order[i])];
  }
  double chi_square = 0;
  for (const auto& row : counts) {
    for (const int count : row) {
      const double expected = static_cast<double>(kEpochs) / kRows;
      chi_square += (count - expected) * (count - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, 39.3);  // 16 degrees of freedom: exceeded with probability 0.001
}

TEST(Sampler, AKeyedPermutationIsOne) {
  for (const std::uint64_t size : {1U, 2U, 3U, 4U, 5U, 16U, 17U, 1000U, 4097U}) {
    const KeyedPermutation permutation(size, 7, 3);
    std::vector<bool> seen(size, false);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t number = permutation(i);
      ASSERT_LT(number, size);
      EXPECT_FALSE(seen[number]);
      seen[number] = true;
      EXPECT_EQ(KeyedPermutation(size, 7, 3)(i), number);
    }
  }
  const KeyedPermutation million(1'000'003, 7, 3);
  std::vector<std::int64_t> numbers(1'000'003);
  for (std::size_t first = 0; first < numbers.size(); first += 70'000) {
    million.fill(first, std::span(numbers).subspan(
                            first, std::min<std::size_t>(70'000, numbers.size() - first)));
    EXPECT_EQ(static_cast<std::uint64_t>(numbers[first]), million(first));
  }
  std::ranges::sort(numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(numbers[i], static_cast<std::int64_t>(i));
  }
  const std::uint64_t large = std::uint64_t{1} << 50;
  const KeyedPermutation permutation(large + 12345, 1, 0);
  EXPECT_LT(permutation(large), large + 12345);
  EXPECT_NE(permutation(0), KeyedPermutation(large + 12345, 1, 1)(0));
  EXPECT_NE(permutation(0), KeyedPermutation(large + 12345, 2, 0)(0));
}

TEST(Sampler, AKeyedPermutationIsUniform) {
  constexpr std::uint64_t kSize = 5;
  constexpr int kEpochs = 20000;
  std::array<std::array<int, kSize>, kSize> counts{};
  for (std::uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
    const KeyedPermutation permutation(kSize, 1, epoch);
    for (std::size_t i = 0; i < kSize; ++i) ++counts[i][permutation(i)];
  }
  double chi_square = 0;
  for (const auto& row : counts) {
    for (const int count : row) {
      const double expected = static_cast<double>(kEpochs) / kSize;
      chi_square += (count - expected) * (count - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, 39.3);  // 16 degrees of freedom: exceeded with probability 0.001
}

// Neighbours of an epoch come from anywhere, and the same row is anywhere in the next epoch.
TEST(Sampler, AKeyedPermutationHasNoPattern) {
  constexpr std::uint64_t kSize = 100'000;
  constexpr std::size_t kBins = 10;
  std::array<std::array<int, kBins>, kBins> neighbours{};
  std::array<std::array<int, kBins>, kBins> epochs{};
  const KeyedPermutation first(kSize, 1, 0);
  const KeyedPermutation second(kSize, 1, 1);
  for (std::uint64_t i = 0; i + 1 < kSize; ++i) {
    const auto bin = [](std::uint64_t number) { return number * kBins / kSize; };
    ++neighbours[bin(first(i))][bin(first(i + 1))];
    ++epochs[bin(first(i))][bin(second(i))];
  }
  for (const auto& counts : {neighbours, epochs}) {
    double chi_square = 0;
    for (const auto& row : counts) {
      for (const int count : row) chi_square += (count - 1000.0) * (count - 1000.0) / 1000;
    }
    EXPECT_LT(chi_square, 148.2);  // 99 degrees of freedom: exceeded with probability 0.001
  }
}

TEST(Sampler, WindowsAreConsecutiveRowsThatBeginAnywhere) {
  constexpr std::int64_t kRows = 7;
  constexpr std::int64_t kBatch = 3;
  constexpr int kEpochs = 4000;
  EXPECT_EQ(count_windows(kRows, kBatch), 3);
  EXPECT_EQ(count_windows(6, kBatch), 2);
  std::vector<std::int64_t> order(9);
  std::array<int, kRows - kBatch + 1> counts{};
  for (std::uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
    draw_windows(2, epoch, kRows, kBatch, order);
    for (std::size_t i = 0; i < order.size(); i += 3) {
      EXPECT_EQ(order[i + 1], order[i] + 1);
      EXPECT_EQ(order[i + 2], order[i] + 2);
      ++counts[static_cast<std::size_t>(order[i])];
    }
  }
  double chi_square = 0;
  for (const int count : counts) {
    const double expected = 3.0 * kEpochs / counts.size();
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 18.5);  // 4 degrees of freedom: exceeded with probability 0.001
  auto same = order;
  draw_windows(2, kEpochs - 1, kRows, kBatch, same);
  EXPECT_EQ(same, order);
  draw_windows(3, kEpochs - 1, kRows, kBatch, same);
  EXPECT_NE(same, order);
}

TEST(Sampler, WeightedRowsComeAsOftenAsTheirWeights) {
  const std::vector<double> weights{0, 1, 0, 3, 4};
  std::vector<std::int64_t> order(8000);
  draw_weighted(5, 2, weights, order);
  std::array<double, 5> counts{};
  for (const auto row : order) ++counts[static_cast<std::size_t>(row)];
  for (std::size_t i = 0; i < counts.size(); ++i) EXPECT_NEAR(counts[i], 1000 * weights[i], 150);
  auto again = order;
  draw_weighted(5, 2, weights, again);
  EXPECT_EQ(again, order);
  draw_weighted(5, 3, weights, again);
  EXPECT_NE(again, order);
}

TEST(Sampler, RowsWithoutReplacementAreDifferent) {
  const std::vector<double> weights{0, 1, 0, 3, 1e300, 1e-300};
  EXPECT_THAT(draw_without_replacement(1, 0, weights, 9),
              testing::UnorderedElementsAre(1, 3, 4, 5));
  EXPECT_EQ(draw_without_replacement(1, 0, weights, 1), std::vector<std::int64_t>{4});
}

TEST(Sampler, BalancedRowsHaveAsManyOfEachClass) {
  const std::vector<std::vector<std::int64_t>> members{{0, 1, 2, 3, 4, 5, 6}, {7, 8}, {9}};
  const auto drawn = draw_balanced(3, 1, members, /*replacement=*/true, 30);
  EXPECT_EQ(drawn.size(), 30U);
  EXPECT_EQ(std::ranges::count(drawn, 9), 10);
  EXPECT_EQ(std::ranges::count_if(drawn, [](auto row) { return row < 7; }), 10);
  auto once = draw_balanced(3, 1, members, /*replacement=*/false, 30);
  EXPECT_EQ(once.size(), 3U);
  EXPECT_THAT(once, testing::Contains(9));
  EXPECT_NE(drawn, draw_balanced(3, 2, members, /*replacement=*/true, 30));
}

TEST(Sampler, BalancedRowsDoNotDependOnHowManyFollow) {
  const std::vector<std::vector<std::int64_t>> members{{0, 1, 2}, {3}};
  auto some = draw_balanced(3, 1, members, /*replacement=*/true, 2 * kDrawnTogether);
  const auto more = draw_balanced(3, 1, members, /*replacement=*/true, 2 * kDrawnTogether + 5);
  ASSERT_EQ(more.size(), some.size() + 5);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), more.begin()));
  EXPECT_FALSE(std::equal(some.begin(), some.begin() + kDrawnTogether,
                          some.begin() + kDrawnTogether));  // blocks differ
}

TEST(Sampler, SplitTakesTheShareAndNothingTwice) {
  const Split split = split_rows(100, 0.25, 9);
  EXPECT_EQ(split.validation.size(), 25U);
  auto all = split.train;
  all.insert(all.end(), split.validation.begin(), split.validation.end());
  std::ranges::sort(all);
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(split_rows(100, 0.25, 9).validation, split.validation);
  EXPECT_NE(split_rows(100, 0.25, 10).validation, split.validation);
  EXPECT_EQ(split_rows(2, 0.01, 0).validation.size(), 1U);
  EXPECT_EQ(split_rows(2, 0.99, 0).train.size(), 1U);
}

TEST(Sampler, StratifiedSplitKeepsTheSharesOfClasses) {
  std::vector<std::int64_t> classes;
  for (int i = 0; i < 100; ++i) classes.push_back(i < 60 ? 0 : i < 90 ? 1 : 2);
  const Split split = split_rows_stratified(classes, 3, 0.1, 4);
  std::array<int, 3> counts{};
  for (const auto row : split.validation) {
    ++counts[static_cast<std::size_t>(classes[static_cast<std::size_t>(row)])];
  }
  EXPECT_THAT(counts, testing::ElementsAre(6, 3, 1));
  EXPECT_EQ(split.train.size(), 90U);
}

TEST(Sampler, AClassWithOneRowStaysInTraining) {
  const std::vector<std::int64_t> classes{0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const Split split = split_rows_stratified(classes, 2, 0.5, 4);
  EXPECT_THAT(split.train, testing::Contains(9));
  EXPECT_FALSE(split.validation.empty());
}

TEST(Sampler, RefusesWhatCannotBeSplit) {
  EXPECT_THROW(split_rows(1, 0.5, 0), DataError);
  EXPECT_THROW(split_rows(10, 0, 0), DataError);
  EXPECT_THROW(split_rows(10, 1, 0), DataError);
  EXPECT_THROW(split_rows(10, std::nan(""), 0), DataError);
}

}  // namespace onnxgrad::train::sampler_test

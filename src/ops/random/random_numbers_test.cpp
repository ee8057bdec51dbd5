#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace draw {

const char* const kRandom = "its random numbers are our own";
const char* const kNoGradient = "no gradient flows back through random numbers";

// Expected random numbers: Philox 4x32-10 with the bits of 3.0f as key and counter (block, step 0,
// FNV-1a of "y", 4), from a Python program that was checked against the known answers of Random123.
std::vector<double> uniform_numbers() {
  return {0.13502774957053254, 2.612301948335145, 1.9440821946065832, 2.833424495887388,
          2.8084353065485006};
}
std::vector<double> normal_numbers() {
  return {2.650938518199687, 1.546020180749978, 2.3781453150783873, 1.8987343033207094,
          2.147915507301958};
}

// Rounds to float32, as the operators do with dtype = 1 in either floating type under test.
std::vector<double> rounded(std::vector<double> numbers) {
  for (double& number : numbers) number = static_cast<double>(static_cast<float>(number));
  return numbers;
}

std::vector<double> drawn(std::string_view op_type, std::vector<ir::Attribute> attributes,
                          std::int64_t count, opdef::StepCells cells) {
  attributes.push_back({.name = "shape", .value = std::vector<std::int64_t>{count}});
  const KernelCall call{.op_type = op_type,
                        .attributes = std::move(attributes),
                        .outputs = {{.dtype = DataType::kFloat64, .dims = {count}}},
                        .cells = cells};
  return run_plain(call).at(0).to_doubles();
}

double mean(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

}  // namespace draw

std::vector<OpCase> random_numbers_cases() {
  using draw::kNoGradient;
  using draw::kRandom;
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, std::string model, std::vector<CaseInput> inputs,
                       std::vector<double> expected) {
    cases.push_back({.name = std::move(name),
                     .model = std::move(model),
                     .inputs = std::move(inputs),
                     .no_gradient = kNoGradient,
                     .expected = {std::move(expected)},
                     .no_oracle = kRandom});
  };
  add("uniform",
      "y = RandomUniform <shape = [5], dtype = 1, low = -1.0, high = 3.0, seed = 3.0> ()", {},
      draw::rounded(draw::uniform_numbers()));
  add("uniform_float64",
      "y = RandomUniform <shape = [5], dtype = 11, low = -1.0, high = 3.0, seed = 3.0> ()", {},
      draw::uniform_numbers());
  add("uniform_like", "y = RandomUniformLike <low = -1.0, high = 3.0, seed = 3.0> (x)",
      {uniform({5}, 0, 1)}, draw::uniform_numbers());
  add("uniform_like_dtype",
      "y = RandomUniformLike <dtype = 11, low = -1.0, high = 3.0, seed = 3.0> (x)",
      {integers({5}, 0, 1)}, draw::uniform_numbers());
  add("normal",
      "y = RandomNormal <shape = [5], dtype = 11, mean = 2.0, scale = 0.5, seed = 3.0> ()", {},
      draw::normal_numbers());
  add("normal_like", "y = RandomNormalLike <mean = 2.0, scale = 0.5, seed = 3.0> (x)",
      {uniform({5}, 0, 1)}, draw::normal_numbers());
  add("normal_like_dtype",
      "y = RandomNormalLike <dtype = 1, mean = 2.0, scale = 0.5, seed = 3.0> (x)",
      {integers({5}, 0, 1)}, draw::rounded(draw::normal_numbers()));
  add("bernoulli", "y = Bernoulli <seed = 3.0> (p)", {values({0, 1, 0.5, 0.5, 0.9, 0.1}, {6})},
      {0, 1, 0, 0, 0, 1});
  add("bernoulli_inside", "y = Bernoulli <seed = 3.0> (p)",
      {values({0.35, 0.75, 0.8, 0.5, 0.96, 0.1}, {6})}, {1, 0, 1, 0, 1, 1});
  add("bernoulli_bool", "y = Bernoulli <dtype = 9, seed = 3.0> (p)",
      {values({0, 1, 0.5, 0.5, 0.9, 0.1}, {2, 3})}, {0, 1, 0, 0, 0, 1});
  add("uniform_like_nothing", "y = RandomUniformLike <seed = 3.0> (x)", {uniform({0, 3}, 0, 1)},
      {});
  add("normal_like_nothing", "y = RandomNormalLike <seed = 3.0> (x)", {uniform({0, 3}, 0, 1)}, {});
  add("bernoulli_nothing", "y = Bernoulli <seed = 3.0> (p)", {uniform({0, 3}, 0, 1)}, {});
  // The first random number of a stream does not depend on the size of the output.
  add("uniform_like_one", "y = RandomUniformLike <low = -1.0, high = 3.0, seed = 3.0> (x)",
      {uniform({1}, 0, 1)}, {draw::uniform_numbers().front()});
  add("normal_like_one", "y = RandomNormalLike <mean = 2.0, scale = 0.5, seed = 3.0> (x)",
      {uniform({1}, 0, 1)}, {draw::normal_numbers().front()});
  add("bernoulli_one", "y = Bernoulli <seed = 3.0> (p)", {values({1}, {1})}, {1});
  add("nothing", "y = RandomUniform <shape = [0, 3], seed = 3.0> ()", {}, {});
  // uniform_numbers() are 4 u - 1 for u = 0.28, 0.90, 0.74, 0.96, 0.95; the rows of scores are the
  // logarithms of (0.2, 0.3, 0.5), and of (0.75, 0.2, 0.05) times 2.
  add("multinomial", "y = Multinomial <sample_size = 5, seed = 3.0> (scores)",
      {values({std::log(0.2), std::log(0.3), std::log(0.5)}, {1, 3})}, {1, 2, 2, 2, 2});
  add("multinomial_rows", "y = Multinomial <sample_size = 2, dtype = 7, seed = 3.0> (scores)",
      {values({std::log(0.2), std::log(0.3), std::log(0.5), std::log(1.5), std::log(0.4),
               std::log(0.1)},
              {2, 3})},
      {1, 2, 0, 2});
  add("multinomial_one_class", "y = Multinomial <dtype = 6, seed = 3.0> (scores)",
      {values({-5}, {1, 1})}, {0});
  add("multinomial_no_rows", "y = Multinomial <seed = 3.0> (scores)", {uniform({0, 3}, 0, 1)}, {});
  return cases;
}

std::vector<ErrorCase> random_numbers_error_cases() {
  return {
      {.name = "probability",
       .model = "[head] y = Bernoulli (p)",
       .inputs = {values({0.5, 1.5}, {2})},
       .error = "DataError",
       .fragments = {"head", "1.5"}},
      {.name = "multinomial",
       .model = "[head] y = Multinomial (scores)",
       .inputs = {values({1, 2, 3}, {3})},
       .error = "ShapeError",
       .fragments = {"head"}},
      {.name = "multinomial_dtype",
       .model = "[head] y = Multinomial <dtype = 1> (scores)",
       .inputs = {uniform({2, 3}, 0, 1)},
       .error = "ModelError",
       .fragments = {"head", "dtype"}},
      {.name = "uniform_negative_shape",
       .model = "[head] y = RandomUniform <shape = [-2]> ()",
       .inputs = {},
       .error = "ModelError",
       .fragments = {"head", "shape"}},
      {.name = "uniform_like_dtype",
       .model = "[head] y = RandomUniformLike <dtype = 99> (x)",
       .inputs = {uniform({2}, 0, 1)},
       .error = "ModelError",
       .fragments = {"head", "dtype"}},
      {.name = "normal_like_dtype",
       .model = "[head] y = RandomNormalLike <dtype = 99> (x)",
       .inputs = {uniform({2}, 0, 1)},
       .error = "ModelError",
       .fragments = {"head", "dtype"}},
      {.name = "negative_shape",
       .model = "[head] y = RandomNormal <shape = [2, -1]> ()",
       .inputs = {},
       .error = "ModelError",
       .fragments = {"head", "shape"}},
  };
}

TEST(RandomKernels, HaveTheRightMoments) {
  constexpr std::int64_t kCount = 200000;
  const auto uniform_numbers =
      draw::drawn("RandomUniform", {{.name = "high", .value = 2.0f}}, kCount, {.seed = 1});
  EXPECT_NEAR(draw::mean(uniform_numbers), 1, 0.01);
  EXPECT_GT(std::ranges::min(uniform_numbers), 0);
  EXPECT_LT(std::ranges::max(uniform_numbers), 2);
  auto normal_numbers = draw::drawn("RandomNormal", {}, kCount, {.seed = 1});
  EXPECT_NEAR(draw::mean(normal_numbers), 0, 0.02);
  for (double& number : normal_numbers) number *= number;
  EXPECT_NEAR(draw::mean(normal_numbers), 1, 0.02);
}

TEST(RandomKernels, DependOnSeedAndStep) {
  const auto first = draw::drawn("RandomNormal", {}, 10, {.seed = 1, .step = 1});
  EXPECT_EQ(first, draw::drawn("RandomNormal", {}, 10, {.seed = 1, .step = 1}));
  EXPECT_NE(first, draw::drawn("RandomNormal", {}, 10, {.seed = 1, .step = 2}));
  EXPECT_NE(first, draw::drawn("RandomNormal", {}, 10, {.seed = 2, .step = 1}));
  // A seed attribute of the node replaces the session's seed.
  const std::vector<ir::Attribute> own = {{.name = "seed", .value = 5.0f}};
  EXPECT_EQ(draw::drawn("RandomNormal", own, 10, {.seed = 1}),
            draw::drawn("RandomNormal", own, 10, {.seed = 2}));
}

}  // namespace onnxgrad::ops_test

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace dropout {

const char* const kRandom = "its random numbers are our own";

CaseInput boolean(bool value) {
  return values({value ? 1.0 : 0.0}, {}, DataType::kBool).constant();
}

// Expected output for ratio 0.25: Philox 4x32-10 with key 7 and counter (block, step 0, FNV-1a of
// "y", 4), from a Python program that was checked against the known answers of Random123.
std::vector<double> expected_y() {
  return {4.0 / 3, 0, 4, 0, 0, 0, 0, 32.0 / 3, 0, 0, 44.0 / 3, 16};
}

std::vector<double> one_to_twelve() { return {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; }

KernelCall call(Tensor x, double ratio, bool is_training, opdef::StepCells cells) {
  const opdef::TensorDesc y{.dtype = x.dtype(), .dims = x.dims()};
  const opdef::TensorDesc mask{.dtype = DataType::kBool, .dims = x.dims()};
  return {.op_type = "Dropout",
          .inputs = {std::move(x), Tensor::scalar(ratio), Tensor::scalar(is_training)},
          .outputs = {y, mask},
          .cells = cells};
}

}  // namespace dropout

std::vector<OpCase> dropout_cases() {
  using dropout::boolean;
  const CaseInput quarter = values({0.25}, {}).constant();
  return {
      {.name = "inference", .model = "y = Dropout (x)", .inputs = {uniform({3, 4}, -1, 1)}},
      {.name = "inference_mask",
       .model = "y, mask = Dropout (x, ratio)",
       .inputs = {uniform({3, 4}, -1, 1), quarter}},
      {.name = "training_off",
       .model = "y, mask = Dropout (x, ratio, training)",
       .inputs = {uniform({3, 4}, -1, 1), quarter, boolean(false)}},
      {.name = "training_off_fed",
       .model = "y, mask = Dropout (x, ratio, training)",
       .inputs = {uniform({3, 4}, -1, 1), quarter, values({0}, {}, DataType::kBool)}},
      {.name = "ratio_zero",
       .model = "y, mask = Dropout (x, ratio, training)",
       .inputs = {uniform({3, 4}, -1, 1), values({0}, {}).constant(), boolean(true)}},
      {.name = "one_element", .model = "y = Dropout (x)", .inputs = {uniform({1}, -1, 1)}},
      {.name = "no_elements",
       .model = "y = Dropout (x, ratio, training)",
       .inputs = {uniform({0, 4}, -1, 1), quarter, boolean(true)}},
      {.name = "training",
       .model = "y = Dropout <seed = 7> (x, ratio, training)",
       .inputs = {values(dropout::one_to_twelve(), {3, 4}), quarter, boolean(true)},
       .expected = {dropout::expected_y()},
       .no_oracle = dropout::kRandom},
      {.name = "training_fed",
       .model = "y = Dropout <seed = 7> (x, ratio, training)",
       .inputs = {values(dropout::one_to_twelve(), {12}), values({0.25}, {}),
                  values({1}, {}, DataType::kBool)},
       .expected = {dropout::expected_y()},
       .no_oracle = dropout::kRandom},
  };
}

std::vector<ErrorCase> dropout_error_cases() {
  return {
      {.name = "ratio_one",
       .model = "[head] y = Dropout (x, ratio, training)",
       .inputs = {uniform({3}, -1, 1), values({1}, {}), dropout::boolean(true)},
       .error = "DataError",
       .fragments = {"head", "ratio"}},
      {.name = "ratio_negative",
       .model = "[head] y = Dropout (x, ratio, training)",
       .inputs = {uniform({3}, -1, 1), values({-0.5}, {}), dropout::boolean(true)},
       .error = "DataError",
       .fragments = {"head", "ratio"}},
  };
}

TEST(DropoutKernel, KeepsAShareAndScalesIt) {
  constexpr std::int64_t kCount = 100000;
  Tensor ones = Tensor::zeros(DataType::kFloat32, {kCount});
  std::ranges::fill(ones.mutable_data<float>(), 1.0f);
  for (const double ratio : {0.1, 0.5, 0.9}) {
    const auto out = run_plain(dropout::call(ones, ratio, true, {.seed = 3, .step = 1}));
    const auto y = out[0].to_doubles();
    const auto mask = out[1].to_int64s();
    std::int64_t kept = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      kept += mask[i];
      ASSERT_NEAR(y[i], mask[i] != 0 ? 1 / (1 - ratio) : 0, 1e-6) << i;
    }
    // Standard deviation of a binomial count; the test allows six of them.
    const double deviation = std::sqrt(ratio * (1 - ratio) * kCount);
    EXPECT_NEAR(static_cast<double>(kept), (1 - ratio) * kCount, 6 * deviation) << ratio;
  }
}

TEST(DropoutKernel, MasksDependOnSeedAndStepOnly) {
  const Tensor x = random_tensor(DataType::kFloat32, {1000}, 1);
  const auto mask = [&](std::uint64_t seed, std::uint64_t step) {
    return run_plain(dropout::call(x, 0.5, true, {.seed = seed, .step = step})).at(1);
  };
  EXPECT_TRUE(mask(1, 1).equals(mask(1, 1)));
  EXPECT_FALSE(mask(1, 1).equals(mask(1, 2)));
  EXPECT_FALSE(mask(1, 1).equals(mask(2, 1)));
  // float64 drops the same elements.
  const auto wide =
      run_plain(dropout::call(x.cast(DataType::kFloat64), 0.5, true, {.seed = 1, .step = 1}));
  EXPECT_TRUE(mask(1, 1).equals(wide.at(1)));
}

}  // namespace onnxgrad::ops_test

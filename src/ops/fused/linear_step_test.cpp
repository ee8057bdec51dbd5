#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "ops/testing/kernel_run.h"

// Compares the kernel with its formulas, evaluated in double.

namespace onnxgrad::ops_test::linear_step_test {
namespace {

struct Case {
  std::int64_t rows, features;
  bool has_bias = true, has_rate = true;
};

constexpr opdef::LinearStep kStep{.bias = 0.5,
                                  .target = -2,
                                  .shift = 0.25,
                                  .loss_scale = 0.1,
                                  .weight_step = -0.3,
                                  .bias_step = -0.7};

KernelCall call_of(const Case& c, DataType dtype) {
  KernelCall call{.op_type = opdef::kLinearStep, .domain = ir::kFusedDomain};
  call.attributes = kStep.attributes();
  call.inputs = {
      random_tensor(dtype, {c.rows, c.features}, 1), random_tensor(dtype, {c.features, 1}, 2),
      c.has_bias ? random_tensor(dtype, {1}, 3) : Tensor(), random_tensor(dtype, {c.rows, 1}, 4),
      c.has_rate ? random_tensor(dtype, {}, 5) : Tensor()};
  call.outputs = {{dtype, {}}, {dtype, {c.features, 1}}};
  if (c.has_bias) call.outputs.push_back({dtype, {1}});
  return call;
}

// Returns the loss, the new weights and, if there is one, the new bias.
std::vector<std::vector<double>> expected(const Case& c, const KernelCall& call) {
  const auto x = call.inputs[0].to_doubles();
  std::vector<double> weight = call.inputs[1].to_doubles();
  double bias = c.has_bias ? call.inputs[2].to_doubles()[0] : 0;
  const auto target = call.inputs[3].to_doubles();
  const double rate = c.has_rate ? call.inputs[4].to_doubles()[0] : 1;
  const std::vector<double> old = weight;
  const double offset = kStep.bias * bias + kStep.shift;
  double loss = 0;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    double z = offset + kStep.target * target[static_cast<std::size_t>(row)];
    const auto at = [&](std::int64_t k) {
      return x[static_cast<std::size_t>(row * c.features + k)];
    };
    for (std::int64_t k = 0; k < c.features; ++k) z += at(k) * old[static_cast<std::size_t>(k)];
    loss += kStep.loss_scale * z * z;
    bias += kStep.bias_step * rate * z;
    for (std::int64_t k = 0; k < c.features; ++k) {
      weight[static_cast<std::size_t>(k)] += kStep.weight_step * rate * z * at(k);
    }
  }
  std::vector<std::vector<double>> results{{loss}, weight};
  if (c.has_bias) results.push_back({bias});
  return results;
}

void check(const Case& c, DataType dtype) {
  SCOPED_TRACE(std::to_string(c.rows) + " rows of " + std::to_string(c.features));
  const double tolerance = dtype == DataType::kFloat64 ? 1e-13 : 2e-5;
  const KernelCall call = call_of(c, dtype);
  const auto runs = run_offers(call);
  ASSERT_EQ(runs.size(), 1U);
  const auto wanted = expected(c, call);
  ASSERT_EQ(runs[0].outputs.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto got = runs[0].outputs[i].to_doubles();
    ASSERT_EQ(got.size(), wanted[i].size());
    for (std::size_t k = 0; k < got.size(); ++k) {
      const double scale = std::max(1.0, std::abs(wanted[i][k]));
      EXPECT_NEAR(got[k], wanted[i][k], tolerance * scale) << "output " << i << ", element " << k;
    }
  }
}

TEST(LinearStep, FollowsItsFormulas) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    for (const std::int64_t rows : {1, 2, 10, 128}) {
      for (const std::int64_t features : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 100, 257}) {
        check({rows, features}, dtype);
      }
    }
    check({.rows = 10, .features = 2, .has_bias = false}, dtype);
    check({.rows = 10, .features = 40, .has_rate = false}, dtype);
    check({.rows = 1, .features = 2, .has_bias = false, .has_rate = false}, dtype);
  }
}

TEST(LinearStep, OtherTypesAndShapesAreDeclined) {
  EXPECT_TRUE(run_offers(call_of({.rows = 3, .features = 2}, DataType::kFloat16)).empty());
  KernelCall call = call_of({.rows = 3, .features = 2}, DataType::kFloat32);
  call.inputs[3] = random_tensor(DataType::kFloat32, {4, 1}, 4);
  EXPECT_TRUE(run_offers(call).empty());
}

}  // namespace
}  // namespace onnxgrad::ops_test::linear_step_test

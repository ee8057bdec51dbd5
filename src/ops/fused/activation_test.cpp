#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "device/testing/instruction_sets.h"
#include "ir/builder.h"
#include "opdef/activation.h"
#include "ops/testing/kernel_run.h"

namespace onnxgrad::ops_test {
namespace activation {

using opdef::ActivationFunction;

// Returns value and slope from the definitions, in long double.
std::pair<long double, long double> exact(ActivationFunction function, long double x) {
  const auto gated = [&](long double w, long double w_slope) {
    const long double s = 1 / (1 + std::exp(-w));
    return std::pair{x * s, s + x * s * (1 - s) * w_slope};
  };
  if (function == ActivationFunction::kSilu) return gated(x, 1);
  if (function == ActivationFunction::kTanhGelu) {
    const long double scale = 2 * std::sqrt(2 / std::numbers::pi_v<long double>);
    return gated(scale * (x + 0.044715L * x * x * x), scale * (1 + 3 * 0.044715L * x * x));
  }
  const long double p = std::erfc(-x / std::numbers::sqrt2_v<long double>) / 2;
  const long double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<long double>);
  return {x * p, p + x * density};
}

std::vector<KernelRun> run(ActivationFunction function, const Tensor& x, int threads,
                           DataType result = DataType::kUndefined,
                           const device::CpuOptions& cpu = {}) {
  const opdef::TensorDesc desc{.dtype = result == DataType::kUndefined ? x.dtype() : result,
                               .dims = x.dims()};
  return run_offers(
      {.op_type = opdef::kActivation,
       .attributes = {{.name = "function", .value = static_cast<std::int64_t>(function)}},
       .inputs = {x},
       .outputs = {desc, desc},
       .domain = ir::kFusedDomain,
       .threads = threads,
       .cpu = &cpu});
}

}  // namespace activation

TEST(Activation, ValuesAndSlopes) {
  const auto check = [](const device::CpuOptions& cpu) {
    for (const auto function :
         {activation::ActivationFunction::kGelu, activation::ActivationFunction::kTanhGelu,
          activation::ActivationFunction::kSilu}) {
      for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
        SCOPED_TRACE(static_cast<int>(function));
        const double unit = dtype == DataType::kFloat32 ? 6e-8 : 1.2e-16;
        for (const double range : {0.1, 6.0, 60.0}) {
          const Tensor x = random_tensor(dtype, {20011}, 3, -range, range);
          const auto runs = activation::run(function, x, 2, dtype, cpu);
          ASSERT_EQ(runs.size(), 1U);
          const auto numbers = x.to_doubles();
          const auto y = runs[0].outputs[0].to_doubles();
          const auto slope = runs[0].outputs[1].to_doubles();
          for (std::size_t i = 0; i < numbers.size(); ++i) {
            const auto [value, derivative] = activation::exact(function, numbers[i]);
            // The relative error of an exponential grows with its argument, a polynomial of x.
            const double allowed = 8 * unit * std::max(1.0, numbers[i] * numbers[i]);
            ASSERT_NEAR(y[i], static_cast<double>(value), allowed) << numbers[i];
            ASSERT_NEAR(slope[i], static_cast<double>(derivative), allowed) << numbers[i];
          }
        }
      }
    }
  };
  device::for_each_instruction_set(check);
}

// Each result is rounded once, whichever operands are f16 or bf16.
TEST(Activation, ValuesAndSlopesOfF16) {
  for (const auto& [half, unit] :
       {std::pair{DataType::kBfloat16, 0x1p-8}, std::pair{DataType::kFloat16, 0x1p-11}}) {
    const Tensor x = random_tensor(DataType::kFloat32, {3011}, 5, -6, 6).cast(half);
    for (const DataType from : {half, DataType::kFloat32}) {
      for (const auto function :
           {activation::ActivationFunction::kGelu, activation::ActivationFunction::kTanhGelu,
            activation::ActivationFunction::kSilu}) {
        const auto runs = activation::run(function, x.cast(from), 2, half);
        ASSERT_EQ(runs.size(), 1U);
        const auto numbers = x.to_doubles();
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          const auto [value, derivative] = activation::exact(function, numbers[i]);
          const auto expect_rounded = [&](std::size_t output, long double exact) {
            const auto want = static_cast<double>(exact);
            const double got = runs[0].outputs[output].to_doubles()[i];
            ASSERT_NEAR(got, want, 0.51 * unit * std::fabs(want) * 2 + 3e-6) << numbers[i];
          };
          expect_rounded(0, value);
          expect_rounded(1, derivative);
        }
      }
    }
  }
}

TEST(Activation, NanStaysNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from(std::vector<float>{nan, 1, nan}, {3});
  for (const auto function :
       {activation::ActivationFunction::kGelu, activation::ActivationFunction::kTanhGelu,
        activation::ActivationFunction::kSilu}) {
    const auto runs = activation::run(function, x, 1);
    for (const Tensor& result : runs.at(0).outputs) {
      EXPECT_TRUE(std::isnan(result.to_doubles()[0]));
      EXPECT_FALSE(std::isnan(result.to_doubles()[1]));
    }
  }
}

}  // namespace onnxgrad::ops_test

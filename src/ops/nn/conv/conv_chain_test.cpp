#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "ir/builder.h"
#include "opdef/conv_chain.h"
#include "ops/testing/kernel_run.h"

// Compares chains of convolutions with separate reference convolutions in float64.

namespace onnxgrad::ops_test::conv_chain {
namespace {

/// Chain of convolutions with its expected result.
struct Chain {
  Dims x;
  KernelCall call = {.op_type = opdef::kConvChain, .domain = ir::kFusedDomain};
  opdef::ConvChain links = {};
  std::uint64_t seed = 0;
  Tensor expected;  ///< result of the links so far, float64

  explicit Chain(Dims dims) : x(std::move(dims)) {
    call.inputs = {random_tensor(DataType::kFloat32, x, 1)};
    expected = call.inputs[0].cast(DataType::kFloat64);
  }

  /// Appends a convolution with windows of `kernel` and pads of half of it on both axes.
  void append(std::int64_t channels, std::int64_t group, std::int64_t kernel, std::int64_t stride,
              bool has_bias, bool has_residual) {
    const Dims& from = expected.dims();
    const std::int64_t pad = kernel / 2;
    const auto length = [&](std::size_t axis) {
      return (from[axis] + 2 * pad - kernel) / stride + 1;
    };
    const Dims y{from[0], channels, length(2), length(3)};
    const auto number = [&](const Dims& dims) {
      return random_tensor(DataType::kFloat32, dims, ++seed + 1, -0.5, 0.5);
    };
    const std::vector<Tensor> operands = {number({channels, from[1] / group, kernel, kernel}),
                                          has_bias ? number({channels}) : Tensor(),
                                          has_residual ? number(y) : Tensor()};
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    links.links.push_back({{.name = "strides", .value = std::vector<std::int64_t>{stride, stride}},
                           {.name = "pads", .value = std::vector<std::int64_t>(4, pad)},
                           {.name = "group", .value = group},
                           {.name = "low", .value = has_residual ? -kInfinity : 0.0F},
                           {.name = "high", .value = has_bias ? 2.0F : kInfinity}});
    KernelCall plain{.op_type = "Conv",
                     .attributes = links.links.back(),
                     .inputs = {expected},
                     .outputs = {{.dtype = DataType::kFloat64, .dims = y}},
                     .domain = ir::kFusedDomain};
    for (const Tensor& operand : operands) {
      call.inputs.push_back(operand);
      plain.inputs.push_back(operand.is_defined() ? operand.cast(DataType::kFloat64) : operand);
    }
    expected = run_plain(plain)[0];
  }

  void check(int threads, bool has_constants) {
    call.threads = threads;
    call.attributes = links.attributes();
    call.outputs = {{.dtype = DataType::kFloat32, .dims = expected.dims()}};
    call.constants.clear();
    for (std::size_t i = 1; has_constants && i < call.inputs.size(); ++i) {
      if (i % opdef::ConvChain::kLinkInputs != 0) call.constants.push_back(i);
    }
    const std::vector<KernelRun> runs = run_offers(call);
    ASSERT_EQ(runs.size(), 1U);
    const std::vector<double> given = runs[0].outputs[0].to_doubles();
    const std::vector<double> wanted = expected.to_doubles();
    ASSERT_EQ(given.size(), wanted.size());
    double largest = 1;
    for (const double value : wanted) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < given.size(); ++i) {
      ASSERT_NEAR(given[i], wanted[i], 1e-4 * largest)
          << runs[0].label << ", " << threads << " threads, " << i;
    }
  }
};

TEST(ConvChain, InvertedResiduals) {
  // Units of one image, of several images, a smaller last unit, fewer units than threads; windows
  // of two sizes, strides.
  for (const auto& [batch, size] : {std::pair{9, 10}, {3, 40}, {2, 49}, {23, 16}}) {
    for (const std::int64_t stride : {1, 2}) {
      Chain chain({batch, 12, size, size});
      chain.append(72, 1, 1, 1, true, false);
      chain.append(72, 72, stride == 1 ? 3 : 5, stride, true, false);
      chain.append(12, 1, 1, 1, true, stride == 1);
      for (const int threads : {1, 2, 4}) {
        SCOPED_TRACE(chain.x.to_string());
        chain.check(threads, threads != 2);
      }
    }
  }
}

TEST(ConvChain, AtRandom) {
  base::PhiloxStream stream(31, base::RandomUse::kOperator, 0);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(stream.uniform() * static_cast<double>(high - low + 1));
  };
  for (int i = 0; i < 60; ++i) {
    Chain chain({pick(1, 12), pick(1, 40), pick(3, 30), pick(3, 30)});
    const std::int64_t count = pick(2, 5);
    for (std::int64_t link = 0; link < count; ++link) {
      const std::int64_t from = chain.expected.dims()[1];
      const bool is_depthwise = pick(0, 1) == 0;
      const std::int64_t stride = pick(0, 3) == 0 ? 2 : 1;
      chain.append(is_depthwise ? from : pick(1, 50), is_depthwise ? from : 1, pick(0, 2) * 2 + 1,
                   stride, pick(0, 1) == 0, pick(0, 2) == 0);
    }
    SCOPED_TRACE(std::to_string(i) + ": " + chain.x.to_string());
    chain.check(static_cast<int>(pick(1, 4)), pick(0, 1) == 0);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ConvChain, TakesFloat32Only) {
  Chain chain({2, 4, 6, 6});
  chain.append(4, 4, 3, 1, true, false);
  chain.append(8, 1, 1, 1, true, false);
  for (Tensor& input : chain.call.inputs) {
    if (input.is_defined()) input = input.cast(DataType::kFloat64);
  }
  chain.call.attributes = chain.links.attributes();
  chain.call.outputs = {{.dtype = DataType::kFloat64, .dims = chain.expected.dims()}};
  EXPECT_TRUE(run_offers(chain.call).empty());
}

}  // namespace
}  // namespace onnxgrad::ops_test::conv_chain

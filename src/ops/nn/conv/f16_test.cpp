#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "device/testing/emulated_amx.h"
#include "ir/builder.h"
#include "ops/testing/conv_layers.h"
#include "ops/testing/kernel_run.h"

// Compares convolutions of f16/bf16 images with the reference in float64.

namespace onnxgrad::ops_test::conv {
namespace {

/// Compares the kernel for images of type `half`, some of which may stay float32, with the
/// reference in float64. Returns false if there is no kernel with such a label.
bool compare_f16(KernelCall call, std::vector<std::size_t> images, DataType half,
                 std::string_view label) {
  for (const std::size_t i : images) {
    if (i < call.inputs.size()) call.inputs[i] = call.inputs[i].cast(half);
  }
  KernelCall wide = call;
  for (Tensor& input : wide.inputs) {
    if (input.is_defined()) input = input.cast(DataType::kFloat64);
  }
  wide.outputs[0].dtype = DataType::kFloat64;
  const std::vector<double> expected = run_plain(wide)[0].to_doubles();
  const bool is_rounded = std::ranges::find(images, call.inputs.size()) != images.end();
  call.outputs[0].dtype = is_rounded ? half : DataType::kFloat32;
  const std::vector<KernelRun> runs = run_offers(call);
  const auto run = std::ranges::find_if(
      runs, [&](const KernelRun& one) { return one.label.starts_with(label); });
  if (run == runs.end()) return false;
  const std::vector<double> given = run->outputs[0].to_doubles();
  double largest = 1;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  const double unit = half == DataType::kFloat16 ? 0x1p-11 : 0x1p-8;  // half a ulp
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double allowed = 2e-5 * largest + (is_rounded ? unit * std::abs(expected[i]) : 0);
    EXPECT_NEAR(given[i], expected[i], allowed) << call.op_type << ' ' << i;
    if (testing::Test::HasFailure()) break;
  }
  return true;
}

struct Calls {
  Tensor x, w, dy, b;
  KernelCall finished;  ///< with bias, dy as residual, and bounds
};

Calls calls_of(const Layer& layer) {
  constexpr auto kFloat = DataType::kFloat32;
  const Tensor x = random_tensor(kFloat, layer.x, 1);
  const Tensor w = random_tensor(kFloat, layer.w, 2, -0.1, 0.1);
  const Tensor dy = random_tensor(kFloat, layer.y, 3);
  const Tensor b = random_tensor(kFloat, {layer.w[0]}, 4);
  KernelCall finished = call_of(layer, "Conv", {x, w, b, dy}, layer.y, ir::kFusedDomain);
  finished.attributes.push_back({.name = "low", .value = -0.25F});
  finished.attributes.push_back({.name = "high", .value = 1.5F});
  return {x, w, dy, b, std::move(finished)};
}

TEST(ConvKernels, OfF16Agree) {
  // Every way to compute the sums; units of several images, units of channels, units shared by all
  // threads; smaller last units.
  const std::vector<Layer> layers = {
      {{5, 24, 10, 8}, {40, 24, 1, 1}, {5, 40, 10, 8}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{7, 64, 24, 24}, {64, 64, 1, 1}, {7, 64, 24, 24}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{3, 32, 16, 16}, {48, 32, 3, 3}, {3, 48, 16, 16}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{3, 200, 3, 3}, {300, 200, 1, 1}, {3, 300, 3, 3}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{2, 3, 41, 53}, {20, 3, 3, 3}, {2, 20, 21, 27}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {{3, 75, 48, 48}, {75, 1, 3, 3}, {3, 75, 48, 48}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 75},
      {{2, 33, 13, 11}, {33, 1, 3, 3}, {2, 33, 7, 6}, {2, 2}, {1, 1, 1, 1}, {1, 1}, 33},
      {{2, 12, 7, 7}, {18, 4, 3, 3}, {2, 18, 5, 5}, {1, 1}, {0, 0, 0, 0}, {1, 1}, 3},
      {{2, 5, 40}, {7, 5, 4}, {2, 7, 20}, {2}, {1, 1}, {1}},
  };
  for (const Layer& layer : layers) {
    SCOPED_TRACE(layer.x.to_string());
    const auto& [x, w, dy, b, finished] = calls_of(layer);
    for (const int threads : {1, 2, 3}) {
      const DataType half = threads == 2 ? DataType::kFloat16 : DataType::kBfloat16;
      const auto compare = [&](KernelCall call, std::vector<std::size_t> images) {
        call.threads = threads;
        EXPECT_TRUE(compare_f16(std::move(call), std::move(images), half, "halves"));
      };
      compare(call_of(layer, "Conv", {x, w}, layer.y, ""), {0, 2});
      compare(call_of(layer, "Conv", {x, w}, layer.y, ""), {0});
      compare(finished, {0, 3, 4});
      compare(call_of(layer, "ConvInputGrad", {dy, w, x}, layer.x, "onnxgrad"), {0, 2, 3});
      compare(call_of(layer, "ConvWeightGrad", {dy, x}, layer.w, "onnxgrad"), {0, 1});
      compare(call_of(layer, "ConvWeightGrad", {dy, x}, layer.w, "onnxgrad"), {1});
    }
  }
}

void compare_tiles(const device::CpuOptions& cpu) {
  // Even and odd numbers of channels, of pixels, of blocks of them; padding on each side
  // separately, strides with and without overlapping windows, dilation; one row, three axes;
  // several units.
  const std::vector<Layer> layers = {
      {{5, 24, 10, 8}, {40, 24, 1, 1}, {5, 40, 10, 8}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{3, 32, 16, 16}, {48, 32, 3, 3}, {3, 48, 16, 16}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 17, 9, 7}, {19, 17, 3, 3}, {2, 19, 9, 7}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 33, 9, 9}, {35, 33, 3, 3}, {2, 35, 5, 5}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {{2, 33, 8, 8}, {35, 33, 1, 1}, {2, 35, 4, 4}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
      {{2, 16, 9, 12}, {16, 16, 2, 3}, {2, 16, 8, 7}, {1, 2}, {0, 3, 0, 1}, {1, 1}},
      {{2, 18, 12, 11}, {20, 18, 3, 2}, {2, 20, 5, 3}, {2, 3}, {2, 0, 0, 1}, {2, 3}},
      {{3, 3, 13, 13}, {20, 3, 3, 3}, {3, 20, 13, 13}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 20, 40}, {17, 20, 4}, {2, 17, 20}, {2}, {1, 1}, {1}},
      {{1, 16, 4, 5, 6},
       {18, 16, 3, 2, 3},
       {1, 18, 4, 4, 6},
       {1, 1, 1},
       {1, 0, 1, 1, 0, 1},
       {1, 1, 1}},
      {{1, 16, 5, 5, 6},
       {18, 16, 3, 2, 3},
       {1, 18, 3, 2, 3},
       {2, 2, 2},
       {1, 0, 1, 1, 0, 1},
       {1, 1, 1}},
      {{7, 64, 24, 24}, {17, 64, 3, 3}, {7, 17, 24, 24}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
  };
  for (const Layer& layer : layers) {
    SCOPED_TRACE(layer.x.to_string() + " " + layer.w.to_string());
    const auto& [x, w, dy, b, finished] = calls_of(layer);
    for (const int threads : {1, 2, 3}) {
      const auto compare = [&](KernelCall call, std::vector<std::size_t> images) {
        call.threads = threads;
        call.cpu = &cpu;
        EXPECT_TRUE(
            compare_f16(std::move(call), std::move(images), DataType::kBfloat16, "bfloat16 tiles"));
      };
      if (layer.w[1] >= 16) {
        compare(call_of(layer, "Conv", {x, w}, layer.y, ""), {0, 1, 2});
        compare(call_of(layer, "Conv", {x, w, b}, layer.y, ""), {0, 1});
        compare(finished, {0, 1, 3, 4});
        compare(finished, {0, 1, 4});
      }
      compare(call_of(layer, "ConvInputGrad", {dy, w, x}, layer.x, "onnxgrad"), {0, 1, 2, 3});
      compare(call_of(layer, "ConvInputGrad", {dy, w, x}, layer.x, "onnxgrad"), {0, 1, 2});
      compare(call_of(layer, "ConvWeightGrad", {dy, x}, layer.w, "onnxgrad"), {0, 1});
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// Compares the three computations on random layers with enough channels for AMX tiles.
void compare_random_tiles(int count, const device::CpuOptions& cpu) {
  base::PhiloxStream stream(23, base::RandomUse::kOperator, 0);
  int compared = 0;
  for (int i = 0; i < count; ++i) {
    Layer layer = random_layer(stream, 100'000);
    if (layer.group > 1) continue;
    const auto widened = [](const Dims& dims, std::int64_t first, std::int64_t second) {
      std::vector<std::int64_t> sizes(dims.begin(), dims.end());
      sizes[0] += first;
      sizes[1] += second;
      return Dims(sizes);
    };
    const std::int64_t in = 16 + i % 23;
    const std::int64_t out = 16 + i % 19;
    layer.x = widened(layer.x, 0, in);
    layer.w = widened(layer.w, out, in);
    layer.y = widened(layer.y, 0, out);
    SCOPED_TRACE(layer.x.to_string() + " " + layer.w.to_string() + " " + layer.y.to_string() +
                 ", strides " + Dims(layer.strides).to_string() + ", pads " +
                 Dims(layer.pads).to_string() + ", dilations " + Dims(layer.dilations).to_string());
    constexpr auto kFloat = DataType::kFloat32;
    const Tensor x = random_tensor(kFloat, layer.x, 1);
    const Tensor w = random_tensor(kFloat, layer.w, 2, -0.1, 0.1);
    const Tensor dy = random_tensor(kFloat, layer.y, 3);
    const auto compare = [&](KernelCall call, std::vector<std::size_t> images) {
      call.threads = 1 + i % 4;
      call.cpu = &cpu;
      if (compare_f16(std::move(call), std::move(images), DataType::kBfloat16, "bfloat16 tiles")) {
        ++compared;
      }
    };
    compare(call_of(layer, "Conv", {x, w}, layer.y, ""), {0, 1, 2});
    compare(call_of(layer, "ConvInputGrad", {dy, w, x}, layer.x, "onnxgrad"), {0, 1, 2, 3});
    compare(call_of(layer, "ConvWeightGrad", {dy, x}, layer.w, "onnxgrad"), {0, 1});
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(compared, count);  // three times as many are tried, few decline
}

TEST(ConvKernels, OfBfloat16AsTilesAgree) {
  if (device::amx_target() == nullptr) {
    GTEST_SKIP() << "this processor has no AMX; the next test emulates it";
  }
  compare_tiles({});
  compare_random_tiles(100, {});
}

TEST(ConvKernels, OfBfloat16AsEmulatedTilesAgree) {
  compare_tiles(device::with_emulated_amx());
  compare_random_tiles(60, device::with_emulated_amx());
}

TEST(ConvKernels, OfFloat16TakeFloat32WeightsOnly) {
  const Layer layer{{2, 3, 9, 7}, {4, 3, 3, 3}, {2, 4, 9, 7}, {1, 1}, {1, 1, 1, 1}, {1, 1}};
  const Tensor x = random_tensor(DataType::kFloat16, layer.x, 1);
  const Tensor w = random_tensor(DataType::kFloat16, layer.w, 2);
  EXPECT_TRUE(run_offers(call_of(layer, "Conv", {x, w}, layer.y, "")).empty());
}

}  // namespace
}  // namespace onnxgrad::ops_test::conv

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "device/testing/instruction_sets.h"
#include "ir/builder.h"
#include "ops/testing/conv_layers.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace conv {

OpCase convolution(std::string name, std::string attributes, Dims x, Dims w) {
  return {.name = std::move(name),
          .model = "y = Conv " + (attributes.empty() ? "" : "<" + attributes + "> ") + "(x, w)",
          .inputs = {uniform(std::move(x), -1, 1), uniform(std::move(w), -1, 1)}};
}

OpCase with_bias(std::string name, std::string attributes, Dims x, Dims w) {
  OpCase one = convolution(std::move(name), std::move(attributes), x, w);
  one.model.replace(one.model.rfind("(x, w)"), 6, "(x, w, b)");
  one.inputs.push_back(uniform({w[0]}, -1, 1));
  return one;
}

}  // namespace conv

std::vector<OpCase> conv_cases() {
  using conv::convolution;
  using conv::with_bias;
  return {
      convolution("plain", "", {2, 3, 5, 4}, {2, 3, 3, 2}),
      convolution("kernel_shape", "kernel_shape = [3, 2]", {1, 2, 4, 4}, {3, 2, 3, 2}),
      with_bias("bias", "pads = [1, 1, 1, 1]", {2, 2, 4, 5}, {3, 2, 3, 3}),
      convolution("one_axis", "pads = [2, 1], strides = [2]", {2, 3, 7}, {4, 3, 3}),
      convolution("three_axes", "pads = [1, 0, 1, 0, 1, 0], strides = [1, 2, 1]", {1, 2, 3, 5, 4},
                  {2, 2, 2, 3, 2}),
      convolution("uneven_pads", "pads = [0, 2, 1, 0]", {1, 2, 4, 4}, {2, 2, 3, 3}),
      convolution("wide_pads", "pads = [3, 3, 3, 3]", {1, 1, 2, 3}, {2, 1, 2, 2}),
      convolution("strides", "strides = [2, 3]", {2, 2, 7, 8}, {3, 2, 3, 3}),
      convolution("strides_leave_rows", "strides = [3, 3], pads = [1, 1, 1, 1]", {1, 2, 6, 7},
                  {2, 2, 2, 3}),
      convolution("stride_beyond_kernel", "strides = [3, 2]", {1, 2, 7, 5}, {2, 2, 1, 1}),
      convolution("dilations", "dilations = [2, 3], pads = [1, 2, 1, 2]", {2, 2, 6, 8},
                  {3, 2, 3, 2}),
      convolution("dilations_and_strides", "dilations = [2, 2], strides = [3, 2]", {1, 2, 9, 8},
                  {2, 2, 3, 2}),
      convolution("groups", "group = 2, pads = [1, 1, 1, 1], strides = [2, 1]", {2, 4, 5, 4},
                  {6, 2, 3, 3}),
      with_bias("depthwise", "group = 3, pads = [1, 1, 1, 1]", {2, 3, 4, 4}, {3, 1, 3, 3}),
      convolution("same_upper", "auto_pad = \"SAME_UPPER\", strides = [2, 2]", {1, 2, 5, 6},
                  {2, 2, 3, 4}),
      convolution("same_lower", "auto_pad = \"SAME_LOWER\", strides = [2, 2]", {1, 2, 5, 6},
                  {2, 2, 3, 4}),
      convolution("same_upper_without_strides", "auto_pad = \"SAME_UPPER\"", {1, 2, 4, 3},
                  {2, 2, 2, 4}),
      convolution("same_lower_small_kernel", "auto_pad = \"SAME_LOWER\", strides = [3, 3]",
                  {1, 1, 7, 8}, {2, 1, 1, 2}),
      convolution("valid", "auto_pad = \"VALID\", strides = [2, 1]", {1, 2, 5, 5}, {2, 2, 3, 3}),
      convolution("notset", "auto_pad = \"NOTSET\", pads = [1, 1, 1, 1]", {1, 1, 3, 3},
                  {1, 1, 3, 3}),
      convolution("one_by_one", "", {2, 3, 2, 2}, {4, 3, 1, 1}),
      convolution("one_of_everything", "", {1, 1, 1, 1}, {1, 1, 1, 1}),
      with_bias("no_images", "pads = [1, 1, 1, 1]", {0, 2, 4, 4}, {2, 2, 3, 3}),
      convolution("one_window", "", {2, 2, 3, 3}, {2, 2, 3, 3}),
      convolution("many_channels", "pads = [1, 1, 1, 1]", {2, 17, 6, 5}, {19, 17, 3, 3}),
      {.name = "weight_is_constant",
       .model = "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)",
       .inputs = {uniform({2, 2, 4, 4}, -1, 1), uniform({3, 2, 3, 3}, -1, 1).constant(),
                  uniform({3}, -1, 1).constant()}},
      {.name = "used_twice",
       .model = "h = Conv <pads = [1, 1, 1, 1]> (x, w)\ny = Conv <pads = [1, 1, 1, 1]> (h, w)",
       .inputs = {uniform({1, 2, 4, 4}, -1, 1), uniform({2, 2, 3, 3}, -1, 1)}},
  };
}

std::vector<ErrorCase> conv_error_cases() {
  const auto refused = [](std::string name, std::string attributes, Dims x, Dims w,
                          std::string error, std::vector<std::string> fragments) {
    OpCase one =
        conv::convolution(std::move(name), std::move(attributes), std::move(x), std::move(w));
    return as_error_case(std::move(one), std::move(error), std::move(fragments));
  };
  return {
      refused("channels", "", {1, 3, 4, 4}, {2, 2, 3, 3}, "ShapeError", {}),
      refused("groups", "group = 2", {1, 4, 4, 4}, {3, 2, 3, 3}, "ShapeError", {}),
      refused("kernel_too_large", "", {1, 1, 2, 2}, {1, 1, 3, 3}, "ShapeError", {}),
      refused("kernel_shape_differs", "kernel_shape = [2, 2]", {1, 1, 4, 4}, {1, 1, 3, 3},
              "ShapeError", {"kernel_shape"}),
      refused("zero_stride", "strides = [0, 1]", {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError",
              {"strides"}),
      refused("zero_dilation", "dilations = [1, 0]", {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError",
              {"dilations"}),
      refused("zero_group", "group = 0", {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError", {"group"}),
      refused("negative_pads", "pads = [-1, 0, 0, 0]", {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError",
              {"pads"}),
      refused("pads_beside_auto_pad", "pads = [1, 1, 1, 1], auto_pad = \"SAME_UPPER\"",
              {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError", {"auto_pad"}),
      refused("unknown_auto_pad", "auto_pad = \"SAME\"", {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError",
              {"auto_pad", "SAME_UPPER"}),
  };
}

namespace conv {

std::vector<Layer> layers() {
  return {
      {{2, 3, 9, 7}, {4, 3, 3, 3}, {2, 4, 9, 7}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 1, 28, 28}, {16, 1, 5, 5}, {2, 16, 28, 28}, {1, 1}, {2, 2, 2, 2}, {1, 1}},
      {{3, 16, 14, 14}, {32, 16, 5, 5}, {3, 32, 14, 14}, {1, 1}, {2, 2, 2, 2}, {1, 1}},
      {{2, 17, 8, 9}, {33, 17, 3, 2}, {2, 33, 4, 5}, {2, 2}, {1, 1, 0, 1}, {1, 1}},
      {{2, 8, 11, 11}, {8, 8, 3, 3}, {2, 8, 4, 7}, {2, 1}, {0, 0, 0, 0}, {2, 2}},
      {{2, 32, 6, 6}, {64, 32, 1, 1}, {2, 64, 3, 3}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
      {{2, 32, 7, 7}, {32, 1, 3, 3}, {2, 32, 7, 7}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 32},
      {{2, 12, 7, 7}, {18, 4, 3, 3}, {2, 18, 5, 5}, {1, 1}, {0, 0, 0, 0}, {1, 1}, 3},
      {{2, 5, 40}, {7, 5, 4}, {2, 7, 20}, {2}, {1, 1}, {1}},
      {{1, 16, 5, 6, 7},
       {16, 16, 3, 3, 3},
       {1, 16, 5, 6, 7},
       {1, 1, 1},
       {1, 1, 1, 1, 1, 1},
       {1, 1, 1}},
      {{1, 2, 3, 3}, {2, 2, 2, 2}, {1, 2, 8, 8}, {1, 1}, {3, 3, 3, 3}, {1, 1}},
  };
}

/// Compares all kernels of a layer with the reference, which sums tap by tap.
void compare_all(const Layer& layer, DataType dtype, int threads,
                 const device::CpuOptions& cpu = {}) {
  SCOPED_TRACE(layer.x.to_string() + " by " + layer.w.to_string() + " to " + layer.y.to_string() +
               ", threads " + std::to_string(threads) + ", strides " +
               Dims(layer.strides).to_string() + ", pads " + Dims(layer.pads).to_string() +
               ", dilations " + Dims(layer.dilations).to_string());
  const double tolerance = dtype == DataType::kFloat32 ? 1e-5 : 1e-13;
  const Tensor x = random_tensor(dtype, layer.x, 1);
  const Tensor w = random_tensor(dtype, layer.w, 2);
  const Tensor dy = random_tensor(dtype, layer.y, 3);
  const Tensor b = random_tensor(dtype, {layer.w[0]}, 4);
  for (KernelCall call :
       {call_of(layer, "Conv", {x, w}, layer.y, ""), call_of(layer, "Conv", {x, w, b}, layer.y, ""),
        call_of(layer, "ConvInputGrad", {dy, w, x}, layer.x, "onnxgrad"),
        call_of(layer, "ConvWeightGrad", {dy, x}, layer.w, "onnxgrad")}) {
    call.threads = threads;
    call.cpu = &cpu;
    EXPECT_GE(compare_offers(call, tolerance), 1U) << call.op_type;
    // Constant weights are packed when the kernel is prepared.
    if (call.op_type == "ConvWeightGrad") continue;
    for (std::size_t i = 1; i < call.inputs.size(); ++i) call.constants.push_back(i);
    EXPECT_GE(compare_offers(call, tolerance), 1U) << call.op_type << " of constants";
  }
}

}  // namespace conv

TEST(ConvKernels, FastOnesAgreeWithThePlainOne) {
  for (const int threads : {1, 2}) {
    for (const conv::Layer& layer : conv::layers()) {
      conv::compare_all(layer, DataType::kFloat32, threads);
    }
  }
}

TEST(ConvKernels, AgreeOnLayersAtRandom) {
  std::uint32_t set = 0;
  device::for_each_instruction_set([&](const device::CpuOptions& cpu) {
    base::PhiloxStream stream(17, base::RandomUse::kOperator, set++);
    for (int i = 0; i < 60; ++i) {
      const conv::Layer layer = conv::random_layer(stream, 300'000);
      conv::compare_all(layer, i % 3 == 0 ? DataType::kFloat64 : DataType::kFloat32, 1 + i % 4,
                        cpu);
    }
  });
}

TEST(ConvKernels, AgreeWhereALayerIsComputedInParts) {
  // Several blocks of results, of the sum over k, and of images.
  const std::vector<conv::Layer> layers = {
      {{1, 3, 70, 80}, {70, 3, 3, 3}, {1, 70, 70, 80}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{17, 150, 3, 3}, {40, 150, 3, 3}, {17, 40, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 20, 5000}, {17, 20, 3}, {2, 17, 2500}, {2}, {1, 1}, {1}},
      {{2, 33, 1, 2}, {65, 33, 1, 1}, {2, 65, 1, 2}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{1, 16, 8, 16}, {33, 16, 1, 1}, {1, 33, 8, 16}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{3, 64, 5, 5}, {150, 64, 3, 3}, {3, 150, 3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {{2, 90, 3, 3}, {200, 90, 1, 1}, {2, 200, 3, 3}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{7, 80, 3, 3}, {90, 80, 1, 1}, {7, 90, 3, 3}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{2, 3, 41, 53}, {20, 3, 3, 3}, {2, 20, 21, 27}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {{1, 3, 41, 53}, {20, 3, 5, 5}, {1, 20, 14, 18}, {3, 3}, {2, 3, 1, 2}, {1, 1}},
  };
  for (const conv::Layer& layer : layers) {
    for (const int threads : {1, 2, 3}) conv::compare_all(layer, DataType::kFloat32, threads);
  }
}

TEST(ConvKernels, WinogradAgrees) {
  // Images of whole and partial tiles, several per unit of work and in bands; weights larger than
  // images; pads beyond the kernel; channels that do not fill vectors.
  const std::vector<conv::Layer> layers = {
      {{3, 32, 16, 16}, {48, 32, 3, 3}, {3, 48, 16, 16}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 36, 13, 15}, {41, 36, 3, 3}, {2, 41, 11, 13}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{5, 33, 9, 7}, {50, 33, 3, 3}, {5, 50, 9, 11}, {1, 1}, {2, 4, 0, 2}, {1, 1}},
      {{9, 96, 4, 4}, {130, 96, 3, 3}, {9, 130, 4, 4}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 32, 33, 50}, {32, 32, 3, 3}, {1, 32, 33, 50}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{3, 32, 14, 14}, {48, 32, 5, 5}, {3, 48, 14, 14}, {1, 1}, {2, 2, 2, 2}, {1, 1}},
      {{1, 40, 17, 23}, {40, 40, 5, 5}, {1, 40, 16, 24}, {1, 1}, {1, 4, 2, 1}, {1, 1}},
      {{6, 64, 5, 6}, {80, 64, 5, 5}, {6, 80, 1, 2}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
  };
  for (const conv::Layer& layer : layers) {
    for (const int threads : {1, 3}) conv::compare_all(layer, DataType::kFloat32, threads);
  }
  constexpr auto kFloat = DataType::kFloat32;
  const conv::Layer& layer = layers.front();
  const Tensor x = random_tensor(kFloat, layer.x, 1);
  const Tensor w = random_tensor(kFloat, layer.w, 2);
  const Tensor dy = random_tensor(kFloat, layer.y, 3);
  for (const KernelCall& call :
       {conv::call_of(layer, "Conv", {x, w}, layer.y, ""),
        conv::call_of(layer, "ConvInputGrad", {dy, w, x}, layer.x, "onnxgrad"),
        conv::call_of(layer, "ConvWeightGrad", {dy, x}, layer.w, "onnxgrad")}) {
    EXPECT_EQ(run_offers(call).front().label.substr(0, 8), "winograd") << call.op_type;
  }
}

TEST(ConvKernels, DepthwiseAgrees) {
  // Channels that do not fill vectors, bands, strides with and without taps for every position,
  // dilations, one and three axes, one image.
  const std::vector<conv::Layer> layers = {
      {{3, 40, 12, 12}, {40, 1, 3, 3}, {3, 40, 12, 12}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 40},
      {{2, 33, 13, 11}, {33, 1, 3, 3}, {2, 33, 7, 6}, {2, 2}, {1, 1, 1, 1}, {1, 1}, 33},
      {{1, 18, 70, 64}, {18, 1, 5, 5}, {1, 18, 70, 64}, {1, 1}, {2, 2, 2, 2}, {1, 1}, 18},
      {{2, 7, 61, 66}, {7, 1, 3, 3}, {2, 7, 31, 33}, {2, 2}, {1, 1, 1, 1}, {1, 1}, 7},
      {{2, 16, 9, 10}, {16, 1, 3, 2}, {2, 16, 8, 7}, {1, 1}, {2, 0, 1, 1}, {2, 4}, 16},
      {{2, 20, 11, 13}, {20, 1, 2, 1}, {2, 20, 4, 5}, {3, 3}, {0, 0, 0, 0}, {1, 1}, 20},
      {{3, 5, 50}, {5, 1, 4}, {3, 5, 26}, {2}, {1, 3}, {1}, 5},
      {{1, 9, 6, 7, 8},
       {9, 1, 3, 3, 3},
       {1, 9, 6, 4, 8},
       {1, 2, 1},
       {1, 1, 1, 1, 1, 1},
       {1, 1, 1},
       9},
      {{2, 6, 3, 3}, {6, 1, 3, 3}, {2, 6, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 6},
      {{1, 5, 12, 21}, {5, 1, 5, 5}, {1, 5, 11, 22}, {1, 1}, {2, 3, 1, 2}, {1, 1}, 5},
      {{1, 4, 24, 25}, {4, 1, 5, 5}, {1, 4, 12, 13}, {2, 2}, {2, 2, 1, 2}, {1, 1}, 4},
      {{2, 4, 10, 41}, {4, 1, 3, 3}, {2, 4, 10, 20}, {1, 2}, {1, 0, 1, 0}, {1, 1}, 4},
      {{2, 4, 19, 40}, {4, 1, 3, 3}, {2, 4, 9, 38}, {2, 1}, {0, 0, 0, 0}, {1, 1}, 4},
      {{1, 4, 9, 30}, {4, 1, 3, 3}, {1, 4, 9, 14}, {1, 2}, {1, 0, 1, 2}, {1, 2}, 4},
      {{1, 3, 8, 9}, {3, 1, 3, 3}, {1, 3, 12, 13}, {1, 1}, {3, 3, 3, 3}, {1, 1}, 3},
  };
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    for (const conv::Layer& layer : layers) {
      for (const int threads : {1, 3}) conv::compare_all(layer, dtype, threads);
    }
  }
  const conv::Layer& layer = layers.front();
  const KernelCall call = conv::call_of(layer, "Conv",
                                        {random_tensor(DataType::kFloat32, layer.x, 1),
                                         random_tensor(DataType::kFloat32, layer.w, 2)},
                                        layer.y, "");
  EXPECT_EQ(run_offers(call).front().label.substr(0, 9), "depthwise");
}

TEST(ConvKernels, FinishAgrees) {
  // Residuals and bounds after every way to compute the sums.
  const std::vector<conv::Layer> layers = {
      {{3, 32, 16, 16}, {48, 32, 3, 3}, {3, 48, 16, 16}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{9, 96, 4, 4}, {130, 96, 3, 3}, {9, 130, 4, 4}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 33, 13, 11}, {33, 1, 3, 3}, {2, 33, 7, 6}, {2, 2}, {1, 1, 1, 1}, {1, 1}, 33},
      {{1, 7, 61, 66}, {7, 1, 3, 3}, {1, 7, 61, 66}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 7},
      {{2, 3, 30, 40}, {70, 3, 3, 3}, {2, 70, 30, 40}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 12, 7, 7}, {18, 4, 3, 3}, {2, 18, 5, 5}, {1, 1}, {0, 0, 0, 0}, {1, 1}, 3},
      {{2, 5, 40}, {7, 5, 4}, {2, 7, 20}, {2}, {1, 1}, {1}},
  };
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    const double tolerance = dtype == DataType::kFloat32 ? 1e-5 : 1e-13;
    for (const conv::Layer& layer : layers) {
      const Tensor x = random_tensor(dtype, layer.x, 1);
      // Weights for results of about 1: the bounds would hide how large the sums are, and errors
      // are relative to them.
      const Tensor w = random_tensor(dtype, layer.w, 2, -0.1, 0.1);
      const Tensor b = random_tensor(dtype, {layer.w[0]}, 4);
      const Tensor residual = random_tensor(dtype, layer.y, 5);
      for (const bool has_residual : {false, true}) {
        KernelCall call = conv::call_of(layer, "Conv", {x, w, b}, layer.y, ir::kFusedDomain);
        if (has_residual) call.inputs.push_back(residual);
        call.attributes.push_back({.name = "low", .value = -0.25F});
        call.attributes.push_back({.name = "high", .value = 1.5F});
        call.threads = has_residual ? 3 : 1;
        EXPECT_GE(compare_offers(call, tolerance), 1U) << layer.x.to_string();
        // Compares the reference kernel with the separate operators.
        const std::vector<double> given = run_plain(call)[0].to_doubles();
        const std::vector<double> sums =
            run_plain(conv::call_of(layer, "Conv", {x, w, b}, layer.y, ""))[0].to_doubles();
        const std::vector<double> added = residual.to_doubles();
        for (std::size_t i = 0; i < given.size(); ++i) {
          const double sum = sums[i] + (has_residual ? added[i] : 0);
          ASSERT_NEAR(given[i], std::clamp(sum, -0.25, 1.5), tolerance);
        }
      }
    }
  }
}

TEST(ConvKernels, WinogradErrsAsSumsOfFloat32Do) {
  // Sums of 9 * 256 products: within three times the error of a tap-by-tap sum.
  const conv::Layer layer = {{2, 256, 8, 8}, {64, 256, 3, 3}, {2, 64, 8, 8},
                             {1, 1},         {1, 1, 1, 1},    {1, 1}};
  const auto inputs = [&](DataType dtype) {
    return std::vector<Tensor>{random_tensor(dtype, layer.x, 1), random_tensor(dtype, layer.w, 2)};
  };
  const auto of = [&](DataType dtype) {
    std::vector<Tensor> both = inputs(DataType::kFloat32);
    for (Tensor& input : both) input = input.cast(dtype);
    return run_offers(conv::call_of(layer, "Conv", std::move(both), layer.y, ""));
  };
  const std::vector<double> exact = of(DataType::kFloat64).back().outputs[0].to_doubles();
  const std::vector<KernelRun> runs = of(DataType::kFloat32);
  ASSERT_EQ(runs.size(), 3U);
  const auto error = [&](const KernelRun& run) {
    const std::vector<double> given = run.outputs[0].to_doubles();
    double squares = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      squares += (given[i] - exact[i]) * (given[i] - exact[i]);
    }
    return std::sqrt(squares / static_cast<double>(exact.size()));
  };
  EXPECT_EQ(runs[0].label.substr(0, 8), "winograd");
  EXPECT_LT(error(runs[0]), 3 * error(runs[1]));
}

TEST(ConvKernels, TransposedWithBiasAgrees) {
  constexpr auto kFloat = DataType::kFloat32;
  KernelCall call{
      .op_type = "ConvTranspose",
      .attributes = {{.name = "strides", .value = std::vector<std::int64_t>{2, 2}},
                     {.name = "output_padding", .value = std::vector<std::int64_t>{1, 0}}},
      .inputs = {random_tensor(kFloat, {2, 16, 5, 4}, 1), random_tensor(kFloat, {16, 20, 3, 3}, 2),
                 random_tensor(kFloat, {20}, 3)},
      .outputs = {{.dtype = kFloat, .dims = {2, 20, 12, 9}}}};
  EXPECT_EQ(compare_offers(call, 1e-5), 1u);
}

TEST(ConvKernels, OperandsThatDoNotFitAreRefused) {
  // The body of a gradient function may be called with any operands: the native kernel must check
  // them.
  const conv::Layer layer = conv::layers().front();
  const Tensor w = random_tensor(DataType::kFloat32, layer.w, 2);
  const Tensor x = random_tensor(DataType::kFloat32, layer.x, 1);
  const Tensor small = random_tensor(DataType::kFloat32, {2, 4, 3, 3}, 3);
  EXPECT_THROW(
      run_offers(conv::call_of(layer, "ConvInputGrad", {small, w, x}, layer.x, "onnxgrad")),
      ShapeError);
  EXPECT_THROW(run_offers(conv::call_of(layer, "Conv", {x, w, small}, layer.y, "")), ShapeError);
}

}  // namespace onnxgrad::ops_test

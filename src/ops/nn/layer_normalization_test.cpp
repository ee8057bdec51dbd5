#include <gtest/gtest.h>

#include "device/testing/instruction_sets.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace layer_normalization {

OpCase layer(std::string name, const std::string& attributes, Dims x, Dims scale) {
  return {
      .name = std::move(name),
      .model = "y = LayerNormalization " + attributes + "(x, scale, bias)",
      .inputs = {uniform(std::move(x), -2, 2), uniform(scale, 0.5, 1.5), uniform(scale, -1, 1)}};
}

}  // namespace layer_normalization

std::vector<OpCase> layer_normalization_cases() {
  using layer_normalization::layer;
  return {
      layer("default_axis", "", {3, 5}, {5}),
      layer("last_axis", "<axis = 2> ", {2, 3, 4}, {4}),
      layer("two_axes", "<axis = 1> ", {2, 3, 4}, {3, 4}),
      layer("all_axes", "<axis = 0> ", {3, 4}, {3, 4}),
      layer("negative_axis", "<axis = -2> ", {2, 3, 4}, {3, 4}),
      layer("epsilon", "<epsilon = 0.5> ", {3, 5}, {5}),
      layer("stash_type", "<stash_type = 1> ", {3, 5}, {5}),
      layer("scale_broadcasts", "<axis = 1> ", {2, 3, 4}, {4}),
      layer("one_scale", "", {3, 4}, {1}),
      layer("scale_per_row", "", {3, 4}, {3, 1}),
      layer("no_rows", "", {0, 4}, {4}),
      {.name = "without_bias",
       .model = "y = LayerNormalization (x, scale)",
       .inputs = {uniform({3, 4}, -2, 2), uniform({4}, 0.5, 1.5)}},
      {.name = "weights_are_constants",
       .model = "y = LayerNormalization (x, scale, bias)",
       .inputs = {uniform({3, 4}, -2, 2), uniform({4}, 0.5, 1.5).constant(),
                  uniform({4}, -1, 1).constant()}},
  };
}

std::vector<ErrorCase> layer_normalization_error_cases() {
  const auto refused = [](std::string name, const std::string& attributes, Dims scale,
                          std::string error, std::vector<std::string> fragments) {
    OpCase one = layer_normalization::layer(std::move(name), attributes, {3, 4}, std::move(scale));
    return as_error_case(std::move(one), std::move(error), std::move(fragments));
  };
  return {
      refused("scale", "", {3}, "ShapeError", {}),
      refused("axis", "<axis = 2> ", {4}, "ShapeError", {}),
      refused("epsilon", "<epsilon = -1.0> ", {4}, "ModelError", {"epsilon"}),
  };
}

TEST(LayerNormalizationKernels, FastOnesAgreeWithThePlainOne) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    constexpr auto kFloat = DataType::kFloat32;
    for (const Dims& dims : {Dims{3, 5}, Dims{4, 16}, Dims{7, 100}, Dims{2, 768}, Dims{5, 1}}) {
      SCOPED_TRACE(dims.to_string());
      const opdef::TensorDesc like_x{.dtype = kFloat, .dims = dims};
      const opdef::TensorDesc like_scale{.dtype = kFloat, .dims = {dims[1]}};
      const opdef::TensorDesc per_row{.dtype = kFloat, .dims = {dims[0], 1}};
      const Tensor x = random_tensor(kFloat, dims, 1, 0, 3);
      const Tensor scale = random_tensor(kFloat, {dims[1]}, 2);
      const Tensor bias = random_tensor(kFloat, {dims[1]}, 3);
      compare_offers({.op_type = "LayerNormalization",
                      .inputs = {x, scale, bias},
                      .outputs = {like_x, per_row, per_row},
                      .cpu = &cpu},
                     1e-5);
      compare_offers({.op_type = "LayerNormalizationGrad",
                      .inputs = {random_tensor(kFloat, dims, 4), x, scale},
                      .outputs = {like_x, like_scale, like_scale},
                      .domain = "onnxgrad",
                      .cpu = &cpu},
                     1e-5);
    }
  });
}

}  // namespace onnxgrad::ops_test

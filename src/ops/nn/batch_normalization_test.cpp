#include <gtest/gtest.h>

#include "device/testing/instruction_sets.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace batch_normalization {

OpCase batch(std::string name, const std::string& attributes, Dims x,
             const std::string& outputs = "y") {
  const std::int64_t c = x[1];
  return {
      .name = std::move(name),
      .model = outputs + " = BatchNormalization " + attributes + "(x, scale, bias, mean, variance)",
      .inputs = {uniform(std::move(x), -2, 2), uniform({c}, 0.5, 1.5), uniform({c}, -1, 1),
                 uniform({c}, -1, 1), uniform({c}, 0.5, 2)}};
}

// Operands of three types; x has the type under test.
OpCase mixed(std::string name, const std::string& attributes, const std::string& outputs) {
  OpCase one{
      .name = "mixed_" + std::move(name),
      .model = outputs + " = BatchNormalization " + attributes + "(x, scale, bias, mean, variance)",
      .inputs = {uniform({3, 2, 4}, -2, 2), uniform({2}, 0.5, 1.5).as(DataType::kFloat32),
                 uniform({2}, -1, 1).as(DataType::kFloat32),
                 uniform({2}, -1, 1).as(DataType::kFloat64),
                 uniform({2}, 0.5, 2).as(DataType::kFloat64)},
      .outputs = {"y"}};
  return one;
}

OpCase instance(std::string name, const std::string& attributes, Dims x) {
  const std::int64_t c = x[1];
  return {.name = "instance_" + std::move(name),
          .model = "y = InstanceNormalization " + attributes + "(x, scale, bias)",
          .inputs = {uniform(std::move(x), -2, 2), uniform({c}, 0.5, 1.5), uniform({c}, -1, 1)}};
}

}  // namespace batch_normalization

std::vector<OpCase> batch_normalization_cases() {
  using batch_normalization::batch;
  using batch_normalization::instance;
  using batch_normalization::mixed;
  const std::string all = "y, running_mean, running_variance";
  return {
      batch("inference", "", {3, 2, 2, 3}),
      batch("inference_mode_0", "<training_mode = 0> ", {3, 2, 4}),
      batch("inference_epsilon", "<epsilon = 0.5> ", {3, 2, 2}),
      batch("inference_matrix", "", {5, 3}),
      batch("inference_three_axes", "", {2, 2, 2, 1, 3}),
      batch("inference_no_rows", "", {0, 2, 3}),
      batch("training", "<training_mode = 1> ", {3, 2, 2, 3}, all),
      batch("training_matrix", "<training_mode = 1> ", {6, 3}, all),
      batch("training_one_image", "<training_mode = 1> ", {1, 2, 3, 3}, all),
      batch("training_momentum", "<training_mode = 1, momentum = 0.25> ", {4, 2, 3}, all),
      batch("training_epsilon", "<training_mode = 1, epsilon = 0.1> ", {4, 2, 3}, all),
      {.name = "training_y_alone",
       .model = "y, m, v = BatchNormalization <training_mode = 1> (x, scale, bias, mean, variance)",
       .inputs = {uniform({4, 2, 3}, -2, 2), uniform({2}, 0.5, 1.5), uniform({2}, -1, 1),
                  uniform({2}, -1, 1).constant(), uniform({2}, 0.5, 2).constant()},
       .outputs = {"y"}},
      mixed("inference", "", "y"),
      mixed("training", "<training_mode = 1> ", "y, running_mean, running_variance"),
      instance("images", "", {2, 3, 3, 2}),
      instance("one_axis", "", {2, 3, 5}),
      instance("epsilon", "<epsilon = 0.1> ", {1, 2, 4}),
      instance("no_images", "", {0, 3, 4}),
      instance("three_axes", "", {2, 2, 2, 2, 2}),
  };
}

std::vector<ErrorCase> batch_normalization_error_cases() {
  std::vector<ErrorCase> cases;
  const auto add = [&](std::string name, OpCase one, std::string error,
                       std::vector<std::string> fragments) {
    fragments.emplace_back("head");
    cases.push_back({.name = std::move(name),
                     .model = "[head] " + one.model,
                     .inputs = std::move(one.inputs),
                     .error = std::move(error),
                     .fragments = std::move(fragments)});
  };
  OpCase wrong_scale = batch_normalization::batch("", "", {3, 2, 2});
  wrong_scale.inputs[1] = uniform({3}, 0.5, 1.5);
  add("channels", wrong_scale, "ShapeError", {});
  OpCase wrong_instance_scale = batch_normalization::instance("", "", {3, 2, 2});
  wrong_instance_scale.inputs[1] = uniform({3}, 0.5, 1.5);
  add("instance_channels", wrong_instance_scale, "ShapeError", {});
  add("epsilon", batch_normalization::batch("", "<epsilon = -1.0> ", {3, 2, 2}), "ModelError",
      {"epsilon"});
  add("mode", batch_normalization::batch("", "<training_mode = 2> ", {3, 2, 2}), "ModelError",
      {"training_mode"});
  return cases;
}

TEST(NormalizationKernels, FastOnesAgreeWithThePlainOne) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    constexpr auto kFloat = DataType::kFloat32;
    for (const Dims& dims :
         {Dims{4, 3, 8, 8}, Dims{2, 5, 7, 3}, Dims{33, 4}, Dims{1, 2, 100}, Dims{3, 16, 16, 16}}) {
      SCOPED_TRACE(dims.to_string());
      const opdef::TensorDesc like_x{.dtype = kFloat, .dims = dims};
      const opdef::TensorDesc like_scale{.dtype = kFloat, .dims = {dims[1]}};
      const Tensor x = random_tensor(kFloat, dims, 1, 0, 3);
      const Tensor scale = random_tensor(kFloat, {dims[1]}, 2);
      const Tensor bias = random_tensor(kFloat, {dims[1]}, 3);
      const Tensor variance = random_tensor(kFloat, {dims[1]}, 4, 0.5, 2);
      const Tensor dy = random_tensor(kFloat, dims, 5);
      for (const std::int64_t training : {0, 1}) {
        KernelCall call{.op_type = "BatchNormalization",
                        .attributes = {{.name = "training_mode", .value = training}},
                        .inputs = {x, scale, bias, bias, variance},
                        .outputs = {like_x},
                        .cpu = &cpu};
        if (training == 1) call.outputs = {like_x, like_scale, like_scale};
        compare_offers(call, 1e-5);
      }
      for (const char* op : {"BatchNormalizationGrad", "InstanceNormalizationGrad"}) {
        compare_offers({.op_type = op,
                        .inputs = {dy, x, scale},
                        .outputs = {like_x, like_scale, like_scale},
                        .domain = "onnxgrad",
                        .cpu = &cpu},
                       1e-5);
      }
    }
  });
}

}  // namespace onnxgrad::ops_test

#include <gtest/gtest.h>

#include <string>

#include "device/testing/instruction_sets.h"
#include "ops/testing/case_runner.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace grid_sample {

std::string attributes(const std::string& mode, const std::string& padding, int align) {
  return "<mode = \"" + mode + "\", padding_mode = \"" + padding +
         "\", align_corners = " + std::to_string(align) + ">";
}

}  // namespace grid_sample

std::vector<OpCase> grid_sample_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, Dims x, CaseInput grid) {
    cases.push_back({.name = std::move(name),
                     .model = "y = GridSample " + attributes + " (x, grid)",
                     .inputs = {uniform(std::move(x), -1, 1), std::move(grid)}});
  };
  for (const std::string mode : {"nearest", "linear", "cubic"}) {
    for (const std::string padding : {"zeros", "border", "reflection"}) {
      for (const int align : {0, 1}) {
        const std::string name = mode + "_" + padding + (align != 0 ? "_corners" : "_cells");
        const std::string attributes = grid_sample::attributes(mode, padding, align);
        add(name, attributes, {2, 3, 4, 5}, uniform({2, 3, 4, 2}, -1.6, 1.6));
        add(name + "_volume", attributes, {1, 2, 3, 2, 4}, uniform({1, 2, 1, 3, 3}, -1.4, 1.4));
        if (mode == "cubic") {
          cases.back().no_oracle = "onnxruntime's cubic is of images alone, ONNX's of float32";
        }
      }
    }
  }
  for (const std::string padding : {"border", "reflection"}) {
    add("one_pixel_" + padding, grid_sample::attributes("linear", padding, 0), {1, 2, 1, 1},
        uniform({1, 2, 2, 2}, -1, 1));
    add("four_pixels_" + padding, grid_sample::attributes("linear", padding, 0), {1, 2, 2, 2},
        uniform({1, 4, 4, 2}, -2, 2));
    add("far_" + padding, grid_sample::attributes("linear", padding, 1), {1, 1, 3, 4},
        uniform({1, 3, 2, 2}, -9, 9));
  }
  add("default", "", {1, 1, 3, 3}, uniform({1, 2, 2, 2}, -1, 1));
  add("no_images", "", {0, 1, 3, 3}, uniform({0, 2, 2, 2}, -1, 1));
  add("no_points", "", {1, 1, 3, 3}, uniform({1, 0, 2, 2}, -1, 1));
  cases.push_back({.name = "grid_of_floats",
                   .model = "y = GridSample <mode = \"nearest\"> (x, grid)",
                   .inputs = {integers({1, 1, 3, 3}, -9, 9, DataType::kInt32),
                              uniform({1, 2, 2, 2}, -0.9, 0.9)},
                   .no_gradient = "integers"});
  return cases;
}

std::vector<ErrorCase> grid_sample_error_cases() {
  return {{.name = "mode",
           .model = "[look] y = GridSample <mode = \"area\"> (x, grid)",
           .inputs = {uniform({1, 1, 3, 3}, -1, 1), uniform({1, 2, 2, 2}, -1, 1)},
           .error = "ModelError",
           .fragments = {"look", "mode"}},
          {.name = "batch",
           .model = "[look] y = GridSample (x, grid)",
           .inputs = {uniform({2, 1, 3, 3}, -1, 1), uniform({3, 2, 2, 2}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"look"}},
          {.name = "coordinates",
           .model = "[look] y = GridSample (x, grid)",
           .inputs = {uniform({1, 1, 3, 3}, -1, 1), uniform({1, 2, 2, 3}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"look"}}};
}

namespace grid_sample {

struct Call {
  Tensor x;
  Tensor grid;
  Tensor dy;
  int threads = 1;
  device::CpuOptions cpu = {};
};

std::vector<Tensor> run(const Call& call, const std::string& mode, const std::string& padding) {
  const std::vector<ir::Attribute> attributes = {
      {.name = "mode", .value = mode},
      {.name = "padding_mode", .value = padding},
      {.name = "align_corners", .value = std::int64_t{0}},
      {.name = "rank", .value = std::int64_t{2}}};
  const DataType dtype = call.x.dtype();
  const auto one = [&](std::string_view op, std::vector<Tensor> inputs, Dims dims,
                       std::string_view domain) {
    return run_plain({.op_type = op,
                      .attributes = attributes,
                      .inputs = std::move(inputs),
                      .outputs = {{.dtype = dtype, .dims = std::move(dims)}},
                      .domain = domain,
                      .threads = call.threads,
                      .cpu = &call.cpu})
        .at(0);
  };
  return {one("GridSample", {call.x, call.grid}, call.dy.dims(), ""),
          one("GridSampleImageGrad", {call.dy, call.x, call.grid}, call.x.dims(), "onnxgrad"),
          one("GridSampleGridGrad", {call.dy, call.x, call.grid}, call.grid.dims(), "onnxgrad")};
}

// More points than fit into one block.
Call large(int threads, const device::CpuOptions& cpu = {}) {
  return {.x = random_tensor(DataType::kFloat32, {2, 5, 23, 31}, 1),
          .grid = random_tensor(DataType::kFloat32, {2, 20, 31, 2}, 2, -1.3, 1.3),
          .dy = random_tensor(DataType::kFloat32, {2, 5, 20, 31}, 3),
          .threads = threads,
          .cpu = cpu};
}

}  // namespace grid_sample

TEST(GridSampleKernels, InstructionSetsAndThreadsAgree) {
  for (const std::string mode : {"nearest", "linear", "cubic"}) {
    for (const std::string padding : {"zeros", "border", "reflection"}) {
      const auto call = grid_sample::large(1);
      const grid_sample::Call precise{.x = call.x.cast(DataType::kFloat64),
                                      .grid = call.grid.cast(DataType::kFloat64),
                                      .dy = call.dy.cast(DataType::kFloat64)};
      const auto expected = grid_sample::run(precise, mode, padding);
      device::for_each_instruction_set([&](const device::CpuOptions& cpu) {
        for (const int threads : {1, 3}) {
          const auto given = grid_sample::run(grid_sample::large(threads, cpu), mode, padding);
          for (std::size_t i = 0; i < given.size(); ++i) {
            EXPECT_EQ(compare(given[i], expected[i], 1e-4), "")
                << mode << " " << padding << " " << i;
          }
        }
      });
    }
  }
}

TEST(GridSampleKernels, PointsThatAreNotNumbersLieOutside) {
  Tensor grid = Tensor::zeros(DataType::kFloat32, {1, 1, 3, 2});
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), 1e30F,
                       -std::numeric_limits<float>::infinity()};
  for (std::size_t i = 0; i < 3; ++i) grid.mutable_data<float>()[2 * i] = bad[i];
  const grid_sample::Call call{.x = random_tensor(DataType::kFloat32, {1, 1, 3, 3}, 1, 1, 2),
                               .grid = grid,
                               .dy = random_tensor(DataType::kFloat32, {1, 1, 1, 3}, 2)};
  for (const std::string mode : {"nearest", "linear", "cubic"}) {
    const Tensor outside = grid_sample::run(call, mode, "zeros")[0];
    for (const float y : outside.data<float>()) EXPECT_EQ(y, 0.0F);
    for (const std::string padding : {"border", "reflection"}) {
      for (const Tensor& result : grid_sample::run(call, mode, padding)) {
        for (const float value : result.data<float>()) EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

}  // namespace onnxgrad::ops_test

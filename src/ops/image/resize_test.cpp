#include <gtest/gtest.h>

#include <string>

#include "device/testing/instruction_sets.h"
#include "ops/testing/case_runner.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace resize {

CaseInput scales(const std::vector<double>& numbers) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  return values(numbers, {count}, DataType::kFloat32).constant();
}

OpCase by_scales(std::string name, const std::string& attributes, Dims x,
                 const std::vector<double>& numbers) {
  return {.name = std::move(name),
          .model = "y = Resize <" + attributes + "> (x, \"\", s)",
          .inputs = {uniform(std::move(x), -1, 1), scales(numbers).named("s")}};
}

OpCase by_sizes(std::string name, const std::string& attributes, Dims x,
                const std::vector<std::int64_t>& sizes) {
  return {.name = std::move(name),
          .model = "y = Resize <" + attributes + "> (x, \"\", \"\", s)",
          .inputs = {uniform(std::move(x), -1, 1), ints(sizes)}};
}

std::string mode(const std::string& name) { return "mode = \"" + name + "\""; }
std::string coordinates(const std::string& name) {
  return ", coordinate_transformation_mode = \"" + name + "\"";
}

void add_modes(std::vector<OpCase>& cases) {
  for (const std::string m : {"nearest", "linear", "cubic"}) {
    for (const std::string c : {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
                                "align_corners", "asymmetric"}) {
      cases.push_back(
          by_scales(m + "_" + c + "_up", mode(m) + coordinates(c), {2, 2, 3, 4}, {1, 1, 2, 1.75}));
      cases.push_back(
          by_sizes(m + "_" + c + "_down", mode(m) + coordinates(c), {1, 2, 7, 6}, {1, 2, 4, 3}));
      cases.push_back(
          by_sizes(m + "_" + c + "_to_one", mode(m) + coordinates(c), {1, 1, 3, 4}, {1, 1, 1, 1}));
    }
  }
  for (const std::string n : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}) {
    cases.push_back(by_scales(n, mode("nearest") + ", nearest_mode = \"" + n + "\"", {1, 2, 4, 5},
                              {1, 1, 1.5, 0.6}));
    cases.push_back(
        by_scales(n + "_asymmetric",
                  mode("nearest") + ", nearest_mode = \"" + n + "\"" + coordinates("asymmetric"),
                  {1, 2, 4, 5}, {1, 1, 0.5, 2}));
  }
  // Mode of Resize-11 only, but onnxruntime has it in every version.
  const std::string tf = coordinates("tf_half_pixel_for_nn");
  for (const std::string n : {"floor", "ceil"}) {
    cases.push_back(by_scales("tf_" + n, mode("nearest") + ", nearest_mode = \"" + n + "\"" + tf,
                              {1, 2, 4, 5}, {1, 1, 3, 0.5}));
  }
  cases.push_back(by_scales("tf_linear", mode("linear") + tf, {1, 2, 4, 5}, {1, 1, 3, 0.5}));
  for (const std::string m : {"linear", "cubic"}) {
    cases.push_back(
        by_scales(m + "_antialias", mode(m) + ", antialias = 1", {1, 2, 8, 9}, {1, 1, 0.6, 0.5}));
    cases.push_back(by_sizes(m + "_antialias_up_and_down", mode(m) + ", antialias = 1",
                             {1, 1, 4, 9}, {1, 1, 6, 4}));
    cases.push_back(by_scales(m + "_no_antialias", mode(m) + ", antialias = 0", {1, 1, 8, 9},
                              {1, 1, 0.6, 0.5}));
  }
  for (const std::string flag : {"0", "1"}) {
    cases.push_back(by_scales("exclude_outside_" + flag,
                              mode("cubic") + ", exclude_outside = " + flag, {1, 1, 4, 4},
                              {1, 1, 2, 0.8}));
  }
  cases.push_back(by_scales("cubic_coefficient", mode("cubic") + ", cubic_coeff_a = -0.5",
                            {1, 2, 4, 4}, {1, 1, 2, 2}));
}

void add_axes(std::vector<OpCase>& cases) {
  cases.push_back(by_sizes("axes", mode("linear") + ", axes = [3, -2]", {1, 2, 3, 4}, {6, 5}));
  cases.push_back(
      by_scales("axes_scales", mode("linear") + ", axes = [2, 3]", {1, 2, 3, 4}, {2, 2}));
  cases.push_back(by_sizes("one_axis", mode("linear") + ", axes = [0]", {4, 3}, {6}));
  cases.push_back(by_scales("volume", mode("linear"), {1, 2, 3, 4, 2}, {1, 1, 2, 1.5, 2}));
  cases.push_back(by_scales("row", mode("linear"), {1, 2, 5}, {1, 1, 2.4}));
  cases.push_back(by_scales("vector", mode("nearest"), {5}, {2}));
  cases.push_back(by_scales("channels", mode("nearest"), {2, 2, 3}, {1, 2, 1}));
  cases.push_back(by_scales("channels_and_columns", mode("nearest"), {1, 2, 3, 4}, {1, 2, 1, 2}));
  cases.push_back(by_scales("nothing", mode("linear"), {1, 2, 3, 4}, {1, 1, 1, 1}));
  cases.push_back(by_scales("no_images", mode("linear"), {0, 2, 3, 4}, {1, 1, 2, 2}));
  for (const std::string policy : {"stretch", "not_larger", "not_smaller"}) {
    for (const std::string m : {"nearest", "linear"}) {
      cases.push_back(
          by_sizes(policy + "_" + m,
                   mode(m) + ", axes = [2, 3], keep_aspect_ratio_policy = \"" + policy + "\"",
                   {1, 1, 5, 4}, {7, 8}));
    }
    cases.push_back(by_sizes(policy + "_all_axes",
                             mode("linear") + ", keep_aspect_ratio_policy = \"" + policy + "\"",
                             {1, 1, 5, 4}, {1, 1, 5, 4}));
  }
}

void add_regions(std::vector<OpCase>& cases) {
  const auto crop = [&](std::string name, const std::string& attributes,
                        const std::vector<double>& region, const std::string& size,
                        CaseInput sizes) {
    cases.push_back(
        {.name = std::move(name),
         .model = "y = Resize <" + attributes + coordinates("tf_crop_and_resize") + "> (x, roi, " +
                  size + ")",
         .inputs = {uniform({1, 2, 4, 4}, -1, 1),
                    values(region, {static_cast<std::int64_t>(region.size())}).constant(),
                    std::move(sizes)}});
  };
  const std::vector<double> inside = {0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8};
  const std::vector<double> beyond = {0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7};
  for (const std::string m : {"nearest", "linear", "cubic"}) {
    crop(m + "_crop", mode(m), inside, "\"\", s", ints({1, 2, 3, 3}));
    crop(m + "_crop_beyond", mode(m) + ", extrapolation_value = 10.0", beyond, "\"\", s",
         ints({1, 2, 3, 3}));
  }
  crop("crop_axes", mode("linear") + ", axes = [2, 3], extrapolation_value = 0.5",
       {0.4, 0.6, 1.2, 1.7}, "\"\", s", ints({3, 5}));
  crop("crop_scales", mode("linear") + ", axes = [2, 3]", {0.25, 0.3, 0.9, 0.8}, "s",
       scales({1.5, 0.5}));
  crop("crop_to_one", mode("linear") + ", axes = [2, 3]", {0.25, 0.3, 0.9, 0.8}, "\"\", s",
       ints({1, 1}));
}

void add_inputs(std::vector<OpCase>& cases) {
  cases.push_back({.name = "size_of_other",
                   .model = "size = Shape <start = 2> (like)\nhead = Shape <end = 2> (x)\n"
                            "s = Concat <axis = 0> (head, size)\n"
                            "y = Resize <mode = \"linear\"> (x, \"\", \"\", s)",
                   .inputs = {uniform({1, 3, 5, 6}, -1, 1), uniform({2, 2, 3, 4}, -1, 1)},
                   .wrt = {"x"}});
  cases.push_back({.name = "default",
                   .model = "y = Resize (x, \"\", s)",
                   .inputs = {uniform({1, 2, 3}, -1, 1), scales({1, 1, 2})}});
  cases.push_back(
      {.name = "empty_roi",
       .model = "y = Resize (x, roi, s)",
       .inputs = {uniform({1, 2, 3}, -1, 1), values({}, {0}).constant(), scales({1, 1, 2})}});
  for (const DataType dtype :
       {DataType::kUint8, DataType::kInt16, DataType::kInt32, DataType::kInt64}) {
    cases.push_back({.name = "nearest_" + std::string(dtype_name(dtype)),
                     .model = "y = Resize (x, \"\", s)",
                     .inputs = {integers({1, 1, 2, 3}, 0, 1, dtype), scales({1, 1, 2, 1.5})},
                     .no_gradient = "integers"});
  }
  for (const std::string m : {"linear", "cubic"}) {
    for (const DataType dtype : {DataType::kInt8, DataType::kInt32}) {
      cases.push_back({.name = m + "_" + std::string(dtype_name(dtype)),
                       .model = "y = Resize <mode = \"" + m + "\"> (x, \"\", s)",
                       .inputs = {integers({1, 1, 3, 3}, -127, 127, dtype), scales({1, 1, 2, 2})},
                       .no_gradient = "integers"});
    }
  }
}

}  // namespace resize

std::vector<OpCase> resize_cases() {
  std::vector<OpCase> cases;
  resize::add_modes(cases);
  resize::add_axes(cases);
  resize::add_regions(cases);
  resize::add_inputs(cases);
  return cases;
}

std::vector<ErrorCase> resize_error_cases() {
  std::vector<ErrorCase> cases;
  const auto add = [&](std::string name, const std::string& model, std::vector<CaseInput> inputs,
                       std::string error, std::vector<std::string> fragments) {
    fragments.emplace_back("grow");
    cases.push_back({.name = std::move(name),
                     .model = "[grow] y = Resize " + model,
                     .inputs = std::move(inputs),
                     .error = std::move(error),
                     .fragments = std::move(fragments)});
  };
  const CaseInput x = uniform({1, 1, 2, 2}, -1, 1);
  add("mode", "<mode = \"sharp\"> (x, \"\", s)", {x, resize::scales({1, 1, 2, 2})}, "ModelError",
      {"mode"});
  add("antialias", "<antialias = 1> (x, \"\", s)", {x, resize::scales({1, 1, 2, 2})}, "ModelError",
      {"antialias"});
  add("no_roi", "<coordinate_transformation_mode = \"tf_crop_and_resize\"> (x, \"\", s)",
      {x, resize::scales({1, 1, 2, 2})}, "ModelError", {"roi"});
  add("few_scales", "(x, \"\", s)", {x, resize::scales({2, 2})}, "ShapeError", {});
  add("zero_scale", "<mode = \"linear\", axes = [2]> (x, \"\", s)", {x, resize::scales({-1})},
      "ShapeError", {});
  add("nothing_to_enlarge", "(x, \"\", \"\", s)",
      {uniform({1, 1, 0, 2}, -1, 1), ints({1, 1, 2, 2})}, "ShapeError", {"axis 2"});
  return cases;
}

namespace resize {

// Reference: evaluates the formula element by element along each axis, without passes or tables.
Tensor by_definition(const Tensor& x, const Dims& to) {
  const Dims& from = x.dims();
  Tensor y = Tensor::zeros(DataType::kFloat32, to);
  const auto at = [](std::int64_t o, std::int64_t input, std::int64_t output) {
    const double scale = static_cast<double>(output) / static_cast<double>(input);
    return std::clamp((static_cast<double>(o) + 0.5) / scale - 0.5, 0.0,
                      static_cast<double>(input) - 1);
  };
  const float* source = x.data<float>().data();
  float* target = y.mutable_data<float>().data();
  for (std::int64_t p = 0; p < to[0]; ++p) {
    for (std::int64_t i = 0; i < to[1]; ++i) {
      for (std::int64_t j = 0; j < to[2]; ++j) {
        const double r = at(i, from[1], to[1]);
        const double c = at(j, from[2], to[2]);
        double sum = 0;
        for (std::int64_t a = 0; a < from[1]; ++a) {
          for (std::int64_t b = 0; b < from[2]; ++b) {
            const double weight = std::max(0.0, 1 - std::abs(r - static_cast<double>(a))) *
                                  std::max(0.0, 1 - std::abs(c - static_cast<double>(b)));
            sum += weight * source[(p * from[1] + a) * from[2] + b];
          }
        }
        target[(p * to[1] + i) * to[2] + j] = static_cast<float>(sum);
      }
    }
  }
  return y;
}

}  // namespace resize

TEST(ResizeKernels, AllInstructionSetsThreadsAndStripesGiveTheSame) {
  const auto check = [](Dims from, Dims to, int threads, const device::CpuOptions& cpu = {}) {
    const Tensor x = random_tensor(DataType::kFloat32, from, 1);
    const Tensor sizes = Tensor::from(std::vector<std::int64_t>(to.begin(), to.end()), Dims{3});
    const KernelCall call{.op_type = "Resize",
                          .attributes = {{.name = "mode", .value = std::string("linear")}},
                          .inputs = {x, Tensor(), Tensor(), sizes},
                          .outputs = {{.dtype = DataType::kFloat32, .dims = to}},
                          .constants = {3},
                          .threads = threads,
                          .cpu = &cpu};
    EXPECT_EQ(compare(run_plain(call).at(0), resize::by_definition(x, to), 1e-5), "");
  };
  device::for_each_instruction_set([&](const device::CpuOptions& cpu) {
    check({2, 5, 7}, {2, 9, 33}, 1, cpu);
    check({1, 40, 30}, {1, 21, 64}, 1, cpu);
    check({1, 30, 30}, {1, 7, 9}, 1, cpu);
  });
  check({1, 24, 20}, {1, 400, 300}, 3);
  check({8, 16, 16}, {8, 100, 100}, 2);
  check({1, 3, 12000}, {1, 20, 20000}, 1);  // several stripes
}

}  // namespace onnxgrad::ops_test

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> deform_conv_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, const std::string& inputs,
                       std::vector<CaseInput> values) {
    cases.push_back({.name = std::move(name),
                     .model = "y = DeformConv " + attributes + " (" + inputs + ")",
                     .inputs = std::move(values)});
  };
  add("plain", "<kernel_shape = [2, 2], pads = [0, 0, 0, 0]>", "x, w, offset",
      {uniform({2, 2, 4, 5}, -1, 1), uniform({3, 2, 2, 2}, -1, 1),
       uniform({2, 8, 3, 4}, -1.4, 1.4)});
  add("all_inputs", "<pads = [1, 0, 1, 1], strides = [2, 1], dilations = [1, 2]>",
      "x, w, offset, b, mask",
      {uniform({1, 2, 5, 5}, -1, 1), uniform({2, 2, 3, 2}, -1, 1),
       uniform({1, 12, 3, 4}, -1.4, 1.4), uniform({2}, -1, 1), uniform({1, 6, 3, 4}, 0, 1)});
  add("groups", "<group = 2, offset_group = 2>", "x, w, offset, \"\", mask",
      {uniform({1, 4, 3, 3}, -1, 1), uniform({4, 2, 2, 2}, -1, 1),
       uniform({1, 16, 2, 2}, -0.9, 0.9), uniform({1, 8, 2, 2}, 0, 1)});
  add("offset_groups", "<offset_group = 2, group = 1>", "x, w, offset",
      {uniform({2, 4, 3, 4}, -1, 1), uniform({1, 4, 1, 1}, -1, 1),
       uniform({2, 4, 3, 4}, -0.9, 0.9)});
  add("one_pixel", "<pads = [1, 1, 1, 1]>", "x, w, offset",
      {uniform({1, 1, 1, 1}, -1, 1), uniform({1, 1, 3, 3}, -1, 1),
       uniform({1, 18, 1, 1}, -0.9, 0.9)});
  add("no_images", "<pads = [0, 0, 0, 0]>", "x, w, offset, b",
      {uniform({0, 1, 2, 2}, -1, 1), uniform({1, 1, 1, 1}, -1, 1), uniform({0, 2, 2, 2}, -1, 1),
       uniform({1}, -1, 1)});
  return cases;
}

std::vector<ErrorCase> deform_conv_error_cases() {
  return {{.name = "group",
           .model = "[bend] y = DeformConv <group = 0> (x, w, offset)",
           .inputs = {uniform({1, 1, 2, 2}, -1, 1), uniform({1, 1, 1, 1}, -1, 1),
                      uniform({1, 2, 2, 2}, -1, 1)},
           .error = "ModelError",
           .fragments = {"bend", "group"}},
          {.name = "strides",
           .model = "[bend] y = DeformConv <strides = [1]> (x, w, offset)",
           .inputs = {uniform({1, 1, 2, 2}, -1, 1), uniform({1, 1, 1, 1}, -1, 1),
                      uniform({1, 2, 2, 2}, -1, 1)},
           .error = "ModelError",
           .fragments = {"bend", "strides"}}};
}

}  // namespace onnxgrad::ops_test

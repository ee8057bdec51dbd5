#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> lp_pool_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, Dims x) {
    cases.push_back({.name = std::move(name),
                     .model = "y = LpPool <" + attributes + "> (x)",
                     .inputs = {uniform(std::move(x), -2, 2)}});
  };
  for (const std::string p : {"1", "2", "3"}) {
    add("p_" + p, "kernel_shape = [2, 3], p = " + p, {2, 2, 4, 5});
    cases.push_back({.name = "global_p_" + p,
                     .model = "y = GlobalLpPool <p = " + p + "> (x)",
                     .inputs = {uniform({2, 3, 2, 3}, -2, 2)}});
    // Whole windows of zeros, as after a Relu.
    cases.push_back({.name = "zeros_p_" + p,
                     .model = "z = Mul (x, zero)\nw = LpPool <kernel_shape = [2], p = " + p +
                              "> (z)\ng = GlobalLpPool <p = " + p +
                              "> (z)\ns = Add (w, g)\n"
                              "t = ReduceSum (x)\ny = Add (s, t)",
                     .inputs = {uniform({1, 2, 4}, 1, 2), values({0}, {1}).constant()},
                     .wrt = {"x"}});
  }
  add("default", "kernel_shape = [2]", {1, 2, 4});
  add("pads", "kernel_shape = [3, 3], pads = [1, 2, 1, 0], strides = [1, 2]", {1, 2, 4, 5});
  add("dilations", "kernel_shape = [2, 2], dilations = [2, 3]", {1, 2, 5, 6});
  add("volume", "kernel_shape = [2, 2, 2]", {1, 2, 3, 3, 2});
  for (const std::string pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}) {
    add(pad, "kernel_shape = [3, 2], strides = [2, 2], auto_pad = \"" + pad + "\"", {1, 2, 5, 6});
  }
  for (const std::string flag : {"0", "1"}) {
    add("ceil_" + flag, "kernel_shape = [2, 3], strides = [2, 2], ceil_mode = " + flag,
        {1, 2, 5, 6});
    add("ceil_padded_" + flag,
        "kernel_shape = [2, 3], strides = [3, 2], pads = [0, 1, 1, 2], ceil_mode = " + flag,
        {1, 1, 5, 6});
  }
  add("no_images", "kernel_shape = [2]", {0, 2, 4});
  cases.push_back({.name = "global_default",
                   .model = "y = GlobalLpPool (x)",
                   .inputs = {uniform({1, 2, 3}, -2, 2)}});
  cases.push_back({.name = "global_no_images",
                   .model = "y = GlobalLpPool (x)",
                   .inputs = {uniform({0, 2, 1}, -2, 2)}});
  return cases;
}

std::vector<ErrorCase> lp_pool_error_cases() {
  return {{.name = "p",
           .model = "[norms] y = LpPool <kernel_shape = [2], p = 0> (x)",
           .inputs = {uniform({1, 2, 4}, -1, 1)},
           .error = "ModelError",
           .fragments = {"norms", "p"}},
          {.name = "kernel",
           .model = "[norms] y = LpPool <kernel_shape = [5]> (x)",
           .inputs = {uniform({1, 2, 4}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"norms"}},
          {.name = "global_p",
           .model = "[norms] y = GlobalLpPool <p = 0> (x)",
           .inputs = {uniform({1, 2, 4}, -1, 1)},
           .error = "ModelError",
           .fragments = {"norms", "p"}}};
}

}  // namespace onnxgrad::ops_test

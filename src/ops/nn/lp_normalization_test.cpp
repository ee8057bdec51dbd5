#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> lp_normalization_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, CaseInput x) {
    cases.push_back({.name = std::move(name),
                     .model = "y = LpNormalization " + attributes + " (x)",
                     .inputs = {std::move(x)}});
  };
  for (const std::string p : {"1", "2"}) {
    for (const std::string axis : {"0", "1", "-1"}) {
      add("p_" + p + "_axis_" + axis, "<p = " + p + ", axis = " + axis + ">",
          uniform({2, 3, 4}, -2, 2));
    }
    add("p_" + p + "_one", "<p = " + p + ">", uniform({3, 1}, 1, 2));
    add("p_" + p + "_empty", "<p = " + p + ">", uniform({0, 3}, -1, 1));
    // The gradient is 0, not NaN, where the norm is 0.
    cases.push_back(
        {.name = "p_" + p + "_zeros",
         .model = "z = Mul (x, zeros)\nn = LpNormalization <p = " + p + "> (z)\ny = Add (n, x)",
         .inputs = {uniform({2, 3}, 1, 2), values({0, 0, 0}, {3}).constant()},
         .wrt = {"x"}});
  }
  add("default", "", uniform({2, 3}, -2, 2));
  return cases;
}

std::vector<ErrorCase> lp_normalization_error_cases() {
  return {{.name = "p",
           .model = "[unit] y = LpNormalization <p = 3> (x)",
           .inputs = {uniform({2, 3}, -1, 1)},
           .error = "ModelError",
           .fragments = {"unit", "p"}},
          {.name = "axis",
           .model = "[unit] y = LpNormalization <axis = 2> (x)",
           .inputs = {uniform({2, 3}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"unit"}}};
}

}  // namespace onnxgrad::ops_test

#include <limits>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> det_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, CaseInput x) -> OpCase& {
    cases.push_back({.name = std::move(name), .model = "y = Det (x)", .inputs = {std::move(x)}});
    return cases.back();
  };
  add("two", uniform({2, 2}, -2, 2));
  add("five", uniform({5, 5}, -2, 2));
  add("batch", uniform({2, 3, 3, 3}, -2, 2));
  add("one", uniform({1, 1}, -1, 1));
  add("ones", uniform({4, 1, 1}, -1, 1));
  add("no_matrices", uniform({0, 3, 3}, -1, 1));
  // Singular matrices: of rank n - 1, with nonzero cofactors, and of lower rank, whose cofactors
  // are all zero unless n = 2.
  add("singular", values({1, 2, 3, 2, 4, 6, 1, 0, 1}, {3, 3}));
  add("singular_row", values({0, 0, 0, 2, 4, 6, 1, 0, 1}, {3, 3}));
  add("singular_two", values({1, 2, 2, 4}, {2, 2}));
  add("rank_one", values({1, 2, 3, 2, 4, 6, 3, 6, 9}, {3, 3}));
  add("zeros", values({0, 0, 0, 0}, {2, 2}));
  add("permutation", values({0, 1, 0, 0, 0, 1, 1, 0, 0}, {3, 3}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  add("nan_behind_zero", values({0, 1, 2, nan}, {2, 2})).no_gradient = "not a number";
  add("infinity_behind_zero", values({0, 1, 2, infinity}, {2, 2})).no_gradient = "not a number";
  cases.push_back({.name = "of_gram_matrix",
                   .model = "gram = Gemm <transB = 1> (x, x)\ny = Det (gram)",
                   .inputs = {uniform({3, 4}, -1, 1)}});
  return cases;
}

std::vector<ErrorCase> det_error_cases() {
  return {{.name = "not_square",
           .model = "[volume] y = Det (x)",
           .inputs = {uniform({2, 3}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"volume"}},
          {.name = "vector",
           .model = "[volume] y = Det (x)",
           .inputs = {uniform({3}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"volume"}}};
}

}  // namespace onnxgrad::ops_test

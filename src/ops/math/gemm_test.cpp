#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> gemm_cases() {
  const auto a = [](bool transposed) {
    return uniform(transposed ? Dims{4, 3} : Dims{3, 4}, -1, 1);
  };
  const auto b = [](bool transposed) {
    return uniform(transposed ? Dims{2, 4} : Dims{4, 2}, -1, 1);
  };
  std::vector<OpCase> cases;
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      const std::string flags = std::to_string(trans_a) + ", transB = " + std::to_string(trans_b);
      const std::string suffix = std::to_string(trans_a) + std::to_string(trans_b);
      cases.push_back({.name = "transposed_" + suffix,
                       .model = "y = Gemm <transA = " + flags + "> (a, b, c)",
                       .inputs = {a(trans_a), b(trans_b), uniform({2}, -1, 1)}});
      cases.push_back(
          {.name = "scaled_" + suffix,
           .model = "y = Gemm <alpha = 0.7, beta = -1.5, transA = " + flags + "> (a, b, c)",
           .inputs = {a(trans_a), b(trans_b), uniform({3, 2}, -1, 1)}});
      cases.push_back({.name = "two_inputs_" + suffix,
                       .model = "y = Gemm <alpha = 2.0, transA = " + flags + "> (a, b)",
                       .inputs = {a(trans_a), b(trans_b)}});
    }
  }
  const auto with_c = [&](std::string name, Dims c) {
    cases.push_back({.name = std::move(name),
                     .model = "y = Gemm (a, b, c)",
                     .inputs = {a(false), b(false), uniform(std::move(c), -1, 1)}});
  };
  with_c("c_scalar", {});
  with_c("c_one", {1});
  with_c("c_column", {3, 1});
  with_c("c_row", {1, 2});
  const auto sized = [&](std::string name, Dims left, Dims right, Dims c) {
    cases.push_back({.name = std::move(name),
                     .model = "y = Gemm (a, b, c)",
                     .inputs = {uniform(std::move(left), -1, 1), uniform(std::move(right), -1, 1),
                                uniform(std::move(c), -1, 1)}});
  };
  sized("one", {1, 1}, {1, 1}, {1});
  sized("no_rows", {0, 4}, {4, 2}, {2});
  sized("nothing_to_sum", {3, 0}, {0, 2}, {2});
  sized("larger", {19, 23}, {23, 31}, {31});
  cases.push_back({.name = "beta_zero",
                   .model = "y = Gemm <beta = 0.0> (a, b, c)",
                   .inputs = {a(false), b(false), uniform({2}, -1, 1)}});
  return cases;
}

std::vector<ErrorCase> gemm_error_cases() {
  return {
      {.name = "inner_dimensions",
       .model = "[dense] y = Gemm (a, b)",
       .inputs = {uniform({3, 4}, -1, 1), uniform({5, 2}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"dense", "[3, 4]", "[5, 2]"}},
      {.name = "bias",
       .model = "[dense] y = Gemm (a, b, c)",
       .inputs = {uniform({3, 4}, -1, 1), uniform({4, 2}, -1, 1), uniform({3}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"dense", "[3]"}},
      {.name = "flag",
       .model = "[dense] y = Gemm <transB = 3> (a, b)",
       .inputs = {uniform({3, 4}, -1, 1), uniform({4, 2}, -1, 1)},
       .error = "ModelError",
       .fragments = {"dense", "transB"}},
      {.name = "rank",
       .model = "[dense] y = Gemm (a, b)",
       .inputs = {uniform({2, 3, 4}, -1, 1), uniform({4, 2}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"dense"}},
  };
}

}  // namespace onnxgrad::ops_test

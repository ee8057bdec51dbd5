#include <limits>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> trilu_cases() {
  std::vector<OpCase> cases;
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  for (const std::string upper : {"0", "1"}) {
    const std::string op = "y = Trilu <upper = " + upper + "> ";
    cases.push_back({.name = "square_" + upper, .model = op + "(x)", .inputs = {x({3, 3})}});
    for (const std::int64_t k :
         {std::int64_t{-9}, std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, std::int64_t{9},
          std::numeric_limits<std::int64_t>::min()}) {
      cases.push_back({.name = "diagonal_" + upper + "_" + std::to_string(cases.size()),
                       .model = op + "(x, k)",
                       .inputs = {x({3, 4}), int_scalar(k)}});
    }
    cases.push_back({.name = "batch_" + upper,
                     .model = op + "(x, k)",
                     .inputs = {x({2, 4, 3}), int_scalar(1).fed()}});
    cases.push_back({.name = "empty_" + upper, .model = op + "(x)", .inputs = {x({0, 3})}});
    cases.push_back({.name = "one_" + upper, .model = op + "(x)", .inputs = {x({1, 1})}});
  }
  cases.push_back({.name = "int64",
                   .model = "y = Trilu (x)",
                   .inputs = {integers({3, 3}, 1, 9)},
                   .no_gradient = "integers"});
  return cases;
}

std::vector<ErrorCase> trilu_error_cases() {
  return {
      {.name = "vector",
       .model = "[corner] y = Trilu (x)",
       .inputs = {uniform({3}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"corner"}},
      {.name = "flag",
       .model = "[corner] y = Trilu <upper = 2> (x)",
       .inputs = {uniform({3, 3}, -1, 1)},
       .error = "ModelError",
       .fragments = {"corner", "upper"}},
  };
}

}  // namespace onnxgrad::ops_test

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> nonzero_cases() {
  std::vector<OpCase> cases;
  const auto nonzero = [&](std::string name, CaseInput x) {
    cases.push_back({.name = std::move(name),
                     .model = "y = NonZero (x)",
                     .inputs = {std::move(x)},
                     .no_gradient = "integer output"});
  };
  nonzero("matrix", values({1, 0, 0, -2, 3, 0}, {2, 3}));
  nonzero("bool", integers({3, 4}, 0, 1, DataType::kBool));
  nonzero("int64", integers({3, 4}, 0, 1));
  nonzero("none", values({0, 0}, {2}));
  nonzero("empty", uniform({0, 3}, -1, 1));
  nonzero("one", values({5}, {1}));
  cases.push_back(
      {.name = "picked_by_place",
       .model = "big = Greater (x, limit)\nat = NonZero (big)\nplaces = Transpose (at)\n"
                "picked = GatherND (x, places)\ny = Mul (picked, picked)",
       .inputs = {values({0.5, -1, 2, 3, -0.2, 0.7}, {2, 3}), values({0.4}, {}).constant()}});

  const CaseInput condition = values({1, 0, 1}, {3}, DataType::kBool);
  const auto compress = [&](std::string name, const std::string& axis, CaseInput x, CaseInput c) {
    cases.push_back({.name = "compress_" + std::move(name),
                     .model = "y = Compress " + axis + " (x, condition)",
                     .inputs = {std::move(x), std::move(c)}});
  };
  compress("rows", "<axis = 0>", uniform({3, 2}, -1, 1), condition);
  compress("columns", "<axis = 1>", uniform({2, 4}, -1, 1), condition);
  compress("last", "<axis = -1>", uniform({2, 2, 3}, -1, 1), condition);
  compress("flat", "", uniform({2, 3}, -1, 1), values({0, 1, 0, 0, 1, 1}, {6}, DataType::kBool));
  compress("nothing", "<axis = 0>", uniform({2, 3}, -1, 1), values({0, 0}, {2}, DataType::kBool));
  compress("empty", "<axis = 0>", uniform({0, 3}, -1, 1), values({}, {0}, DataType::kBool));
  compress("one", "", uniform({1}, -1, 1), values({1}, {1}, DataType::kBool));
  return cases;
}

std::vector<ErrorCase> nonzero_error_cases() {
  return {
      {.name = "attribute",
       .model = "[places] y = NonZero <axis = 0> (x)",
       .inputs = {uniform({2}, -1, 1)},
       .error = "ModelError",
       .fragments = {"places", "axis"}},
      {.name = "compress_length",
       .model = "[kept] y = Compress <axis = 0> (x, condition)",
       .inputs = {uniform({2, 3}, -1, 1), values({1, 1, 1}, {3}, DataType::kBool)},
       .error = "ShapeError",
       .fragments = {"kept"}},
      {.name = "compress_axis",
       .model = "[kept] y = Compress <axis = 2> (x, condition)",
       .inputs = {uniform({2, 3}, -1, 1), values({1, 1}, {2}, DataType::kBool)},
       .error = "ShapeError",
       .fragments = {"kept"}},
  };
}

}  // namespace onnxgrad::ops_test

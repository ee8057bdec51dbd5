#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> reshape_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, std::string model, std::vector<CaseInput> inputs) {
    cases.push_back(
        {.name = std::move(name), .model = std::move(model), .inputs = std::move(inputs)});
  };
  const std::string reshape = "s = Exp (x)\nr = Reshape (s, shape)\ny = Sin (r)";
  add("reshape", reshape, {x({2, 6}), ints({3, 4})});
  add("reshape_inferred", reshape, {x({2, 6}), ints({-1, 4})});
  add("reshape_copied", reshape, {x({2, 6}), ints({0, 3, 2})});
  add("reshape_scalar", reshape, {x({1, 1}), ints({})});
  add("reshape_from_scalar", reshape, {x({}), ints({1})});
  add("reshape_empty", reshape, {x({0, 3}), ints({0, 5})});
  add("reshape_fed_shape", reshape, {x({2, 6}), ints({3, 4}).fed()});
  add("reshape_literal_zero", "s = Exp (x)\ny = Reshape <allowzero = 1> (s, shape)",
      {x({0, 3}), ints({5, 0})});
  add("reshape_flag_off", "s = Exp (x)\ny = Reshape <allowzero = 0> (s, shape)",
      {x({2, 3}), ints({0, -1})});
  add("reshape_same", "y = Reshape (x, shape)", {x({2, 3}), ints({2, 3})});
  for (const int axis : {0, 1, 2, 3, -1, -3}) {
    add("flatten_" + std::to_string(axis),
        "s = Exp (x)\ny = Flatten <axis = " + std::to_string(axis) + "> (s)", {x({2, 3, 2})});
  }
  add("flatten_default", "y = Flatten (x)", {x({2, 3, 2})});
  add("flatten_vector", "y = Flatten <axis = 0> (x)", {x({1})});
  add("flatten_scalar", "y = Flatten <axis = 0> (x)", {x({})});
  add("flatten_empty", "y = Flatten (x)", {x({2, 0, 3})});
  const std::string squeeze = "s = Exp (x)\ny = Squeeze (s, axes)";
  add("squeeze", squeeze, {x({1, 3, 1}), ints({0})});
  add("squeeze_negative", squeeze, {x({1, 3, 1}), ints({-1})});
  add("squeeze_two", squeeze, {x({1, 3, 1}), ints({-1, 0})});
  add("squeeze_to_scalar", squeeze, {x({1, 1}), ints({0, 1})});
  add("squeeze_empty", squeeze, {x({1, 0}), ints({0})});
  cases.push_back({.name = "squeeze_all",
                   .model = "s = Exp (x)\ny = Squeeze (s)",
                   .inputs = {x({1, 3, 1})},
                   .static_only = "without axes the rank depends on the sizes"});
  const std::string unsqueeze = "s = Exp (x)\ny = Unsqueeze (s, axes)";
  add("unsqueeze", unsqueeze, {x({2, 3}), ints({1})});
  add("unsqueeze_two", unsqueeze, {x({2, 3}), ints({0, 3})});
  add("unsqueeze_negative", unsqueeze, {x({2, 3}), ints({-1, -3})});
  add("unsqueeze_scalar", unsqueeze, {x({}), ints({0})});
  add("unsqueeze_empty", unsqueeze, {x({0}), ints({1})});
  add("unsqueeze_one", unsqueeze, {x({1}), ints({0})});
  add("unsqueeze_axis_of_rank_0", unsqueeze, {x({2, 3}), int_scalar(1).named("axes")});
  return cases;
}

std::vector<ErrorCase> reshape_error_cases() {
  const CaseInput x = uniform({2, 3}, -1, 1);
  return {
      {.name = "reshape_count",
       .model = "[viewed] y = Reshape (x, shape)",
       .inputs = {x, ints({4, 2})},
       .error = "ShapeError",
       .fragments = {"viewed", "[2, 3]"}},
      {.name = "reshape_two_inferred",
       .model = "[viewed] y = Reshape (x, shape)",
       .inputs = {x, ints({-1, -1})},
       .error = "ShapeError",
       .fragments = {"viewed"}},
      {.name = "reshape_huge",
       .model = "[viewed] y = Reshape (x, shape)",
       .inputs = {x, ints({std::int64_t{1} << 32, std::int64_t{1} << 32})},
       .error = "ShapeError",
       .fragments = {"viewed"}},
      {.name = "reshape_flag",
       .model = "[viewed] y = Reshape <allowzero = 2> (x, shape)",
       .inputs = {x, ints({6})},
       .error = "ModelError",
       .fragments = {"viewed", "allowzero"}},
      {.name = "flatten_axis",
       .model = "[flat] y = Flatten <axis = 3> (x)",
       .inputs = {x},
       .error = "ShapeError",
       .fragments = {"flat", "3"}},
      {.name = "squeeze_size",
       .model = "[thin] y = Squeeze (x, axes)",
       .inputs = {x, ints({0})},
       .error = "ShapeError",
       .fragments = {"thin"}},
      {.name = "squeeze_axis",
       .model = "[thin] y = Squeeze (x, axes)",
       .inputs = {x, ints({2})},
       .error = "ShapeError",
       .fragments = {"thin", "2"}},
      {.name = "unsqueeze_axis",
       .model = "[wide] y = Unsqueeze (x, axes)",
       .inputs = {x, ints({4})},
       .error = "ShapeError",
       .fragments = {"wide", "4"}},
      {.name = "unsqueeze_twice",
       .model = "[wide] y = Unsqueeze (x, axes)",
       .inputs = {x, ints({1, 1})},
       .error = "ShapeError",
       .fragments = {"wide"}},
  };
}

}  // namespace onnxgrad::ops_test

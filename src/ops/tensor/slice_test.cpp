#include <limits>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> slice_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, CaseInput input, std::vector<CaseInput> where) {
    const char* const kOperands[] = {", starts", ", ends", ", axes", ", steps"};
    std::string operands = "x";
    for (std::size_t i = 0; i < where.size(); ++i) operands += kOperands[i];
    std::vector<CaseInput> inputs{std::move(input)};
    inputs.insert(inputs.end(), where.begin(), where.end());
    cases.push_back({.name = std::move(name),
                     .model = "y = Slice (" + operands + ")",
                     .inputs = std::move(inputs)});
  };
  add("first_axes", x({4, 5}), {ints({1, 2}), ints({3, 4})});
  add("one_axis", x({4, 5}), {ints({1}), ints({4}), ints({1})});
  add("negative_axis", x({4, 5}), {ints({1}), ints({4}), ints({-1})});
  add("from_end", x({4, 5}), {ints({-3}), ints({-1}), ints({1})});
  add("clamped", x({4, 5}), {ints({-100, 2}), ints({100, 200}), ints({0, 1})});
  add("int64_extremes", x({4, 5}), {ints({kMin}), ints({kMax}), ints({1}), ints({1})});
  add("everything", x({4, 5}), {ints({0}), ints({4}), ints({0})});
  add("nothing", x({4, 5}), {ints({3}), ints({3}), ints({0})});
  add("crossed", x({4, 5}), {ints({3}), ints({1}), ints({0})});
  add("empty", x({0, 5}), {ints({0}), ints({2}), ints({0})});
  add("one", x({1}), {ints({0}), ints({1})});
  add("no_axes", x({4}), {ints({}), ints({})});
  add("stepped", x({7, 5}), {ints({1}), ints({7}), ints({0}), ints({2})});
  add("step_of_one", x({7, 5}), {ints({1}), ints({6}), ints({0}), ints({1})});
  add("reversed", x({4, 5}), {ints({-1}), ints({kMin}), ints({1}), ints({-1})});
  add("reversed_stepped", x({7, 5}), {ints({5, -1}), ints({0, -6}), ints({0, 1}), ints({-2, -3})});
  add("huge_step", x({4, 5}), {ints({1}), ints({4}), ints({0}), ints({kMax})});
  add("fed", x({4, 5}), {ints({1}).fed(), ints({3}).fed(), ints({0}).fed()});
  add("int32_numbers", x({4, 5}),
      {values({1}, {1}, DataType::kInt32).constant(), values({3}, {1}, DataType::kInt32).constant(),
       values({0}, {1}, DataType::kInt32).constant()});
  cases.push_back({.name = "int16",
                   .model = "y = Slice (x, starts, ends, axes, steps)",
                   .inputs = {integers({4, 5}, 0, 9, DataType::kInt16), ints({0}), ints({5}),
                              ints({1}), ints({2})},
                   .no_gradient = "integers"});
  return cases;
}

std::vector<ErrorCase> slice_error_cases() {
  const CaseInput x = uniform({4, 5}, -1, 1);
  const std::string full = "[cut] y = Slice (x, starts, ends, axes, steps)";
  return {
      {.name = "step_zero",
       .model = full,
       .inputs = {x, ints({0}), ints({2}), ints({0}), ints({0})},
       .error = "ShapeError",
       .fragments = {"cut"}},
      {.name = "axis",
       .model = full,
       .inputs = {x, ints({0}), ints({2}), ints({2}), ints({1})},
       .error = "ShapeError",
       .fragments = {"cut"}},
      {.name = "lengths",
       .model = full,
       .inputs = {x, ints({0}), ints({2, 3}), ints({0}), ints({1})},
       .error = "ShapeError",
       .fragments = {"cut"}},
      {.name = "axis_minimum",
       .model = full,
       .inputs = {x, ints({0}), ints({2}), ints({std::numeric_limits<std::int64_t>::min()}),
                  ints({1})},
       .error = "ShapeError",
       .fragments = {"cut"}},
  };
}

}  // namespace onnxgrad::ops_test

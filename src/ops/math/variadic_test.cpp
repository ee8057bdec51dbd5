#include <limits>
#include <string>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

namespace {

// More operands than one kernel accepts.
OpCase with_many_operands(const std::string& op) {
  std::string names;
  std::vector<CaseInput> inputs;
  for (int i = 0; i < 70; ++i) {
    names += (i == 0 ? "x" : ", x") + std::to_string(i);
    inputs.push_back(uniform(i % 9 == 0 ? Dims{2, 1} : Dims{3}, -1, 1));
  }
  return {.name = op + "_many", .model = "y = " + op + " (" + names + ")", .inputs = inputs};
}

}  // namespace

std::vector<OpCase> variadic_cases() {
  std::vector<OpCase> cases;
  for (const std::string op : {"Sum", "Mean", "Max", "Min"}) {
    const std::string two = "y = " + op + " (a, b)";
    const std::string three = "y = " + op + " (a, b, c)";
    cases.push_back(
        {.name = op + "_one", .model = "y = " + op + " (a)", .inputs = {uniform({2, 3}, -1, 1)}});
    cases.push_back({.name = op + "_two",
                     .model = two,
                     .inputs = {uniform({2, 3}, -1, 1), uniform({2, 3}, -1, 1)}});
    cases.push_back({.name = op + "_three",
                     .model = three,
                     .inputs = {uniform({3}, -1, 1), uniform({2, 1}, -1, 1), uniform({}, -1, 1)}});
    cases.push_back({.name = op + "_first_is_row",
                     .model = two,
                     .inputs = {uniform({3}, -1, 1), uniform({2, 3}, -1, 1)}});
    cases.push_back({.name = op + "_second_is_row",
                     .model = two,
                     .inputs = {uniform({2, 3}, -1, 1), uniform({1, 3}, -1, 1)}});
    cases.push_back({.name = op + "_scalars",
                     .model = two,
                     .inputs = {uniform({}, -1, 1), uniform({}, -1, 1)}});
    cases.push_back({.name = op + "_empty",
                     .model = two,
                     .inputs = {uniform({0, 3}, -1, 1), uniform({3}, -1, 1)}});
    cases.push_back({.name = op + "_constant_operand",
                     .model = two,
                     .inputs = {uniform({2, 3}, 0.1, 1), values({0.05}, {}).constant()}});
    cases.push_back(with_many_operands(op));
    cases.push_back({.name = op + "_same_twice",
                     .model = "y = " + op + " (a, a)",
                     .inputs = {uniform({4}, -1, 1)}});
  }
  for (const std::string op : {"Max", "Min"}) {
    cases.push_back({.name = op + "_int64",
                     .model = "y = " + op + " (a, b)",
                     .inputs = {integers({2, 3}, -9, 9), integers({3}, -9, 9)},
                     .no_gradient = "integers"});
    cases.push_back({.name = op + "_nan",
                     .model = "y = " + op + " (a, b)",
                     .inputs = {values({1, std::numeric_limits<double>::quiet_NaN()}, {2}),
                                values({2, 3}, {2})},
                     .no_gradient = "not a number"});
  }
  // One direction moves all tied operands: the sum of their equal parts is the derivative of max(a,
  // a).
  cases.push_back({.name = "ties_share",
                   .model = "b = Identity (a)\ny = Max (a, b, a)",
                   .inputs = {uniform({3}, -1, 1)}});
  return cases;
}

std::vector<ErrorCase> variadic_error_cases() {
  std::vector<ErrorCase> cases;
  for (const std::string op : {"Sum", "Mean", "Max", "Min"}) {
    cases.push_back({.name = op + "_shapes",
                     .model = "[many] y = " + op + " (a, b, c)",
                     .inputs = {uniform({3}, 0, 1), uniform({1}, 0, 1), uniform({2}, 0, 1)},
                     .error = "ShapeError",
                     .fragments = {"many", "[3]", "[2]"}});
    cases.push_back({.name = op + "_types",
                     .model = "[many] y = " + op + " (a, b)",
                     .inputs = {uniform({3}, 0, 1), integers({3}, 0, 1)},
                     .error = "ModelError",
                     .fragments = {"many"}});
  }
  return cases;
}

}  // namespace onnxgrad::ops_test

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace reduce {

const std::vector<std::string> kOps = {"ReduceSum",    "ReduceMean",      "ReduceMax", "ReduceMin",
                                       "ReduceProd",   "ReduceSumSquare", "ReduceL1",  "ReduceL2",
                                       "ReduceLogSum", "ReduceLogSumExp"};

// Positive, so that logarithms and absolute values are smooth.
CaseInput data(Dims dims) { return uniform(std::move(dims), 0.3, 2); }

void add_common(const std::string& op, std::vector<OpCase>& cases) {
  const auto add = [&](std::string name, const std::string& attributes, Dims dims,
                       std::vector<CaseInput> axes) {
    std::vector<CaseInput> inputs{data(std::move(dims))};
    inputs.insert(inputs.end(), axes.begin(), axes.end());
    cases.push_back(
        {.name = op + "_" + std::move(name),
         .model = "y = " + op + " " + attributes + (axes.empty() ? " (x)" : " (x, axes)"),
         .inputs = std::move(inputs)});
  };
  add("all", "", {2, 3, 2}, {});
  add("all_dropped", "<keepdims = 0>", {2, 3, 2}, {});
  add("last", "<keepdims = 1>", {2, 3, 2}, {ints({2})});
  add("first_dropped", "<keepdims = 0>", {2, 3, 2}, {ints({0})});
  add("middle_negative", "<keepdims = 0>", {2, 3, 2}, {ints({-2})});
  add("outer_two", "<keepdims = 0>", {2, 3, 2}, {ints({-1, 0})});
  add("three_groups", "", {2, 3, 2, 2}, {ints({1, 3})});
  add("empty_axes", "<noop_with_empty_axes = 0>", {2, 3}, {ints({})});
  add("no_op", "<noop_with_empty_axes = 1>", {2, 3}, {});
  add("no_op_empty", "<noop_with_empty_axes = 1>", {2, 3}, {ints({})});
  add("scalar", "", {}, {});
  add("one", "<keepdims = 0>", {1, 1}, {ints({0})});
  add("axis_of_one", "", {3, 1, 2}, {ints({1})});
  add("empty_kept", "<keepdims = 0>", {0, 3}, {ints({1})});
  add("long_run", "<keepdims = 0>", {2, 37}, {ints({1})});
  add("fed_axes", "<keepdims = 1>", {2, 3}, {ints({1}).fed()});
}

// Reductions of no elements: only these two have a result that all libraries agree on.
void add_empty(std::vector<OpCase>& cases) {
  cases.push_back({.name = "sum_of_nothing",
                   .model = "y = ReduceSum <keepdims = 0> (x, axes)",
                   .inputs = {data({2, 0}), ints({1})},
                   .expected = {{0, 0}}});
  cases.push_back({.name = "product_of_nothing",
                   .model = "y = ReduceProd <keepdims = 0> (x, axes)",
                   .inputs = {data({2, 0}), ints({1})},
                   .expected = {{1, 1}}});
}

void add_kinks(std::vector<OpCase>& cases) {
  const auto product = [&](std::string name, std::vector<double> x) {
    const auto columns = static_cast<std::int64_t>(x.size()) / 2;
    cases.push_back({.name = "prod_" + std::move(name),
                     .model = "y = ReduceProd <keepdims = 0> (x, axes)",
                     .inputs = {values(std::move(x), {2, columns}), ints({1})}});
  };
  product("one_zero", {2, 0, 3, 1.5, -2, 0.5});
  product("two_zeros", {2, 0, 0, 0, -2, 0});
  cases.push_back({.name = "l1_signs",
                   .model = "y = ReduceL1 <keepdims = 0> (x, axes)",
                   .inputs = {values({2, -1, 3, -1.5, -2, 0.5}, {2, 3}), ints({1})}});
  cases.push_back({.name = "sum_square_signs",
                   .model = "y = ReduceSumSquare (x, axes)",
                   .inputs = {normal({2, 3}), ints({0})}});
  cases.push_back({.name = "log_sum_exp_large",
                   .model = "y = ReduceLogSumExp <keepdims = 0> (x, axes)",
                   .inputs = {values({900, 901, -900, -901}, {2, 2}), ints({1})},
                   .tolerance = 1e-5,
                   .tolerance_reason = "steps grow with |x|, and so does their truncation error",
                   .tolerance_float32 = 1e-4});
}

void add_integers(std::vector<OpCase>& cases) {
  for (const std::string op : {"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"}) {
    for (const DataType dtype : {DataType::kInt64, DataType::kInt32}) {
      cases.push_back({.name = op + "_" + std::string(dtype_name(dtype)),
                       .model = "y = " + op + " <keepdims = 0> (x, axes)",
                       .inputs = {integers({3, 4}, -5, 5, dtype), ints({1})},
                       .no_gradient = "integers"});
    }
  }
  for (const std::string& op : kOps) {
    if (op.starts_with("ReduceLogSum")) continue;
    for (const DataType dtype : {DataType::kUint64, DataType::kUint32}) {
      // ONNX's reference evaluator returns uint64.
      if (op == "ReduceSumSquare" && dtype == DataType::kUint32) continue;
      cases.push_back({.name = op + "_" + std::string(dtype_name(dtype)),
                       .model = "y = " + op + " <keepdims = 0> (x, axes)",
                       .inputs = {integers({3, 4}, 0, 9, dtype), ints({1})},
                       .no_gradient = "integers"});
    }
  }
  for (const std::string op : {"ReduceMax", "ReduceMin"}) {
    for (const DataType dtype : {DataType::kInt8, DataType::kUint8, DataType::kBool}) {
      cases.push_back({.name = op + "_" + std::string(dtype_name(dtype)),
                       .model = "y = " + op + " <keepdims = 0> (x, axes)",
                       .inputs = {integers({3, 4}, 0, 1, dtype), ints({1})},
                       .no_gradient = "integers"});
    }
  }
}

}  // namespace reduce

std::vector<OpCase> reduce_cases() {
  std::vector<OpCase> cases;
  for (const std::string& op : reduce::kOps) reduce::add_common(op, cases);
  reduce::add_empty(cases);
  reduce::add_kinks(cases);
  reduce::add_integers(cases);
  return cases;
}

std::vector<ErrorCase> reduce_error_cases() {
  std::vector<ErrorCase> cases;
  for (const std::string& op : reduce::kOps) {
    for (const std::int64_t axis :
         {std::int64_t{2}, std::int64_t{-3}, std::numeric_limits<std::int64_t>::min()}) {
      cases.push_back({.name = op + "_axis_" + std::to_string(axis),
                       .model = "[total] y = " + op + " (x, axes)",
                       .inputs = {reduce::data({2, 3}), ints({axis})},
                       .error = "ShapeError",
                       .fragments = {"total", "2"}});
    }
    cases.push_back({.name = op + "_flag",
                     .model = "[total] y = " + op + " <keepdims = 2> (x)",
                     .inputs = {reduce::data({2, 3})},
                     .error = "ModelError",
                     .fragments = {"total", "keepdims"}});
  }
  return cases;
}

}  // namespace onnxgrad::ops_test

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace scan {

// h' = tanh(x W + h U), with h' stacked.
const std::string kRecurrence = R"(
  last, all = Scan <num_scan_inputs = 1, body = step ($T[3] h, $T[2] x) => ($T[3] next, $T[3] y) {
    from_x = MatMul (x, w)
    from_h = MatMul (h, u)
    sum = Add (from_x, from_h)
    next = Tanh (sum)
    y = Identity (next)
  }> (h0, xs))";

std::vector<CaseInput> recurrence_inputs(std::int64_t length) {
  return {uniform({3}, -1, 1).named("h0"), uniform({length, 2}, -1, 1).named("xs"),
          uniform({2, 3}, -1, 1).named("w"), uniform({3, 3}, -1, 1).named("u")};
}

// A batch of rows, three gates, two states, one scanned backward and one stacked backward.
const std::string kGates = R"(
  h, c, ys, zs = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1],
      scan_output_directions = [1, 0],
      body = step ($T[2, 3] h0, $T[2, 3] c0, $T[2, 3] x, $T[2, 3] z)
          => ($T[2, 3] h1, $T[2, 3] c1, $T[2, 3] y, $T[2, 3] kept) {
    product = MatMul (h0, u)
    gate_sum = Add (product, x)
    gate = Sigmoid (gate_sum)
    old = Mul (gate, c0)
    new = Mul (x, z)
    c1 = Add (old, new)
    squashed = Tanh (c1)
    h1 = Mul (squashed, gate)
    y = Mul (h1, b)
    kept = Identity (c0)
  }> (first, second, xs, zs_in))";

const std::string kAxes = R"(
  last, ys = Scan <num_scan_inputs = 2, scan_input_axes = [1, -1], scan_output_axes = [-1],
      body = step ($T[2] h, $T[2, 3] x, $T[2] z) => ($T[2] next, $T[2, 3] y) {
    squares = Mul (x, x)
    sums = ReduceSum <keepdims = 0> (squares, axis)
    decayed = Mul (h, z)
    next = Add (decayed, sums)
    column = Unsqueeze (next, axis)
    y = Mul (x, column)
  }> (h0, xs, zs))";

// The states swap roles, one is passed through, one is an integer.
const std::string kExchange = R"(
  a, b, c, n, ys = Scan <num_scan_inputs = 1,
      body = step ($T[2] a0, $T[2] b0, $T[2] c0, int64 n0, $T[2] x)
          => ($T[2] a1, $T[2] b1, $T[2] c1, int64 n1, $T[2] y) {
    a1 = Identity (b0)
    product = Mul (a0, x)
    b1 = Add (product, c0)
    c1 = Identity (c0)
    n1 = Add (n0, one)
    count = CastLike (n1, x)
    y = Mul (product, count)
  }> (first, second, third, start, xs))";

const std::string kNested = R"(
  last, ys = Scan <num_scan_inputs = 1,
      body = outer ($T[2] h, $T[3, 2] rows) => ($T[2] next, $T[3] y) {
    next, sums = Scan <num_scan_inputs = 1,
        body = inner ($T[2] g, $T[2] row) => ($T[2] g1, $T sum) {
      product = MatMul (g, w)
      shifted = Add (product, row)
      g1 = Tanh (shifted)
      scaled = Mul (g1, h)
      sum = ReduceSum <keepdims = 0> (scaled)
    }> (h, rows)
    y = Sin (sums)
  }> (h0, xs))";

const std::string kInBranch = R"(
  y = If (taken) <
    then_branch = some () => ($T[2] then_y) {
      then_y, unused = Scan <num_scan_inputs = 1,
          body = step ($T[2] h, $T[2] x) => ($T[2] next, $T[2] out) {
        product = MatMul (h, w)
        sum = Add (product, x)
        next = Sin (sum)
        out = Neg (next)
      }> (h0, xs)
    },
    else_branch = none () => ($T[2] else_y) { else_y = MatMul (h0, w) }>)";

// An If in each iteration.
const std::string kBranchInside = R"(
  last, ys = Scan <num_scan_inputs = 2,
      body = step ($T[2] h, $T[2] x, bool c) => ($T[2] next, $T[2] y) {
    next = If (c) <
      then_branch = grow () => ($T[2] more) {
        product = MatMul (h, w)
        more = Add (product, x)
      },
      else_branch = keep () => ($T[2] same) { same = Mul (h, h) }>
    y = Exp (next)
  }> (h0, xs, choices))";

// Only the stacked output is used; the weight is captured through a node inside and one outside.
const std::string kMap = R"(
  ys = Scan <num_scan_inputs = 1, body = step ($T[2, 2] x) => ($T[2, 2] y) {
    product = MatMul (x, w)
    y = Softmax <axis = -1> (product)
  }> (xs)
  z = MatMul (ys, w))";

}  // namespace scan

std::vector<OpCase> scan_cases() {
  using namespace scan;  // NOLINT(google-build-using-namespace): this file's own
  std::vector<OpCase> cases;
  for (const std::int64_t length : {4, 1}) {
    cases.push_back({.name = length == 4 ? "recurrence" : "one_step",
                     .model = kRecurrence,
                     .inputs = recurrence_inputs(length),
                     .outputs = {"last", "all"}});
  }
  cases.push_back({.name = "last_used",
                   .model = kRecurrence,
                   .inputs = recurrence_inputs(5),
                   .outputs = {"last"}});
  cases.push_back({.name = "stacked_used",
                   .model = kRecurrence,
                   .inputs = recurrence_inputs(3),
                   .outputs = {"all"}});
  cases.push_back({.name = "no_steps",
                   .model = kRecurrence,
                   .inputs = recurrence_inputs(0),
                   .outputs = {"last", "all"}});
  cases.push_back({.name = "weights_only",
                   .model = kRecurrence,
                   .inputs = recurrence_inputs(4),
                   .outputs = {"last"},
                   .wrt = {"w", "u"}});
  cases.push_back(
      {.name = "gates",
       .model = kGates,
       .inputs = {uniform({2, 3}, -1, 1).named("first"), uniform({2, 3}, -1, 1).named("second"),
                  uniform({4, 2, 3}, -1, 1).named("xs"), uniform({4, 2, 3}, -1, 1).named("zs_in"),
                  uniform({3, 3}, -1, 1).named("u"), uniform({3}, 0.5, 1).named("b")},
       .outputs = {"h", "c", "ys", "zs"}});
  cases.push_back(
      {.name = "axes",
       .model = kAxes,
       .inputs = {uniform({2}, -1, 1).named("h0"), uniform({2, 4, 3}, -1, 1).named("xs"),
                  uniform({2, 4}, 0.5, 1).named("zs"), ints({-1}).named("axis")},
       .outputs = {"last", "ys"}});
  cases.push_back(
      {.name = "exchange",
       .model = kExchange,
       .inputs = {uniform({2}, -1, 1).named("first"), uniform({2}, -1, 1).named("second"),
                  uniform({2}, -1, 1).named("third"), integers({}, 3, 3).named("start"),
                  uniform({5, 2}, -1, 1).named("xs"), int_scalar(1).named("one")},
       .outputs = {"a", "b", "c", "n", "ys"}});
  cases.push_back(
      {.name = "nested",
       .model = kNested,
       .inputs = {uniform({2}, -1, 1).named("h0"), uniform({3, 3, 2}, -1, 1).named("xs"),
                  uniform({2, 2}, -1, 1).named("w")},
       .outputs = {"last", "ys"}});
  for (const bool taken : {true, false}) {
    cases.push_back({.name = taken ? "in_branch_taken" : "in_branch_not_taken",
                     .model = kInBranch,
                     .inputs = {values({taken ? 1.0 : 0.0}, {}, DataType::kBool).named("taken"),
                                uniform({2}, -1, 1).named("h0"), uniform({3, 2}, -1, 1).named("xs"),
                                uniform({2, 2}, -1, 1).named("w")},
                     .outputs = {"y"}});
  }
  cases.push_back({.name = "branch_inside",
                   .model = kBranchInside,
                   .inputs = {uniform({2}, -1, 1).named("h0"), uniform({4, 2}, -1, 1).named("xs"),
                              values({1, 0, 0, 1}, {4}, DataType::kBool).named("choices"),
                              uniform({2, 2}, -1, 1).named("w")},
                   .outputs = {"last", "ys"}});
  cases.push_back(
      {.name = "map",
       .model = kMap,
       .inputs = {uniform({3, 2, 2}, -1, 1).named("xs"), uniform({2, 2}, -1, 1).named("w")},
       .outputs = {"z"}});
  return cases;
}

std::vector<ErrorCase> scan_error_cases() {
  return {
      {.name = "lengths",
       .model = R"([steps] ys = Scan <num_scan_inputs = 2,
                      body = step (float x, float z) => (float y) { y = Add (x, z) }> (xs, zs))",
       .inputs = {uniform({3}, 0, 1).as(DataType::kFloat32).named("xs"),
                  uniform({2}, 0, 1).as(DataType::kFloat32).named("zs")},
       .error = "ShapeError",
       .fragments = {"steps", "scan input 1", "2 steps", "3"}},
      {.name = "too_many_scanned",
       .model = R"([steps] ys = Scan <num_scan_inputs = 2,
                      body = step (float x) => (float y) { y = Neg (x) }> (xs))",
       .inputs = {uniform({3}, 0, 1).as(DataType::kFloat32).named("xs")},
       .error = "ModelError",
       .fragments = {"steps", "num_scan_inputs"}},
  };
}

}  // namespace onnxgrad::ops_test

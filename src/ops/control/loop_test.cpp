#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace loop {

// x <- tanh(x W + b) with a fixed trip count; each x is stacked.
const std::string kCounted = R"(
  last, all = Loop <body = step (int64 i, bool c, $T[R, 3] x)
      => (bool c1, $T[R, 3] next, $T[R, 3] kept) {
    c1 = Identity (c)
    product = MatMul (x, w)
    shifted = Add (product, b)
    next = Tanh (shifted)
    kept = Mul (next, next)
  }> (@))";

// Returns the model text with these operands of the Loop.
std::string with_operands(std::string text, const std::string& operands) {
  return text.replace(text.find("(@)"), 3, "(" + operands + ")");
}

// Stops when a value is large enough, or after the trip count.
const std::string kWhile = R"(
  last, sizes = Loop <body = step (int64 i, bool c, $T[3] x)
      => (bool c1, $T[3] next, $T size) {
    next = Mul (x, w)
    squares = Mul (next, next)
    size = ReduceSum <keepdims = 0> (squares)
    c1 = Less (size, limit)
  }> (@))";

// The iteration number is an operand and selects a row.
const std::string kNumbered = R"(
  last, picked = Loop <body = step (int64 i, bool c, $T[2] x)
      => (bool c1, $T[2] next, $T[2] row) {
    c1 = Identity (c)
    number = CastLike (i, x)
    scaled = Mul (x, number)
    row = Gather <axis = 0> (table, i)
    next = Add (scaled, row)
  }> (@))";

const std::string kNested = R"(
  last = Loop <body = outer (int64 i, bool c, $T[2] x) => (bool c1, $T[2] next) {
    c1 = Identity (c)
    inner_count = Add (i, one)
    next = Loop <body = inner (int64 j, bool d, $T[2] z) => (bool d1, $T[2] z1) {
      d1 = Identity (d)
      product = MatMul (z, w)
      sum = Add (product, x)
      z1 = Sin (sum)
    }> (inner_count, c, x)
  }> (@))";

const std::string kBranch = R"(
  last = Loop <body = step (int64 i, bool c, $T[2] x) => (bool c1, $T[2] next) {
    c1 = Identity (c)
    even = Mod (i, two)
    is_odd = Cast <to = 9> (even)
    next = If (is_odd) <
      then_branch = odd () => ($T[2] then_next) { then_next = MatMul (x, w) },
      else_branch = even_one () => ($T[2] else_next) {
        square = Mul (x, x)
        else_next = Add (square, x)
      }>
  }> (@))";

// The state grows by a row in each iteration.
const std::string kGrowing = R"(
  grown = Loop <body = step (int64 i, bool c, $T[N, 2] rows)
      => (bool c1, $T[M, 2] more) {
    c1 = Identity (c)
    sum = ReduceSum <keepdims = 1> (rows, axis)
    more = Concat <axis = 0> (rows, sum)
  }> (@))";

CaseInput truth(bool value) { return values({value ? 1.0 : 0.0}, {}, DataType::kBool); }

CaseInput number(std::int64_t value) { return integers({}, value, value); }

std::vector<CaseInput> counted_inputs() {
  return {uniform({2, 3}, -1, 1).named("x0"), uniform({3, 3}, -1, 1).named("w"),
          uniform({3}, -1, 1).named("b")};
}

std::vector<CaseInput> with(std::vector<CaseInput> inputs, std::vector<CaseInput> more) {
  inputs.insert(inputs.end(), more.begin(), more.end());
  return inputs;
}

}  // namespace loop

std::vector<OpCase> loop_cases() {
  using namespace loop;  // NOLINT(google-build-using-namespace): this file's own
  std::vector<OpCase> cases;
  const std::string no_shape = "onnxruntime has no shape for what no iteration gives";
  for (const std::int64_t trips : {3, 0}) {
    const std::string suffix = trips == 3 ? "" : "_no_iterations";
    const std::string static_only = trips == 3 ? "" : no_shape;
    cases.push_back({.name = "constant_count" + suffix,
                     .model = with_operands(kCounted, "count, always, x0"),
                     .inputs = with(counted_inputs(), {number(trips).named("count").constant(),
                                                       truth(true).named("always").constant()}),
                     .outputs = {"last", "all"},
                     .static_only = static_only});
    cases.push_back({.name = "fed_count" + suffix,
                     .model = with_operands(kCounted, "count, , x0"),
                     .inputs = with(counted_inputs(), {number(trips).named("count")}),
                     .outputs = {"last", "all"},
                     .static_only = static_only});
  }
  cases.push_back({.name = "empty",
                   .model = with_operands(kCounted, "count, , x0"),
                   .inputs = {uniform({0, 3}, -1, 1).named("x0"), uniform({3, 3}, -1, 1).named("w"),
                              uniform({3}, -1, 1).named("b"), number(2).named("count")},
                   .outputs = {"last", "all"}});
  cases.push_back(
      {.name = "states_only",
       .model = with_operands(kCounted, "count, always, x0"),
       .inputs = with(counted_inputs(), {number(4).named("count"), truth(true).named("always")}),
       .outputs = {"last"}});
  cases.push_back(
      {.name = "stacked_only",
       .model = with_operands(kCounted, "count, always, x0"),
       .inputs = with(counted_inputs(), {number(4).named("count"), truth(true).named("always")}),
       .outputs = {"all"}});
  cases.push_back(
      {.name = "never",
       .model = with_operands(kCounted, "count, always, x0"),
       .inputs = with(counted_inputs(), {number(4).named("count"), truth(false).named("always")}),
       .outputs = {"last", "all"},
       .static_only = no_shape});
  const std::vector<CaseInput> growing = {values({1, 0.5, -1}, {3}).named("x0"),
                                          values({1.5, 1.25, 2}, {3}).named("w"),
                                          values({40}, {}).named("limit")};
  cases.push_back(
      {.name = "early_exit",
       .model = with_operands(kWhile, "count, always, x0"),
       .inputs = with(growing, {number(20).named("count"), truth(true).named("always")}),
       .outputs = {"last", "sizes"},
       .wrt = {"x0", "w"}});
  cases.push_back({.name = "no_count",
                   .model = with_operands(kWhile, ", always, x0"),
                   .inputs = with(growing, {truth(true).named("always")}),
                   .outputs = {"last", "sizes"},
                   .wrt = {"x0", "w"}});
  cases.push_back({.name = "neither",
                   .model = with_operands(kWhile, ", , x0"),
                   .inputs = growing,
                   .outputs = {"last"},
                   .wrt = {"x0", "w"}});
  cases.push_back({.name = "many_iterations",
                   .model = with_operands(kNumbered, "count, , x0"),
                   .inputs = {uniform({2}, -1, 1).named("x0"),
                              uniform({40, 2}, -1, 1).named("table"), number(40).named("count")},
                   .outputs = {"picked"},
                   .wrt = {"table"}});
  cases.push_back(
      {.name = "numbered",
       .model = with_operands(kNumbered, "count, , x0"),
       .inputs = {uniform({2}, -1, 1).named("x0"), uniform({4, 2}, -1, 1).named("table"),
                  number(4).named("count").constant()},
       .outputs = {"last", "picked"}});
  cases.push_back({.name = "nested",
                   .model = with_operands(kNested, "count, always, x0"),
                   .inputs = {uniform({2}, -1, 1).named("x0"), uniform({2, 2}, -1, 1).named("w"),
                              number(3).named("count"), truth(true).named("always"),
                              int_scalar(1).named("one")},
                   .outputs = {"last"}});
  cases.push_back({.name = "branch_inside",
                   .model = with_operands(kBranch, "count, always, x0"),
                   .inputs = {uniform({2}, -1, 1).named("x0"), uniform({2, 2}, -1, 1).named("w"),
                              number(4).named("count"), truth(true).named("always"),
                              int_scalar(2).named("two")},
                   .outputs = {"last"}});
  cases.push_back({.name = "growing_state",
                   .model = with_operands(kGrowing, "count, always, x0"),
                   .inputs = {values({1, 2}, {1, 2}).named("x0"), number(3).named("count"),
                              truth(true).named("always"), ints({0}).named("axis")},
                   .outputs = {"grown"}});
  return cases;
}

std::vector<ErrorCase> loop_error_cases() {
  return {
      {.name = "no_body",
       .model = "[steps] y = Loop (count, , x)",
       .inputs = {integers({}, 1, 1).named("count"),
                  uniform({2}, 0, 1).as(DataType::kFloat32).named("x")},
       .error = "ModelError",
       .fragments = {"steps", "body"}},
  };
}

}  // namespace onnxgrad::ops_test

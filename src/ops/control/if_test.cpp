#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace if_op {

CaseInput condition(bool taken) {
  return values({taken ? 1.0 : 0.0}, {}, DataType::kBool).named("taken");
}

const std::string kTwoFormulas = R"(
  y = If (taken) <
    then_branch = squares () => ($T[2, 3] then_y) { then_y = Mul (x, x) },
    else_branch = products () => ($T[2, 3] else_y) {
      shifted = Add (x, w)
      else_y = Mul (shifted, w)
    }>)";

const std::string kTwoOutputs = R"(
  y, z = If (taken) <
    then_branch = first () => ($T[2, 3] then_y, $T[] then_z) {
      then_y = Exp (x)
      then_z = ReduceSum <keepdims = 0> (then_y)
    },
    else_branch = second () => ($T[2, 3] else_y, $T[] else_z) {
      else_y = Identity (x)
      else_z = ReduceMax <keepdims = 0> (w)
    }>)";

const std::string kNested = R"(
  y = If (taken) <
    then_branch = outer_then () => ($T[2, 3] then_y) {
      half = Mul (x, w)
      then_y = If (again) <
        then_branch = inner_then () => ($T[2, 3] inner_y) { inner_y = Sin (half) },
        else_branch = inner_else () => ($T[2, 3] other_y) { other_y = Mul (half, x) }>
    },
    else_branch = outer_else () => ($T[2, 3] else_y) { else_y = Neg (x) }>)";

// Matrix products and normalizations that the gradient reads are saved, element-wise results are
// not.
const std::string kLayers = R"(
  y = If (taken) <
    then_branch = layer () => ($T[2, 4] then_y) {
      product = MatMul (x, m)
      shifted = Add (product, b)
      then_y = Tanh (shifted)
    },
    else_branch = attention () => ($T[2, 4] else_y) {
      scores = MatMul (x, n)
      shares = Softmax (scores)
      scaled = Mul (shares, shares)
      again = MatMul (scaled, k)
      else_y = Exp (again)
    }>)";

// The shapes fit only in the branch that is taken.
const std::string kMisfit = R"(
  y = If (taken) <
    then_branch = fits () => ($T[2, 3] then_y) { then_y = Mul (x, w) },
    else_branch = misfit () => ($T[2, 3] else_y) {
      shifted = Add (x, long)
      else_y = Mul (shifted, w)
    }>)";

// A constant condition, so that the branch is known.
const std::string kKnown = R"(
  sizes = Shape (x)
  rank = Size (sizes)
  flat = Equal (rank, two)
  h = If (flat) <
    then_branch = known () => ($T[P, Q] then_h) { sum = Add (x, w)  then_h = Tanh (sum) },
    else_branch = other () => ($T[R] else_h) { else_h = Reshape (x, last) }>
  y = MatMul (h, m))";

std::vector<CaseInput> operands(bool taken) {
  return {condition(taken), uniform({2, 3}, -1, 1).named("x"), uniform({3}, 0.5, 1).named("w")};
}

}  // namespace if_op

std::vector<OpCase> if_cases() {
  std::vector<OpCase> cases;
  for (const bool taken : {true, false}) {
    const std::string suffix = taken ? "_then" : "_else";
    cases.push_back({.name = "formulas" + suffix,
                     .model = if_op::kTwoFormulas,
                     .inputs = if_op::operands(taken),
                     .outputs = {"y"}});
    cases.push_back({.name = "two_outputs" + suffix,
                     .model = if_op::kTwoOutputs,
                     .inputs = if_op::operands(taken),
                     .outputs = {"y", "z"}});
    cases.push_back({.name = "one_output_used" + suffix,
                     .model = if_op::kTwoOutputs,
                     .inputs = if_op::operands(taken),
                     .outputs = {"y"}});
    std::vector<CaseInput> nested = if_op::operands(true);
    nested.push_back(if_op::condition(taken).named("again"));
    cases.push_back({.name = "nested" + suffix,
                     .model = if_op::kNested,
                     .inputs = std::move(nested),
                     .outputs = {"y"}});
  }
  for (const bool taken : {true, false}) {
    cases.push_back(
        {.name = taken ? "layers_then" : "layers_else",
         .model = if_op::kLayers,
         .inputs = {if_op::condition(taken), uniform({2, 3}, -1, 1).named("x"),
                    uniform({3, 4}, -1, 1).named("m"), uniform({4}, -1, 1).named("b"),
                    uniform({3, 4}, -1, 1).named("n"), uniform({4, 4}, -1, 1).named("k")},
         .outputs = {"y"}});
  }
  cases.push_back({.name = "after_and_before",
                   .model = "s = Tanh (x)\n" + if_op::kTwoFormulas + "\nr = Mul (y, s)",
                   .inputs = if_op::operands(false),
                   .outputs = {"r"}});
  cases.push_back(
      {.name = "misfit",
       .model = if_op::kMisfit,
       .inputs = {if_op::condition(true), values({1, 2, 3, 4, 5, 6}, {2, 3}).named("x"),
                  values({2, -1, 0.5}, {3}).named("w"), uniform({5}, -1, 1).named("long")},
       .outputs = {"y"},
       .wrt = {"x", "w"},
       .expected = {{2, -2, 1.5, 8, -5, 3}},
       .static_only = "the shapes of both branches could fit",
       .no_oracle = "others refuse the branch that is not taken"});
  cases.push_back({.name = "known",
                   .model = if_op::kKnown,
                   .inputs = {uniform({2, 3}, -1, 1).named("x"), uniform({3}, 0.5, 1).named("w"),
                              uniform({3, 2}, -1, 1).named("m"), int_scalar(2).named("two"),
                              ints({-1}).named("last")},
                   .outputs = {"y"}});
  return cases;
}

std::vector<ErrorCase> if_error_cases() {
  return {
      {.name = "no_branch",
       .model = "[choice] y = If <then_branch = one () => (float z) { z = Relu (x) }> (taken)",
       .inputs = {if_op::condition(true), uniform({}, 0, 1).as(DataType::kFloat32).named("x")},
       .error = "ModelError",
       .fragments = {"choice", "else_branch"}},
  };
}

}  // namespace onnxgrad::ops_test

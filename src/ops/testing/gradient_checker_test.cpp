#include "ops/testing/gradient_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/testing/case_runner.h"

// The checker must detect wrong rules.

namespace onnxgrad::ops_test {
namespace checker {

using ir::GraphBuilder;
using ir::Value;
using opdef::VjpContext;

// Returns the built-in operators with another rule for one of them.
opdef::OpRegistry with_rule(std::string_view op_type, opdef::VjpFn rule) {
  opdef::OpRegistry registry;
  for (const opdef::OpDef* def : builtin_ops().all()) {
    opdef::OpDef copy = *def;
    if (copy.domain.empty() && copy.op_type == op_type) copy.vjp = rule;
    registry.add(std::move(copy));
  }
  return registry;
}

const OpCase kTanh{.name = "tanh", .model = "y = Tanh (x)", .inputs = {uniform({2, 3}, -1, 1)}};
const OpCase kWide{.name = "wide", .model = "y = Tanh (x)", .inputs = {uniform({9, 30}, -1, 1)}};
const OpCase kMul{
    .name = "mul", .model = "y = Mul (a, b)", .inputs = {uniform({3}, 1, 2), uniform({3}, 1, 2)}};

}  // namespace checker

TEST(GradientChecker, AcceptsRightRules) {
  EXPECT_TRUE(check_case_gradient(checker::kTanh).empty());
  EXPECT_TRUE(check_case_gradient(checker::kWide).empty());
  EXPECT_TRUE(check_case_gradient(checker::kMul).empty());
}

TEST(GradientChecker, FindsEveryWrongElement) {
  using namespace checker;
  const auto registry = with_rule("Tanh", [](VjpContext& ctx, GraphBuilder& g) {
    Value* y = ctx.output(0);
    return std::vector<Value*>{g.mul(ctx.cotangent(0), g.sub(g.scalar_like(y, 1), y))};
  });
  const auto differences = check_case_gradient(kTanh, registry);
  ASSERT_EQ(differences.size(), 6u);
  EXPECT_EQ(differences[5].where, "element [1, 2]");
  EXPECT_THAT(differences[0].to_string(),
              ::testing::AllOf(::testing::HasSubstr("rule"), ::testing::HasSubstr("numeric"),
                               ::testing::HasSubstr("absolute"), ::testing::HasSubstr("relative")));
}

TEST(GradientChecker, FindsASlightlyWrongFactor) {
  using namespace checker;
  const opdef::VjpFn rule = [](VjpContext& ctx, GraphBuilder& g) {
    Value* y = ctx.output(0);
    Value* slope = g.sub(g.scalar_like(y, 1.00001), g.mul(y, y));
    return std::vector<Value*>{g.mul(ctx.cotangent(0), slope)};
  };
  EXPECT_FALSE(check_case_gradient(kTanh, with_rule("Tanh", rule)).empty());
  EXPECT_FALSE(check_case_gradient(kWide, with_rule("Tanh", rule)).empty());
}

TEST(GradientChecker, FindsOperandsMixedUp) {
  using namespace checker;
  const auto registry = with_rule("Mul", [](VjpContext& ctx, GraphBuilder& g) {
    Value* dc = ctx.cotangent(0);
    return std::vector<Value*>{g.mul(dc, ctx.input(0)), g.mul(dc, ctx.input(1))};
  });
  EXPECT_EQ(check_case_gradient(kMul, registry).size(), 6u);
}

TEST(GradientChecker, FindsAForgottenInput) {
  using namespace checker;
  const auto registry = with_rule("Mul", [](VjpContext& ctx, GraphBuilder& g) {
    return std::vector<Value*>{g.mul(ctx.cotangent(0), ctx.input(1)), nullptr};
  });
  const auto differences = check_case_gradient(kMul, registry);
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].input, 1u);
}

TEST(GradientChecker, RefusesNanAndAWrongShape) {
  const ScalarFunction sum = [](const std::vector<Tensor>& inputs) {
    double total = 0;
    for (const double number : inputs[0].to_doubles()) total += number;
    return total;
  };
  const Tensor x = Tensor::from(std::vector<double>{1, 2}, Dims{2});
  const std::vector<std::size_t> wrt{0};
  const auto check = [&](std::vector<double> gradient, Dims dims) {
    const std::vector<Tensor> gradients{Tensor::from(gradient, std::move(dims))};
    return check_gradient(sum, {x}, wrt, gradients).size();
  };
  EXPECT_EQ(check({1, 1}, {2}), 0u);
  EXPECT_EQ(check({1, std::nan("")}, {2}), 1u);
  EXPECT_EQ(check({1, 1}, {1, 2}), 1u);
  EXPECT_EQ(check({1}, {1}), 1u);
}

}  // namespace onnxgrad::ops_test

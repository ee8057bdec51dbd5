#include "autodiff/gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "opdef/function_body.h"
#include "ops/builtin.h"

// The engine's own part: activity, accumulation, errors. Values are tested per operator.

namespace onnxgrad::autodiff::gradient_test {
namespace {

using ir::Node;
using ir::Value;

const opdef::OpRegistry& registry() {
  static const opdef::OpRegistry instance = [] {
    opdef::OpRegistry ops;
    ops::register_builtin_ops(ops);
    return ops;
  }();
  return instance;
}

class GradientTest : public testing::Test {
 protected:
  Value* input(const char* name, ir::SymbolicShape shape = {3}) {
    return model_.graph->add_input(name, ir::Type::tensor(DataType::kFloat32, std::move(shape)));
  }
  std::vector<Value*> gradients(Value* output, std::vector<Value*> wrt) {
    const std::vector<Value*> outputs{output};
    const std::vector<Value*> seeds{g_.ones_like(output)};
    return add_vjp(g_, registry(), outputs, seeds, wrt);
  }
  std::int64_t count(std::string_view op_type) {
    return std::ranges::count(model_.graph->nodes, op_type, &Node::op_type);
  }

  ir::Model model_ = [] {
    ir::Model empty;
    empty.set_opset("", ir::kInternalOpset);
    return empty;
  }();
  std::unique_ptr<ir::TypeInferer> inferer_ = onnx_io::make_type_inferer(model_);
  ir::GraphBuilder g_{model_, *model_.graph, *inferer_, registry()};
};

TEST_F(GradientTest, OnlyNodesOnTheWayAreDifferentiated) {
  Value* x = input("x");
  Value* w = input("w");
  Value* y = g_.mul(g_.exp(x), w);  // exp(x) does not depend on w
  Value* unrelated = g_.log(w);
  model_.graph->outputs = {y, unrelated};
  const std::size_t before = model_.graph->nodes.size();
  const auto dw = gradients(y, {w});
  // dw = dy * exp(x): the seed's Expand and one Mul.
  EXPECT_EQ(model_.graph->nodes.size(), before + 2) << ir::to_text(model_);
  EXPECT_EQ(dw[0]->producer->op_type, "Mul");
}

TEST_F(GradientTest, AValueThatIsUsedTwiceGetsTheSum) {
  Value* x = input("x");
  const auto dx = gradients(g_.add(g_.exp(x), g_.log(x)), {x});
  EXPECT_EQ(dx[0]->producer->op_type, "Add");
}

TEST_F(GradientTest, WhatNothingDependsOnGetsZeros) {
  Value* x = input("x");
  Value* w = input("w", {2, 2});
  const auto dw = gradients(g_.exp(x), {w});
  EXPECT_EQ(dw[0]->type.static_dims(), (Dims{2, 2}));
}

TEST_F(GradientTest, BroadcastIsUndoneForSymbolicShapes) {
  Value* x = input("x", {ir::Dim::named("N"), 3});
  Value* row = input("row", {3});
  Value* maybe = input("maybe", {ir::Dim::named("M"), 3});
  const auto d = gradients(g_.add(g_.add(x, row), maybe), {x, row, maybe});
  EXPECT_EQ(d[1]->type.to_string(), "float32[3]");
  EXPECT_EQ(d[2]->type.to_string(), "float32[M, 3]");
  EXPECT_GE(count("NonZero"), 1);  // M may be 1: the axes are found at run time
}

// Gradients of 16-bit values are float32 on the way and take the type of the value at the end.
TEST_F(GradientTest, F16AreDifferentiatedInFloat32) {
  for (const DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
    Value* x = model_.graph->add_input("x", ir::Type::tensor(half, ir::SymbolicShape{4, 3}));
    Value* w = model_.graph->add_input("w", ir::Type::tensor(half, ir::SymbolicShape{3, 2}));
    Value* b = model_.graph->add_input("b", ir::Type::tensor(half, ir::SymbolicShape{2}));
    Value* y = g_.exp(g_.add(g_.matmul(x, w), b));
    const std::size_t before = model_.graph->nodes.size();
    const auto d = gradients(y, {w, b});
    EXPECT_EQ(d[0]->dtype(), half);
    EXPECT_EQ(d[1]->dtype(), half);
    for (std::size_t n = before; n < model_.graph->nodes.size(); ++n) {
      const Node& node = *model_.graph->nodes[n];
      const Value* result = node.outputs[0];
      const bool is_seed = node.op_type == "Expand";  // has the type of y
      const bool is_end = result == d[0] || result == d[1];
      if (is_floating(result->dtype()) && !is_end && !is_seed) {
        EXPECT_EQ(result->dtype(), DataType::kFloat32) << ir::to_text(model_);
      }
    }
    EXPECT_EQ(ir::find_fault(*model_.graph), "");
  }
}

// Shapes are taken of the 16-bit values: no Cast is made for them.
TEST_F(GradientTest, NoCastIsMadeForAShape) {
  const auto like = [&](const char* name, ir::SymbolicShape shape) {
    return model_.graph->add_input(name, ir::Type::tensor(DataType::kFloat16, std::move(shape)));
  };
  Value* x = like("x", {ir::Dim::named("N"), 3});
  Value* maybe = like("maybe", {ir::Dim::named("M"), 3});
  gradients(g_.add(x, maybe), {x, maybe});
  for (const Node* node : model_.graph->nodes) {
    if (node->op_type != "Cast") continue;
    const bool is_border =
        node->inputs[0]->producer != nullptr;  // Cast of the seed or of a gradient
    EXPECT_TRUE(is_border) << ir::to_text(model_);
  }
}

TEST_F(GradientTest, EveryNodeWithoutRuleIsNamed) {
  Value* x = input("x");
  const auto unknown = [&](Value* in, const char* name) {
    Node* node = model_.graph->add_node("Frob", {in}, 1, {}, "my.domain", name);
    node->name = name;
    node->outputs[0]->type = in->type;
    return node->outputs[0];
  };
  Value* first = unknown(x, "first");
  Value* y = g_.add(first, unknown(g_.exp(x), "second"));
  unknown(y, "off_the_path");
  const std::vector<Value*> outputs{y};
  const std::vector<Value*> wrt{x};
  const auto missing = find_missing_gradients(model_, registry(), outputs, wrt);
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[0].node, "first");
  EXPECT_EQ(missing[1].node, "second");
  try {
    gradients(y, {x});
    FAIL() << "a gradient was made up";
  } catch (const GradientError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'first'"), std::string::npos) << text;
    EXPECT_NE(text.find("'second'"), std::string::npos) << text;
    EXPECT_EQ(text.find("off_the_path"), std::string::npos) << text;
    EXPECT_LE(std::ranges::count(text, '\n'), 5) << text;
  }
}

// The built-in operators with another record of Mul.
opdef::OpRegistry with_mul(std::vector<int> differentiable) {
  opdef::OpRegistry ops;
  for (const opdef::OpDef* def : registry().all()) {
    opdef::OpDef copy = *def;
    if (copy.domain.empty() && copy.op_type == "Mul") {
      copy.differentiable_inputs = differentiable;
    }
    ops.add(std::move(copy));
  }
  return ops;
}

TEST_F(GradientTest, AnInputThatTheRuleLeavesOutIsRefused) {
  const opdef::OpRegistry ops = with_mul({0});
  Value* x = input("x");
  Value* w = input("w");
  const std::vector<Value*> outputs{g_.mul(x, w)};
  outputs[0]->producer->name = "product";
  const std::vector<Value*> seeds{g_.ones_like(outputs[0])};
  EXPECT_NE(add_vjp(g_, ops, outputs, seeds, std::vector{x})[0], nullptr);
  try {
    add_vjp(g_, ops, outputs, seeds, std::vector{x, w});
    FAIL() << "a gradient of zero was made up";
  } catch (const GradientError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("Mul 'product' (input 1: the operator's gradient rule does not cover 'w'"),
              std::string::npos)
        << text;
  }
}

// f(x) = exp(x) * x as a model_ function without a rule of its own.
TEST_F(GradientTest, FunctionsAreDifferentiatedThroughTheirBodies) {
  ir::Function f;
  f.domain = "my.domain";
  f.name = "Frob";
  f.body = std::make_shared<ir::Graph>();
  Value* formal = f.body->add_input("a", {});
  Value* e = f.body->add_node("Exp", {formal}, 1)->outputs[0];
  f.body->outputs = {f.body->add_node("Mul", {e, formal}, 1)->outputs[0]};
  f.opset_imports = {{"", ir::kInternalOpset}};
  model_.functions.push_back(std::move(f));
  model_.set_opset("my.domain", 1);
  Value* x = input("x");
  Value* y = g_.op("Frob", {x}, {}, "my.domain");
  model_.graph->outputs = {y};
  const auto dx = gradients(y, {x});
  EXPECT_EQ(count("Frob"), 0);
  EXPECT_EQ(dx[0]->type.to_string(), "float32[3]");
  EXPECT_EQ(model_.graph->outputs[0], y);
}

// choose(c, x) = c ? -2 x : exp(x), written by the builder of function bodies.
TEST_F(GradientTest, FunctionBodiesMayHaveSubgraphs) {
  opdef::FunctionBody f("Choose", "k", {});
  Value* condition = f.input("condition");
  Value* formal = f.input("x");
  const auto branch = [&](const char* name, bool is_first) {
    return f.subgraph(name, [&](ir::GraphBuilder& inner) {
      return std::vector{is_first ? inner.neg(inner.scale(formal, 2)) : inner.exp(formal)};
    });
  };
  Value* y =
      f.op("If", {condition},
           {{"then_branch", branch("first", true)}, {"else_branch", branch("second", false)}});
  ir::Function function = std::move(f).finish({y});
  function.domain = "my.domain";
  function.name = "Choose";
  for (const ir::Graph* body : function.body->nodes.back()->subgraphs()) {
    EXPECT_TRUE(body->initializers.empty());  // constants are nodes in functions
  }
  model_.functions.push_back(std::move(function));
  model_.set_opset("my.domain", 1);
  Value* c = model_.graph->add_input("c", ir::Type::tensor(DataType::kBool, Dims{}));
  Value* x = input("x");
  Value* result = g_.op("Choose", {c, x}, {}, "my.domain");
  result->type = x->type;
  model_.graph->outputs = {result};
  const auto dx = gradients(result, {x});
  EXPECT_EQ(count("If"), 2);
  EXPECT_EQ(dx[0]->type.to_string(), "float32[3]");
  EXPECT_EQ(ir::find_fault(*model_.graph), "");
}

// y = c ? tanh(x w) : exp(x) * 2. The product is an output of the If for the gradient to read.
TEST_F(GradientTest, WhatTheGradientOfABranchReadsIsSavedByTheBranch) {
  Value* c = model_.graph->add_input("c", ir::Type::tensor(DataType::kBool, Dims{}));
  Value* x = input("x", {ir::Dim::named("N"), 3});
  Value* w = input("w", {3, 3});
  const auto first = g_.subgraph("first", [&](ir::GraphBuilder& inner) {
    return std::vector{inner.op("Tanh", {inner.matmul(x, w)})};
  });
  const auto second = g_.subgraph(
      "second", [&](ir::GraphBuilder& inner) { return std::vector{inner.scale(inner.exp(x), 2)}; });
  Value* y = g_.op("If", {c}, {{"then_branch", first}, {"else_branch", second}});
  Node* primal = y->producer;
  const auto gradient = gradients(y, {x, w});
  ASSERT_EQ(primal->outputs.size(), 2U) << ir::to_text(model_);
  EXPECT_EQ(primal->outputs[1]->type.to_string(), "float32[N, 3]");
  EXPECT_EQ(first->outputs[1]->producer->op_type, "MatMul");
  EXPECT_EQ(second->outputs.size(), 2U);
  EXPECT_EQ(count("If"), 2);
  const ir::Graph& backward =
      *std::get<ir::GraphPtr>(*gradient[0]->producer->find_attribute("then_branch"));
  // dx = dp w' and dw = x' dp, and no x w: tanh alone is computed again.
  EXPECT_EQ(std::ranges::count(backward.nodes, "Tanh", &Node::op_type), 1);
  EXPECT_EQ(std::ranges::count_if(
                backward.nodes,
                [&](const Node* node) { return node->inputs == std::vector<Value*>{x, w}; }),
            0)
      << ir::to_text(model_);
  EXPECT_EQ(ir::find_fault(*model_.graph), "");
}

TEST_F(GradientTest, GradientsOfGradientsAreOrdinaryGradients) {
  Value* x = input("x");
  const auto first = gradients(g_.op("Tanh", {x}), {x});
  const auto second = gradients(first[0], {x});
  EXPECT_EQ(second[0]->type.to_string(), "float32[3]");
}

TEST_F(GradientTest, ALongChainNeedsNoStack) {
  Value* x = input("x");
  Value* y = x;
  for (int i = 0; i < 20000; ++i) y = g_.neg(y);
  const auto dx = gradients(y, {x});
  EXPECT_NE(dx[0], nullptr);
}

}  // namespace
}  // namespace onnxgrad::autodiff::gradient_test

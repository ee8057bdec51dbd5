#include "ir/pattern.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "ir/uses.h"
#include "onnxgrad/error.h"

namespace onnxgrad::ir::pattern_test {
namespace {

bool is_identity(const Node& node) { return is_op(&node, "Identity"); }

class PatternTest : public testing::Test {
 protected:
  Value* input(const char* name) { return graph_.add_input(name, Type{}); }
  Value* add(const char* op_type, std::vector<Value*> inputs) {
    return graph_.add_node(op_type, std::move(inputs), 1)->outputs[0];
  }
  Value* constant(float number) { return graph_.add_initializer("c", Tensor::scalar(number)); }

  Graph graph_;
};

TEST_F(PatternTest, OperandsComeInAnyOrderAndIdentitiesAreLookedThrough) {
  Value* x = input("x");
  Value* one = constant(1);
  const Pattern pattern = in_any_order("Add", op("Exp", {capture()}), number(1));
  EXPECT_EQ(match(pattern, add("Add", {add("Exp", {x}), one}), is_identity), x);
  Value* behind = add("Identity", {add("Exp", {x})});
  EXPECT_EQ(match(pattern, add("Identity", {add("Add", {one, behind})}), is_identity), x);
  EXPECT_EQ(match(pattern, add("Add", {add("Exp", {x}), constant(2)}), is_identity), nullptr);
  EXPECT_EQ(match(pattern, add("Sub", {add("Exp", {x}), one}), is_identity), nullptr);
  EXPECT_EQ(match(pattern, x, is_identity), nullptr);
  EXPECT_EQ(match(pattern, nullptr, is_identity), nullptr);
}

TEST_F(PatternTest, ACaptureIsOneValueWhereverItStands) {
  Value* x = input("x");
  Value* y = input("y");
  const Pattern pattern = op("Div", {capture(), op("Abs", {capture()})});
  EXPECT_EQ(match(pattern, add("Div", {x, add("Abs", {x})}), is_identity), x);
  EXPECT_EQ(match(pattern, add("Div", {x, add("Abs", {add("Identity", {x})})}), is_identity), x);
  EXPECT_EQ(match(pattern, add("Div", {x, add("Abs", {y})}), is_identity), nullptr);
}

// The first order binds the capture to the wrong operand before it fails.
TEST_F(PatternTest, WhatDidNotMatchLeavesNoTrace) {
  Value* x = input("x");
  const Pattern pattern = in_any_order("Mul", capture(), number(-1));
  EXPECT_EQ(match(pattern, add("Mul", {constant(-1), x}), is_identity), x);
  const Pattern either =
      one_of({op("Sub", {capture(), number(3)}), op("Sub", {number(0), capture()})});
  EXPECT_EQ(match(either, add("Sub", {constant(0), x}), is_identity), x);
}

TEST_F(PatternTest, FurtherConditionsAreOfTheNode) {
  Value* x = input("x");
  const Pattern pattern =
      where(op("Concat", {capture()}), [](const Node& node) { return node.inputs.size() == 1; });
  EXPECT_EQ(match(pattern, add("Concat", {x}), is_identity), x);
  EXPECT_EQ(match(pattern, add("Concat", {x, x}), is_identity), nullptr);
}

TEST(Uses, CapturedValuesAndOutputsCount) {
  Graph graph;
  Value* x = graph.add_input("x", Type{});
  Value* condition = graph.add_input("condition", Type{});
  Node* neg = graph.add_node("Neg", {x}, 1);
  auto branch = std::make_shared<Graph>(graph.names_ptr(), &graph);
  Node* inner = branch->add_node("Add", {x, neg->outputs[0]}, 1);
  branch->outputs = {inner->outputs[0]};
  Node* choice =
      graph.add_node("If", {condition}, 1, {{.name = "then_branch", .value = GraphPtr(branch)}});
  graph.outputs = {choice->outputs[0]};

  const Uses uses(graph);
  ASSERT_EQ(uses.count(x), 2U);
  EXPECT_EQ(uses.of(x)[0].node, neg);
  EXPECT_EQ(uses.of(x)[1].node, inner);
  EXPECT_EQ(uses.of(x)[1].input, 0);
  EXPECT_EQ(uses.first_reader(x), neg);
  EXPECT_EQ(uses.only_reader(x), nullptr);
  EXPECT_EQ(uses.count(neg->outputs[0]), 1U);
  EXPECT_EQ(uses.only_reader(neg->outputs[0]), nullptr);  // the reader is in a subgraph
  EXPECT_EQ(uses.only_reader(condition), choice);
  ASSERT_EQ(uses.count(choice->outputs[0]), 1U);
  EXPECT_EQ(uses.of(choice->outputs[0])[0].node, nullptr);
  EXPECT_EQ(uses.count(graph.add_input("unused", Type{})), 0U);
}

TEST(Graph, ANodeIsInsertedAtAPlace) {
  Graph graph;
  Value* x = graph.add_input("x", Type{});
  Node* first = graph.add_node("Neg", {x}, 1);
  Node* last = graph.add_node("Exp", {first->outputs[0]}, 1);
  graph.outputs = {last->outputs[0]};
  Value* between = graph.add_value("between");
  const Node* added = graph.insert_after(first, "Abs", {first->outputs[0]}, {between},
                                         {{.name = "axis", .value = std::int64_t{1}}});
  last->inputs = {between};
  ASSERT_EQ(graph.nodes.size(), 3U);
  EXPECT_EQ(graph.nodes[1], added);
  EXPECT_EQ(between->producer, added);
  EXPECT_EQ(added->int_attribute("axis"), 1);
  EXPECT_THROW(added->int_attribute("keepdims"), InternalError);
  EXPECT_EQ(find_fault(graph), "");
}

}  // namespace
}  // namespace onnxgrad::ir::pattern_test

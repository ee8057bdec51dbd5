#include "onnx/inference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/registry.h"

namespace onnxgrad::onnx_io::inference_test {
namespace {

using ir::Dim;
using ir::Type;
using ir::Value;

class InferenceTest : public testing::Test {
 protected:
  Value* input(const std::string& name, DataType dtype, ir::SymbolicShape shape) {
    return model_.graph->add_input(name, Type::tensor(dtype, std::move(shape)));
  }
  Value* floats(const std::string& name, ir::SymbolicShape shape) {
    return input(name, DataType::kFloat32, std::move(shape));
  }
  static std::string text(const Value* value) { return value->type.to_string(); }

  ir::Model model_;
  opdef::OpRegistry registry_;
  std::unique_ptr<ir::TypeInferer> inferer_ = make_type_inferer(model_);
  ir::GraphBuilder g_{model_, *model_.graph, *inferer_, registry_};
};

TEST_F(InferenceTest, KeepsSymbolsThroughAnMlp) {
  Value* x = floats("x", {Dim::named("N"), 4});
  Value* w = g_.constant(Tensor::zeros(DataType::kFloat32, {4, 10}), "w");
  Value* y = g_.op("Relu", {g_.add(g_.matmul(x, w), w)});
  EXPECT_EQ(text(g_.matmul(x, w)), "float32[N, 10]");
  EXPECT_EQ(y->dtype(), DataType::kFloat32);
}

TEST_F(InferenceTest, FollowsShapesThroughShapeArithmetic) {
  Value* x = floats("x", {Dim::named("N"), 3, 5});
  Value* shape = g_.shape_of(x);
  Value* batch = g_.gather(shape, g_.ints({0}), 0);
  Value* target = g_.concat({batch, g_.ints({15})}, 0);
  EXPECT_EQ(text(g_.reshape(x, target)), "float32[N, 15]");
  // Elements that are all known work where an operator wants a constant.
  Value* known = g_.gather(shape, g_.ints({1, 2}), 0);
  EXPECT_EQ(text(g_.op("ConstantOfShape", {known})), "float32[3, 5]");
}

// As PyTorch's older exporter writes x.unflatten(-1, ...): the end of a Slice is -1 modulo the
// rank.
TEST_F(InferenceTest, FollowsShapesThroughQuotients) {
  Value* x = floats("x", {Dim::named("N"), 3, 12});
  Value* end = g_.op("Mod", {g_.ints({-1}), g_.ints({3})});
  Value* kept = g_.op("Slice", {g_.shape_of(x), g_.ints({0}), end});
  Value* half = g_.op("Div", {g_.ints({13, -7}), g_.ints({2})});
  EXPECT_EQ(text(g_.reshape(x, g_.concat({kept, g_.ints({4, 3})}, 0))), "float32[N, 3, 4, 3]");
  EXPECT_EQ(text(g_.op("ConstantOfShape",
                       {g_.op("Mul", {g_.op("Mod", {half, g_.ints({-4})}), g_.ints({-1})})})),
            "float32[2, 3]");
  Value* by_zero = g_.op("Mod", {g_.ints({2, 5}), g_.ints({0, 3})});
  EXPECT_EQ(text(g_.op("ConstantOfShape", {by_zero})), "float32[?, 2]");
}

TEST_F(InferenceTest, FollowsShapesThroughSplit) {
  Value* x = floats("x", {Dim::named("N"), 3, 5, 7});
  Value* shape = g_.shape_of(x);
  const auto halves = g_.ops("Split", {shape}, 2, {{"num_outputs", std::int64_t{2}}});
  EXPECT_EQ(text(g_.op("ConstantOfShape", {halves[0]})), "float32[N, 3]");
  EXPECT_EQ(text(g_.op("ConstantOfShape", {halves[1]})), "float32[5, 7]");
  const auto parts = g_.ops("Split", {shape, g_.ints({1, 0, 3})}, 3);
  EXPECT_EQ(text(g_.op("ConstantOfShape", {parts[1]})), "float32[]");
  EXPECT_EQ(text(g_.op("ConstantOfShape", {parts[2]})), "float32[3, 5, 7]");
  const auto uneven = g_.ops("Split", {shape}, 3, {{"num_outputs", std::int64_t{3}}});
  EXPECT_EQ(text(g_.op("ConstantOfShape", {uneven[1]})), "float32[5, 7]");
  EXPECT_EQ(text(g_.op("ConstantOfShape", {uneven[2]})), "float32[]");
}

TEST_F(InferenceTest, NamesNodeAndInputsOfAMismatch) {
  Value* x = floats("x", {32, 10});
  Value* w = floats("w", {12, 4});
  try {
    g_.matmul(x, w);
    FAIL() << "no exception";
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("MatMul"));
    EXPECT_THAT(error.what(), testing::HasSubstr("'x' float32[32, 10], 'w' float32[12, 4]"));
  }
}

TEST_F(InferenceTest, RefusesElementTypesAndCounts) {
  Value* x = floats("x", {3});
  Value* i = input("i", DataType::kInt64, {3});
  EXPECT_THROW(g_.add(x, i), ModelError);
  EXPECT_THROW(g_.op("Sqrt", {i}), ModelError);
  EXPECT_THROW(g_.op("Add", {x}), ModelError);
  EXPECT_THROW(g_.ops("Relu", {x}, 2), ModelError);
  EXPECT_THROW(g_.op("Where", {nullptr, x, x}), ModelError);
  try {
    g_.op("Rellu", {x});
    FAIL() << "no exception";
  } catch (const UnsupportedOperatorError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("Did you mean 'Relu'"));
  }
}

TEST_F(InferenceTest, RefusesShapesThatOnnxLetsPass) {
  Value* image = floats("image", {1, 4, 5, 5});
  const ir::Attribute two_groups = {.name = "group", .value = std::int64_t{2}};
  EXPECT_NO_THROW(g_.op("Conv", {image, floats("w", {6, 4, 3, 3})}));
  EXPECT_NO_THROW(g_.op("Conv", {image, floats("w", {6, 2, 3, 3})}, {two_groups}));
  EXPECT_THROW(g_.op("Conv", {image, floats("w", {6, 3, 3, 3})}), ShapeError);
  EXPECT_THROW(g_.op("Conv", {image, floats("w", {5, 2, 3, 3})}, {two_groups}), ShapeError);
  EXPECT_THROW(g_.op("Conv", {image, floats("w", {6, 4, 3, 3}), floats("b", {5})}), ShapeError);
  EXPECT_NO_THROW(g_.op("ConvTranspose", {image, floats("w", {4, 3, 3, 3}), floats("b", {3})}));
  EXPECT_THROW(g_.op("ConvTranspose", {image, floats("w", {3, 4, 3, 3})}), ShapeError);
  EXPECT_THROW(g_.op("Conv", {image, floats("w", {6, 4, 3, 3})},
                     {{.name = "kernel_shape", .value = std::vector<std::int64_t>{3, 7}}}),
               ShapeError);
  EXPECT_THROW(g_.op("Conv", {image, floats("w", {6, 4, 3})}), ShapeError);
  EXPECT_THROW(g_.op("Conv", {floats("low", {1, 4, 2, 5}), floats("w", {6, 4, 3, 3})},
                     {{.name = "strides", .value = std::vector<std::int64_t>{2, 1}}}),
               ShapeError);
  Value* rows = floats("rows", {2, 3});
  EXPECT_THROW(
      g_.op("Transpose", {rows}, {{.name = "perm", .value = std::vector<std::int64_t>{0, 0}}}),
      ModelError);
  Value* labels = input("labels", DataType::kInt64, {2});
  EXPECT_NO_THROW(g_.op("SoftmaxCrossEntropyLoss", {rows, labels, floats("weights", {3})}));
  EXPECT_THROW(g_.op("SoftmaxCrossEntropyLoss", {rows, labels, floats("weights", {2})}),
               ShapeError);
  EXPECT_THROW(g_.op("SoftmaxCrossEntropyLoss", {rows, input("columns", DataType::kInt64, {2, 3})}),
               ShapeError);
  Value* matrix = floats("matrix", {3, 4});
  EXPECT_NO_THROW(g_.op("Gemm", {rows, matrix, floats("c", {4})}));
  EXPECT_THROW(g_.op("Gemm", {rows, matrix, floats("c", {3})}), ShapeError);
  EXPECT_THROW(g_.op("Gemm", {rows, matrix, floats("c", {1, 2, 4})}), ShapeError);
  EXPECT_THROW(g_.op("PRelu", {rows, floats("slope", {2})}), ShapeError);
  EXPECT_NO_THROW(g_.op("Clip", {rows, floats("low", {}), floats("high", {1})}));
  EXPECT_THROW(g_.op("Clip", {rows, floats("lows", {2, 1})}), ShapeError);
  EXPECT_NO_THROW(g_.op("LayerNormalization", {rows, floats("scale", {3})}));
  EXPECT_THROW(g_.op("LayerNormalization", {rows, floats("scale", {2})}), ShapeError);
  EXPECT_THROW(g_.op("LayerNormalization", {rows, floats("scale", {3}), floats("shift", {4})}),
               ShapeError);
  EXPECT_THROW(g_.op("InstanceNormalization", {image, floats("scale", {3}), floats("shift", {4})}),
               ShapeError);
  EXPECT_THROW(g_.reshape(rows, {7}), ShapeError);
  EXPECT_NO_THROW(g_.reshape(rows, {-1}));
}

TEST_F(InferenceTest, UnknownInputsGiveWhatTheSchemaSays) {
  Value* unknown = model_.graph->add_input("u", {});
  EXPECT_EQ(text(g_.shape_of(unknown)), "int64[...]");
  Value* x = floats("x", {2, 2});
  EXPECT_EQ(g_.add(x, unknown)->dtype(), DataType::kFloat32);
}

TEST_F(InferenceTest, FusedAndForeignNodesAreLeftAlone) {
  Value* x = floats("x", {2});
  Value* fused = g_.op("Elementwise", {x}, {}, ir::kFusedDomain);
  EXPECT_EQ(fused->type.kind, Type::Kind::kUnknown);
  Value* foreign = g_.op("Anything", {x}, {}, "com.example");
  EXPECT_EQ(foreign->type.kind, Type::Kind::kUnknown);
}

// y = x + Expand(s, Shape(x)) as a function with an attribute that its body reads.
ir::Function make_function() {
  ir::Function function;
  function.domain = "local";
  function.name = "AddAndConcat";
  function.body = std::make_shared<ir::Graph>();
  ir::Graph& body = *function.body;
  Value* x = body.add_input("x", {});
  Value* shape = body.add_input("shape", {});
  ir::Node* expand = body.add_node("Expand", {x, shape}, 1);
  ir::Node* concat =
      body.add_node("Concat", {expand->outputs[0], expand->outputs[0]}, 1,
                    {{.name = "axis", .value = ir::AttributeRef{.name = "axis", .type = 2}}});
  body.outputs = {concat->outputs[0]};
  function.attribute_defaults = {{.name = "axis", .value = std::int64_t{0}}};
  return function;
}

TEST_F(InferenceTest, GoesThroughFunctionBodies) {
  model_.functions.push_back(make_function());
  Value* x = floats("x", {1, 3});
  Value* like = floats("like", {Dim::named("N"), 3});
  const auto call = [&](Value* shape, std::vector<ir::Attribute> attributes) {
    return text(g_.op("AddAndConcat", {x, shape}, std::move(attributes), "local"));
  };
  EXPECT_EQ(call(g_.shape_of(like), {{.name = "axis", .value = std::int64_t{1}}}), "float32[N, 6]");
  EXPECT_EQ(call(g_.ints({4, 3}), {}), "float32[8, 3]");
  EXPECT_EQ(call(g_.ints({5, 3}), {}), "float32[10, 3]");
  EXPECT_EQ(call(g_.ints({5, 3}), {}), "float32[10, 3]");
}

TEST_F(InferenceTest, GoesThroughTheBodiesThatOnnxDefines) {
  Value* x = floats("x", {Dim::named("N"), 6, 5});
  Value* w = floats("w", {6});
  Value* y =
      g_.op("GroupNormalization", {x, w, w}, {{.name = "num_groups", .value = std::int64_t{3}}});
  EXPECT_EQ(text(y), "float32[N, 6, 5]");
}

TEST_F(InferenceTest, RecursionIsBounded) {
  ir::Function function;
  function.domain = "local";
  function.name = "Again";
  function.body = std::make_shared<ir::Graph>();
  Value* x = function.body->add_input("x", {});
  ir::Node* call = function.body->add_node("Again", {x}, 1, {}, "local");
  function.body->outputs = {call->outputs[0]};
  model_.functions.push_back(function);
  EXPECT_THROW(g_.op("Again", {floats("x", {1})}, {}, "local"), ModelError);
}

std::shared_ptr<ir::Graph> branch_of(ir::GraphBuilder& g, Value* captured, std::int64_t axis) {
  auto branch = std::make_shared<ir::Graph>(g.graph().names_ptr(), &g.graph());
  ir::Node* node =
      branch->add_node("Concat", {captured, captured}, 1, {{.name = "axis", .value = axis}});
  branch->outputs = {node->outputs[0]};
  return branch;
}

TEST_F(InferenceTest, IfGivesWhatBothBranchesAgreeOn) {
  Value* x = floats("x", {2, 3});
  Value* condition = input("c", DataType::kBool, {});
  Value* y = g_.op("If", {condition},
                   {{.name = "then_branch", .value = branch_of(g_, x, 0)},
                    {.name = "else_branch", .value = branch_of(g_, x, 0)}});
  EXPECT_EQ(text(y), "float32[4, 3]");
  Value* z = g_.op("If", {condition},
                   {{.name = "then_branch", .value = branch_of(g_, x, 0)},
                    {.name = "else_branch", .value = branch_of(g_, x, 1)}});
  EXPECT_EQ(text(z), "float32[?, ?]");
  // A declaration cannot be right for both.
  z->type = Type::tensor(DataType::kFloat32, Dims{4, 3});
  inferer_->infer(*z->producer);
  EXPECT_EQ(text(z), "float32[?, ?]");
}

// state' = op(state, captured); scan output = state.
std::shared_ptr<ir::Graph> loop_body(ir::GraphBuilder& g, std::string_view op_type, Value* captured,
                                     std::vector<ir::Attribute> attributes) {
  auto body = std::make_shared<ir::Graph>(g.graph().names_ptr(), &g.graph());
  body->add_input("iteration", {});
  Value* condition = body->add_input("condition", {});
  Value* state = body->add_input("state", {});
  ir::Node* kept = body->add_node("Identity", {condition}, 1);
  ir::Node* next = body->add_node(op_type, {state, captured}, 1, std::move(attributes));
  ir::Node* emitted = body->add_node("Identity", {state}, 1);
  body->outputs = {kept->outputs[0], next->outputs[0], emitted->outputs[0]};
  return body;
}

TEST_F(InferenceTest, LoopStatesKeepWhatNoIterationChanges) {
  Value* x = floats("x", {2, 3});
  Value* trips = input("n", DataType::kInt64, {});
  const auto loop = [&](std::shared_ptr<ir::Graph> body) {
    return g_.ops("Loop", {trips, nullptr, x}, 2, {{.name = "body", .value = std::move(body)}});
  };
  const auto same = loop(loop_body(g_, "Add", x, {}));
  EXPECT_EQ(text(same[0]), "float32[2, 3]");
  EXPECT_EQ(text(same[1]), "float32[?, 2, 3]");
  const auto grows = loop(loop_body(g_, "Concat", x, {{.name = "axis", .value = std::int64_t{0}}}));
  EXPECT_EQ(text(grows[0]), "float32[?, 3]");
  EXPECT_EQ(text(grows[1]), "float32[?, ?, 3]");
}

TEST_F(InferenceTest, ScanRemovesAndAddsAxes) {
  auto body = std::make_shared<ir::Graph>(model_.graph->names_ptr(), model_.graph.get());
  Value* state = body->add_input("state", {});
  Value* element = body->add_input("element", {});
  ir::Node* sum = body->add_node("Add", {state, element}, 1);
  ir::Node* emitted = body->add_node("Unsqueeze", {sum->outputs[0], g_.ints({0})}, 1);
  body->outputs = {sum->outputs[0], emitted->outputs[0]};
  const auto results =
      g_.ops("Scan", {floats("s", {3}), floats("x", {3, Dim::named("T")})}, 2,
             {{.name = "body", .value = body},
              {.name = "num_scan_inputs", .value = std::int64_t{1}},
              {.name = "scan_input_axes", .value = std::vector<std::int64_t>{-1}},
              {.name = "scan_output_axes", .value = std::vector<std::int64_t>{1}}});
  EXPECT_EQ(text(results[0]), "float32[3]");
  EXPECT_EQ(text(results[1]), "float32[1, T, 3]");
}

// Plans infer everything again for concrete shapes: 60 nodes stay below a millisecond.

}  // namespace
}  // namespace onnxgrad::onnx_io::inference_test

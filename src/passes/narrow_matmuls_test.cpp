#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "opdef/activation.h"
#include "opdef/attention.h"
#include "opdef/fused.h"
#include "opdef/fused_normalization.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// The passes that undo Casts of mixed precision: what a plan makes of
// train/precision/precision.cpp's graphs.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

class MixedPrecisionPassesTest : public testing::Test {
 protected:
  Value* input(const char* name, Dims dims, DataType dtype = DataType::kFloat32) {
    return graph().add_input(name, ir::Type::tensor(dtype, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }
  PassContext context() {
    PassContext context = bench_.context();
    context.has_kernel = [](const Node& /*node*/) { return true; };
    return context;
  }
  Value* f16_of(Value* x) { return g_.cast(x, DataType::kBfloat16); }
  Value* wide(Value* half) { return g_.cast(half, DataType::kFloat32); }
  Value* rounded(Value* x) { return wide(f16_of(x)); }

  std::vector<std::string> op_types() {
    std::vector<std::string> types;
    for (const Node* node : graph().nodes) types.push_back(node->op_type);
    return types;
  }
  const Node* find(std::string_view op_type) {
    const auto found = std::ranges::find(graph().nodes, op_type, &Node::op_type);
    return found == graph().nodes.end() ? nullptr : *found;
  }
  void run(bool (*pass)(ir::Graph&, const PassContext&)) {
    fold_constants(graph(), bench_.context());
    EXPECT_TRUE(pass(graph(), context()));
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(pass(graph(), context()));
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
};

TEST_F(MixedPrecisionPassesTest, ProductsReadAndWriteF16) {
  Value* x = input("x", {4, 8}, DataType::kBfloat16);
  Value* w = input("w", {8, 2}, DataType::kBfloat16);
  graph().outputs = {f16_of(g_.matmul(wide(x), wide(w)))};
  run(narrow_matmuls);
  EXPECT_EQ(op_types(), std::vector<std::string>{"MatMul"});
  EXPECT_EQ(graph().nodes[0]->inputs, (std::vector<Value*>{x, w}));
  EXPECT_EQ(graph().nodes[0]->outputs[0]->dtype(), DataType::kBfloat16);
}

TEST_F(MixedPrecisionPassesTest, AWeightStaysFloat32AndIsRoundedAsItIsPacked) {
  Value* x = input("x", {4, 8}, DataType::kBfloat16);
  Value* w = input("w", {8, 2});
  graph().outputs = {g_.matmul(wide(x), rounded(w))};
  fold_constants(graph(), bench_.context());
  fuse_gemm(graph(), context());
  EXPECT_TRUE(narrow_matmuls(graph(), context()));
  EXPECT_EQ(op_types(), std::vector<std::string>{std::string(opdef::kGemm)});
  EXPECT_EQ(graph().nodes[0]->inputs[0], x);
  EXPECT_EQ(graph().nodes[0]->inputs[1], w);
}

TEST_F(MixedPrecisionPassesTest, AResultThatIsReadInFloat32StaysFloat32) {
  Value* x = input("x", {4, 8}, DataType::kBfloat16);
  Value* w = input("w", {8, 2}, DataType::kBfloat16);
  Value* y = g_.matmul(wide(x), wide(w));
  graph().outputs = {f16_of(y), y};
  run(narrow_matmuls);
  EXPECT_EQ(y->dtype(), DataType::kFloat32);
  EXPECT_EQ(op_types(), (std::vector<std::string>{"MatMul", "Cast"}));
}

TEST_F(MixedPrecisionPassesTest, ProductsOfOtherOperandsAreLeftAlone) {
  Value* x = input("x", {4, 8}, DataType::kBfloat16);
  Value* w = input("w", {8, 2}, DataType::kFloat16);
  graph().outputs = {g_.matmul(wide(x), wide(w)), g_.matmul(wide(x), input("v", {8, 2}))};
  fold_constants(graph(), bench_.context());
  EXPECT_FALSE(narrow_matmuls(graph(), context()));
}

TEST_F(MixedPrecisionPassesTest, ConvolutionsReadAndWriteF16BesideFloat32Weights) {
  Value* x = input("x", {2, 3, 4, 4}, DataType::kBfloat16);
  Value* w = input("w", {5, 3, 1, 1});
  Value* y = g_.op("Conv", {wide(x), rounded(w)});
  graph().outputs = {f16_of(y)};
  PassContext wide_weights = context();
  wide_weights.has_kernel = [](const Node& node) {
    return node.inputs[1]->dtype() == DataType::kFloat32;
  };
  EXPECT_TRUE(narrow_matmuls(graph(), wide_weights));
  const Node* conv = find("Conv");
  ASSERT_NE(conv, nullptr);
  EXPECT_EQ(conv->inputs[0], x);
  EXPECT_EQ(conv->inputs[1]->dtype(), DataType::kFloat32);
  EXPECT_EQ(graph().outputs[0], conv->outputs[0]);
  EXPECT_EQ(conv->outputs[0]->dtype(), DataType::kBfloat16);
}

TEST_F(MixedPrecisionPassesTest, ConvolutionsOfF16EachRoundTheirWeight) {
  Value* x = input("x", {2, 5, 4, 4}, DataType::kBfloat16);
  Value* w = input("w", {5, 5, 1, 1});
  Value* half = rounded(w);
  Value* first = f16_of(g_.op("Conv", {wide(x), half}));
  Value* second = g_.op("Conv", {wide(first), half});
  graph().outputs = {f16_of(second)};
  run(narrow_matmuls);
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Cast", "Conv", "Cast", "Conv"}));
  for (const Node* node : graph().nodes) {
    if (node->op_type != "Conv") continue;
    EXPECT_EQ(node->inputs[1]->dtype(), DataType::kBfloat16);
    EXPECT_EQ(node->inputs[1]->producer->inputs[0], w);
  }
}

TEST_F(MixedPrecisionPassesTest, AttentionReadsF16AndWritesFloat32) {
  Value* x = input("x", {2, 4, 8}, DataType::kBfloat16);
  Value* q = wide(x);
  Node* attention = graph().make_node(opdef::kAttention, {q, q, q}, {}, "",
                                      opdef::Attention().attributes(), ir::kFusedDomain);
  Value* y =
      graph().add_output(attention, 0, ir::Type::tensor(DataType::kFloat32, Dims{2, 4, 8}), "y");
  graph().nodes.push_back(attention);
  graph().outputs = {f16_of(y)};
  run(narrow_matmuls);
  EXPECT_EQ(attention->inputs, (std::vector<Value*>{x, x, x}));
  EXPECT_EQ(attention->outputs[0], y);
}

TEST_F(MixedPrecisionPassesTest, NormalizationsOfImagesReadAndWriteF16AtOnce) {
  Value* x = input("x", {2, 3, 4, 4}, DataType::kBfloat16);
  Value* s = input("s", {3});
  Node* norm = graph().make_node(opdef::kFusedNormalization, {wide(x), s, s, s, s}, {}, "",
                                 opdef::FusedNormalization().attributes(), ir::kFusedDomain);
  Value* y =
      graph().add_output(norm, 0, ir::Type::tensor(DataType::kFloat32, Dims{2, 3, 4, 4}), "y");
  graph().nodes.push_back(norm);
  graph().outputs = {f16_of(y)};
  fold_constants(graph(), bench_.context());
  PassContext all_or_nothing = context();
  all_or_nothing.has_kernel = [](const Node& node) {
    return node.inputs[0]->dtype() == node.outputs[0]->dtype();
  };
  EXPECT_TRUE(narrow_matmuls(graph(), all_or_nothing));
  EXPECT_EQ(ir::find_fault(graph()), "");
  EXPECT_EQ(op_types(), std::vector<std::string>{std::string(opdef::kFusedNormalization)});
  EXPECT_EQ(norm->inputs[0], x);
  EXPECT_EQ(norm->outputs[0]->dtype(), DataType::kBfloat16);
  EXPECT_FALSE(narrow_matmuls(graph(), all_or_nothing));
}

TEST_F(MixedPrecisionPassesTest, CastsComeBeforeTransposesOfOperands) {
  Value* x = input("x", {4, 8});
  Value* w = input("w", {2, 8}, DataType::kBfloat16);
  graph().outputs = {g_.matmul(x, wide(g_.transpose(w, {1, 0})))};
  run(lift_casts);
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Cast", "Transpose", "MatMul"}));
}

TEST_F(MixedPrecisionPassesTest, ANumberOf16BitsIsNotRoundedAgain) {
  Value* x = input("x", {4, 8}, DataType::kBfloat16);
  graph().outputs = {g_.transpose(f16_of(g_.identity(wide(x))), {1, 0}),
                     g_.cast(wide(x), DataType::kFloat16)};
  run(eliminate_identities);
  EXPECT_EQ(graph().outputs[0]->producer->inputs[0], x);
  EXPECT_EQ(graph().outputs[1]->producer->op_type, "Cast");  // the other 16-bit type
}

TEST_F(MixedPrecisionPassesTest, FarReadersComputeElementwiseFunctionsOfF16Again) {
  Value* x = input("x", {64, 128}, DataType::kBfloat16);
  Value* e = g_.exp(wide(x));
  Value* near = g_.matmul(e, input("a", {128, 128}));
  Value* last = near;
  for (int i = 0; i < 16; ++i) last = g_.op("Softmax", {last});
  Value* far = g_.matmul(e, g_.transpose(last, {1, 0}));
  graph().outputs = {far};
  run(spread_casts);
  EXPECT_EQ(near->producer->inputs[0], e);
  const Value* again = far->producer->inputs[0];
  EXPECT_NE(again, e);
  ASSERT_NE(again->producer, nullptr);
  EXPECT_EQ(again->producer->op_type, "Exp");
  EXPECT_EQ(again->producer->inputs[0]->producer->inputs[0], x);
}

TEST_F(MixedPrecisionPassesTest, NearReadersShareThem) {
  Value* x = input("x", {64, 128}, DataType::kBfloat16);
  Value* e = g_.exp(wide(x));
  graph().outputs = {g_.op("Softmax", {e}), g_.op("LogSoftmax", {e})};
  fold_constants(graph(), bench_.context());
  EXPECT_FALSE(spread_casts(graph(), context()));
}

// SiLU of u and its gradient, as rules write it.
struct Silu {
  Value* y;
  Value* slope;
};

Silu silu(ir::GraphBuilder& g, Value* u) {
  Value* s = g.op("Sigmoid", {u});
  Value* one = g.scalar_like(u, 1);
  Value* y = g.mul(u, s);
  return {y, g.add(s, g.mul(y, g.sub(one, s)))};
}

TEST_F(MixedPrecisionPassesTest, TheSlopeOfAHalfIsStoredAsOne) {
  Value* u = wide(input("u", {64, 128}, DataType::kBfloat16));
  Value* dy = wide(input("dy", {64, 128}, DataType::kBfloat16));
  const Silu f = silu(g_, u);
  graph().outputs = {f16_of(f.y), f16_of(g_.mul(dy, f.slope))};
  run(fuse_activations);
  EXPECT_TRUE(narrow_matmuls(graph(), context()));
  const Node* forward = find(opdef::kActivation);
  ASSERT_NE(forward, nullptr);
  ASSERT_EQ(forward->outputs.size(), 2U);
  for (const Value* result : forward->outputs) EXPECT_EQ(result->dtype(), DataType::kBfloat16);
  EXPECT_EQ(forward->inputs[0]->dtype(), DataType::kBfloat16);
  EXPECT_EQ(find(opdef::kActivationGradient), nullptr);
}

// The forward pass reads the number that was rounded.
TEST_F(MixedPrecisionPassesTest, TheSlopeOfAStoredCopyIsComputedAgain) {
  Value* u = input("u", {64, 128});
  Value* dy = input("dy", {64, 128});
  const Silu again = silu(g_, wide(f16_of(u)));
  graph().outputs = {silu(g_, u).y, again.y, g_.mul(dy, again.slope)};
  run(fuse_activations);
  EXPECT_TRUE(narrow_matmuls(graph(), context()));
  const Node* gradient = find(opdef::kActivationGradient);
  ASSERT_NE(gradient, nullptr);
  EXPECT_EQ(gradient->inputs[0]->dtype(), DataType::kBfloat16);
  EXPECT_EQ(gradient->inputs[1]->dtype(), DataType::kFloat32);
}

TEST_F(MixedPrecisionPassesTest, TheSlopeOfAFloat32IsStored) {
  const Silu f = silu(g_, input("u", {64, 128}));
  graph().outputs = {f.y, g_.mul(input("dy", {64, 128}), f.slope)};
  run(fuse_activations);
  EXPECT_EQ(op_types(), (std::vector<std::string>{std::string(opdef::kActivation), "Mul"}));
}

TEST_F(MixedPrecisionPassesTest, AttentionRoundsItsProbabilitiesAsTheGraphDoes) {
  Value* q = input("q", {2, 8, 16});
  Value* kt = input("kt", {2, 16, 8});
  Value* v = input("v", {2, 8, 16});
  Value* p = g_.op("Softmax", {g_.matmul(q, kt)});
  graph().outputs = {g_.matmul(rounded(p), v)};
  run(fuse_attention);
  ASSERT_EQ(op_types(), std::vector<std::string>{std::string(opdef::kAttention)});
  const auto op = opdef::Attention::read(*graph().nodes[0]);
  EXPECT_EQ(op.probabilities_type, DataType::kBfloat16);
  EXPECT_FALSE(op.rounds_gradient);
}

TEST_F(MixedPrecisionPassesTest, ScoresThatAreRoundedAreNoAttention) {
  Value* scores = g_.matmul(input("q", {2, 8, 16}), input("kt", {2, 16, 8}));
  Value* p = g_.op("Softmax", {rounded(scores)});
  graph().outputs = {g_.matmul(p, input("v", {2, 8, 16}))};
  fold_constants(graph(), bench_.context());
  EXPECT_FALSE(fuse_attention(graph(), context()));
}

}  // namespace
}  // namespace onnxgrad::passes

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "opdef/fused_layer_norm.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// Nodes that are fused into LayerNormalization and its gradient; ops/nn/fused_layer_norm_test.cpp
// compares values.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

const Dims kRows{4, 6, 8};

class FuseLayerNormsTest : public testing::Test {
 protected:
  Value* input(const char* name, const Dims& dims, DataType dtype = DataType::kFloat32) {
    return graph().add_input(name, ir::Type::tensor(dtype, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }

  Value* drop(Value* x) {
    Value* ratio = graph().add_initializer("ratio", Tensor::scalar(0.25F));
    Value* mode = graph().add_initializer("mode", Tensor::scalar(true));
    return g_.ops("Dropout", {x, ratio, mode}, 2)[0];
  }
  Value* normalise(Value* x) {
    const Dims row{8};
    return g_.op("LayerNormalization",
                 {x, input("scale", row, x->dtype()), input("bias", row, x->dtype())},
                 {{"axis", std::int64_t{-1}}, {"epsilon", 1e-3F}});
  }

  // The gradient of sum(y * y) with respect to `wrt` becomes an output, after `y`.
  bool fuse(Value* y, const std::vector<Value*>& wrt) {
    const std::vector<Value*> outputs{g_.reduce_sum(g_.mul(y, y), {}, false)};
    const std::vector<Value*> seeds{g_.ones_like(outputs[0])};
    graph().outputs =
        autodiff::add_vjp(g_, testing_support::Workbench::registry(), outputs, seeds, wrt);
    graph().outputs.insert(graph().outputs.begin(), y);
    const PassContext context = bench_.context();
    fold_constants(graph(), context);
    eliminate_identities(graph(), context);
    merge_common_subexpressions(graph(), context);
    const bool changed = fuse_layer_norms(graph(), context);
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(fuse_layer_norms(graph(), context));
    return changed;
  }
  const Node* fused(std::string_view op_type) {
    const auto found = std::ranges::find_if(graph().nodes, [&](const Node* node) {
      return node->domain == ir::kFusedDomain && node->op_type == op_type;
    });
    return found == graph().nodes.end() ? nullptr : *found;
  }
  std::int64_t count(std::string_view op_type) {
    return std::ranges::count(graph().nodes, op_type, &Node::op_type);
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
};

TEST_F(FuseLayerNormsTest, DropoutAndResidualOfPostNorm) {
  Value* x = input("x", kRows);
  Value* r = input("r", kRows);
  ASSERT_TRUE(fuse(normalise(g_.add(r, drop(x))), {x, r}));
  const Node* norm = fused(opdef::kFusedLayerNorm);
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->inputs[0], x);
  EXPECT_EQ(norm->inputs[1], r);
  EXPECT_EQ(norm->outputs.size(), 3U);
  const Node* grad = fused(opdef::kFusedLayerNormGrad);
  ASSERT_NE(grad, nullptr);
  EXPECT_EQ(grad->inputs[4], norm->outputs[2]);
  EXPECT_EQ(count("Dropout") + count("Cast"), 0);
}

TEST_F(FuseLayerNormsTest, SumOfCotangentsOfPreNorm) {
  Value* x = input("x", kRows);
  Value* b = input("b", {8});
  Value* s = g_.add(g_.add(x, b), input("r", kRows));
  ASSERT_TRUE(fuse(g_.add(g_.op("Sin", {normalise(s)}), s), {x, b}));
  const Node* grad = fused(opdef::kFusedLayerNormGrad);
  ASSERT_NE(grad, nullptr);
  EXPECT_NE(grad->inputs[3], nullptr);
  ASSERT_EQ(grad->outputs.size(), 5U);
  EXPECT_EQ(grad->outputs[3], nullptr);
  EXPECT_EQ(grad->outputs[4]->type.static_dims(), Dims{8});
}

TEST_F(FuseLayerNormsTest, LeavesTheSumToAProduct) {
  Value* x = input("x", kRows);
  Value* h = g_.op("MatMul", {x, input("w", {8, 8})});
  fuse(normalise(g_.add(h, x)), {x});
  EXPECT_EQ(fused(opdef::kFusedLayerNorm), nullptr);
}

TEST_F(FuseLayerNormsTest, TakesTheSumFromAProductIfDropoutIsBetween) {
  Value* x = input("x", kRows);
  Value* h = g_.op("MatMul", {x, input("w", {8, 8})});
  ASSERT_TRUE(fuse(normalise(g_.add(drop(h), x)), {x}));
  EXPECT_NE(fused(opdef::kFusedLayerNorm), nullptr);
}

TEST_F(FuseLayerNormsTest, LeavesOtherTypesAndBroadcasts) {
  Value* x = input("x", kRows, DataType::kFloat64);
  EXPECT_FALSE(fuse(normalise(g_.add(x, input("r", kRows, DataType::kFloat64))), {x}));
}

}  // namespace
}  // namespace onnxgrad::passes

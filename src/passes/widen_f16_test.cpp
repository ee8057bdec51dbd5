#include "passes/widen_f16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "opdef/fused.h"
#include "passes/testing/context.h"

namespace onnxgrad::passes {
namespace {

using ir::Value;

class WidenF16Test : public testing::Test {
 protected:
  Value* input(const char* name, Dims dims, DataType dtype = DataType::kFloat16) {
    return graph().add_input(name, ir::Type::tensor(dtype, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }
  /// Kernels for movements of elements in any type, all others in float32.
  PassContext context() {
    PassContext context = bench_.context();
    context.has_kernel = [](const ir::Node& node) {
      return node.op_type == "Transpose" || !touches_f16(node);
    };
    return context;
  }
  std::vector<std::string> op_types() {
    std::vector<std::string> types;
    for (const ir::Node* node : graph().nodes) types.push_back(node->op_type);
    return types;
  }
  bool widen() {
    fold_constants(graph(), bench_.context());
    const bool changed = widen_f16(graph(), context());
    EXPECT_EQ(ir::find_fault(graph()), "");
    fold_constants(graph(), bench_.context());  // the types are consistent
    return changed;
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
};

TEST_F(WidenF16Test, PutsCastsAroundWhatNoKernelRuns) {
  Value* product = g_.matmul(input("x", {2, 3}), input("w", {3, 4}));
  graph().outputs = {product};
  EXPECT_TRUE(widen());
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Cast", "Cast", "MatMul", "Cast"}));
  EXPECT_EQ(graph().outputs[0], product);
  EXPECT_EQ(product->dtype(), DataType::kFloat16);
  EXPECT_EQ(graph().nodes[2]->outputs[0]->dtype(), DataType::kFloat32);
  EXPECT_FALSE(widen());
}

TEST_F(WidenF16Test, LeavesOtherTypesAndElementwiseNodesAlone) {
  Value* x = input("x", {2, 3}, DataType::kFloat32);
  Value* h = input("h", {2, 3}, DataType::kBfloat16);
  graph().outputs = {g_.matmul(x, input("w", {3, 4}, DataType::kFloat32)), g_.add(h, h),
                     g_.transpose(h, {1, 0}), g_.reshape(h, std::vector<std::int64_t>{6})};
  EXPECT_FALSE(widen());
  EXPECT_EQ(op_types(), (std::vector<std::string>{"MatMul", "Add", "Transpose", "Reshape"}));
}

TEST_F(WidenF16Test, DoesNothingWithoutF16) {
  graph().outputs = {g_.exp(input("x", {2}, DataType::kFloat32))};
  EXPECT_FALSE(widen_f16(graph(), context()));
}

// A product reads a transposed operand in place if nothing is between them.
TEST_F(WidenF16Test, CastsBeforeATransposeThatOnlyTheNodeReads) {
  Value* w = input("w", {4, 3});
  graph().outputs = {g_.matmul(input("x", {2, 3}), g_.transpose(w, {1, 0}))};
  EXPECT_TRUE(widen());
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Cast", "Cast", "Transpose", "MatMul", "Cast"}));
  EXPECT_TRUE(fuse_gemm(graph(), context()));
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Cast", "Cast", "Gemm", "Cast"}));
}

TEST_F(WidenF16Test, ConvertsEachValueOnceAndConstantsAtOnce) {
  Value* x = input("x", {3, 3});
  Value* w =
      graph().add_initializer("w", Tensor::scalar_of(DataType::kFloat16, 0.1).reshaped({1, 1}));
  graph().outputs = {g_.matmul(x, x), g_.op("MatMul", {input("y", {3, 1}), w})};
  EXPECT_TRUE(widen());
  const auto types = op_types();
  EXPECT_EQ(std::ranges::count(types, "Cast"), 2 + 2);  // x and y, then both products
  const ir::Node* second = graph().nodes[graph().nodes.size() - 2];
  ASSERT_TRUE(second->inputs[1]->is_constant());
  EXPECT_EQ(second->inputs[1]->initializer.to_doubles()[0],
            Tensor::scalar_of(DataType::kFloat16, 0.1).to_doubles()[0]);
}

TEST_F(WidenF16Test, ChangesAttributesThatNameTheType) {
  graph().outputs = {g_.op("RandomUniform", {},
                           {{"shape", std::vector<std::int64_t>{2}},
                            {"dtype", static_cast<std::int64_t>(DataType::kFloat16)}})};
  EXPECT_TRUE(widen());
  EXPECT_EQ(op_types(), (std::vector<std::string>{"RandomUniform", "Cast"}));
  EXPECT_EQ(graph().nodes[0]->outputs[0]->dtype(), DataType::kFloat32);
}

TEST_F(WidenF16Test, KeepsWhatNoKernelRunsInFloat32Either) {
  PassContext none = context();
  none.has_kernel = [](const ir::Node&) { return false; };
  graph().outputs = {g_.matmul(input("x", {2, 2}), input("w", {2, 2}))};
  fold_constants(graph(), bench_.context());
  EXPECT_FALSE(widen_f16(graph(), none));
  EXPECT_EQ(graph().nodes[0]->inputs[0]->name, "x");
}

// Values stored in 16 bits are rounded wherever they are read.
TEST_F(WidenF16Test, ElementwiseGroupsRoundWhatTheyKeepToThemselves) {
  Value* x = input("x", {8});
  graph().outputs = {g_.exp(g_.op("Relu", {g_.add(x, x)}))};
  fold_constants(graph(), bench_.context());
  fuse_elementwise(graph(), context(), /*merge=*/true);
  ASSERT_EQ(graph().nodes.size(), 1U);
  const auto fused = opdef::Elementwise::read(*graph().nodes[0]);
  EXPECT_EQ(fused.compute, DataType::kFloat32);
  // The sum is rounded, its Relu has 16 bits, the result is rounded as it is stored.
  EXPECT_EQ(fused.program.to_string(), "exp(relu(f16(add(in0, in0))))");
}

}  // namespace
}  // namespace onnxgrad::passes

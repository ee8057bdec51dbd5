#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "opdef/fused.h"
#include "opdef/guarded_update.h"
#include "opdef/registry.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// What a plan makes of the updates that train/precision/loss_scale.cpp guards.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

class GuardedProductsTest : public testing::Test {
 protected:
  Value* input(const char* name, Dims dims, DataType dtype = DataType::kFloat32) {
    return graph().add_input(name, ir::Type::tensor(dtype, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }

  // (a of type `half` [k, 8])^T b [k, 6] / scale, its check, and w - rate * that where it is
  // finite.
  void build(std::int64_t k, DataType half = DataType::kFloat16) {
    Value* a = input("a", {k, 8}, half);
    Value* b = input("b", {k, 6}, half);
    weight_ = input("w", {8, 6});
    Value* inverse = input("inverse", {});
    const auto wide = [&](Value* value) { return g_.cast(value, DataType::kFloat32); };
    gradient_ = g_.mul(g_.matmul(g_.transpose(wide(a), {1, 0}), wide(b)), inverse);
    fault_ = g_.call(opdef::kFaultSum, {gradient_}, 1)[0];
    Value* is_done = g_.equal(fault_, g_.scalar_like(fault_, 0));
    Value* next = g_.sub(weight_, g_.mul(input("rate", {}), gradient_));
    graph().outputs = {g_.where(is_done, next, weight_), fault_};
  }

  bool run() {
    PassContext context = bench_.context();
    context.has_kernel = [](const Node& /*node*/) { return true; };
    fold_constants(graph(), bench_.context());
    fuse_gemm(graph(), context);
    const bool changed = fuse_guarded_products(graph(), context);
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(fuse_guarded_products(graph(), context));
    return changed;
  }

  std::int64_t count(std::string_view base) {
    return std::ranges::count_if(graph().nodes, [&](const Node* node) {
      return opdef::base_name(node->domain, node->op_type) == base;
    });
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
  Value* weight_ = nullptr;
  Value* gradient_ = nullptr;
  Value* fault_ = nullptr;
};

TEST_F(GuardedProductsTest, ADescentTakesInItsProduct) {
  build(4);
  EXPECT_TRUE(run());
  const Node* update = graph().outputs[0]->producer;
  EXPECT_EQ(update->op_type, opdef::kGuardedGemmUpdate);
  EXPECT_EQ(update->inputs[0], weight_);
  EXPECT_EQ(update->inputs[1]->name, "a");
  EXPECT_EQ(update->inputs[2]->name, "b");
  EXPECT_EQ(opdef::GemmUpdate::read(*update).scale, -1);
  EXPECT_TRUE(opdef::GemmUpdate::read(*update).transpose_a);
  EXPECT_EQ(count(opdef::kGemm), 0);
  EXPECT_EQ(count(opdef::kFaultSum), 2);  // of a and b
  EXPECT_EQ(graph().outputs[1]->producer->op_type, "Add");
}

TEST_F(GuardedProductsTest, OperandsThatAreLargerThanTheGradientDoNotWait) {
  build(64);
  EXPECT_FALSE(run());
  EXPECT_EQ(count(opdef::kFaultSum), 1);
}

TEST_F(GuardedProductsTest, AGradientThatIsReadElsewhereIsStored) {
  build(4);
  graph().outputs.push_back(gradient_);
  EXPECT_FALSE(run());
}

// Sums of bfloat16 can overflow where its numbers do not.
TEST_F(GuardedProductsTest, ProductsOfOtherTypesAreChecked) {
  build(4, DataType::kBfloat16);
  EXPECT_FALSE(run());
}

}  // namespace
}  // namespace onnxgrad::passes

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// Nodes that are fused into Conv. Values are compared in ops/nn/conv/conv_test.cpp and
// tests/python/test_convolutional_training.py.

namespace onnxgrad::passes {
namespace {

using ir::Value;

class FuseConvolutionsTest : public testing::Test {
 protected:
  Value* input(const char* name, const Dims& dims) {
    return graph().add_input(name, ir::Type::tensor(DataType::kFloat32, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }
  Value* convolve(Value* x) {
    return g_.op("Conv", {x, input(x == x_ ? "w" : "v", {3, 3, 3, 3})},
                 {{.name = "pads", .value = std::vector<std::int64_t>{1, 1, 1, 1}}});
  }
  Value* bound(float value) { return graph().add_initializer("bound", Tensor::scalar(value)); }
  bool fuse(std::vector<Value*> outputs) {
    graph().outputs = std::move(outputs);
    fold_constants(graph(), bench_.context());
    const bool changed = fuse_convolutions(graph(), bench_.context());
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(fuse_convolutions(graph(), bench_.context()));
    return changed;
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
  Value* x_ = input("x", {2, 3, 5, 5});
};

TEST_F(FuseConvolutionsTest, TakesInResidualAndRelu) {
  Value* y = g_.op("Relu", {g_.add(x_, convolve(x_))});
  ASSERT_TRUE(fuse({y}));
  ASSERT_EQ(graph().nodes.size(), 1U);
  EXPECT_EQ(y->producer->domain, ir::kFusedDomain);
  EXPECT_EQ(y->producer->input(3), x_);
  EXPECT_EQ(y->producer->float_attribute("low"), 0);
}

TEST_F(FuseConvolutionsTest, TakesInClip) {
  Value* y = g_.op("Clip", {convolve(x_), bound(0), bound(6)});
  ASSERT_TRUE(fuse({y}));
  EXPECT_EQ(y->producer->float_attribute("high"), 6);
}

TEST_F(FuseConvolutionsTest, LeavesWhatOthersRead) {
  Value* sums = convolve(x_);
  Value* y = g_.op("Relu", {sums});
  EXPECT_FALSE(fuse({y, sums}));
}

TEST_F(FuseConvolutionsTest, LeavesBoundsThatAreNotConstant) {
  EXPECT_FALSE(fuse({g_.op("Clip", {convolve(x_), input("low", {})})}));
}

TEST_F(FuseConvolutionsTest, LeavesOperandsThatAreBroadcast) {
  EXPECT_FALSE(fuse({g_.add(convolve(x_), input("c", {3, 1, 1}))}));
}

TEST_F(FuseConvolutionsTest, TwoConvolutionsOfOneSum) {
  Value* y = g_.op("Relu", {g_.add(convolve(x_), convolve(g_.op("Sin", {x_})))});
  ASSERT_TRUE(fuse({y}));
  EXPECT_EQ(graph().nodes.size(), 3U);  // Sin, Conv, and the Conv with the rest
}

}  // namespace
}  // namespace onnxgrad::passes

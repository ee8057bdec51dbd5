#include <gtest/gtest.h>

#include <vector>

#include "ir/builder.h"
#include "opdef/conv_update.h"
#include "opdef/fused.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// Which updates the gradient of a convolution's weight joins. Numbers are compared in
// ops/nn/conv/conv_update_test.cpp and tests/python/test_convolutional_training.py.

namespace onnxgrad::passes {
namespace {

using ir::Value;

class FuseConvUpdatesTest : public testing::Test {
 protected:
  Value* input(const char* name, const Dims& dims) {
    return graph().add_input(name, ir::Type::tensor(DataType::kFloat32, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }
  Value* gradient() {
    return g_.call("ConvWeightGrad", {input("dy", {2, 4, 5, 5}), input("x", {2, 3, 5, 5})}, 1,
                   {{.name = "strides", .value = std::vector<std::int64_t>{1, 1}},
                    {.name = "dilations", .value = std::vector<std::int64_t>{1, 1}},
                    {.name = "kernel_shape", .value = std::vector<std::int64_t>{3, 3}},
                    {.name = "pads", .value = std::vector<std::int64_t>{1, 1, 1, 1}},
                    {.name = "group", .value = std::int64_t{1}}})[0];
  }
  std::vector<Value*> momentum(Value* gradient) {
    const opdef::WeightUpdate update{.rule = opdef::UpdateRule::kMomentum, .beta1 = 0.9};
    return g_.call(opdef::kWeightUpdate, {gradient, w_, input("m", {4, 3, 3, 3}), rate_}, 2,
                   update.attributes());
  }
  bool fuse(std::vector<Value*> outputs, bool is_preferred = true) {
    graph().outputs = std::move(outputs);
    PassContext context = bench_.context();
    context.prefers = [=](const ir::Node&) { return is_preferred; };
    const bool changed = fuse_conv_updates(graph(), context);
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(fuse_conv_updates(graph(), context));
    return changed;
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
  Value* w_ = input("w", {4, 3, 3, 3});
  Value* rate_ = input("rate", {});
};

TEST_F(FuseConvUpdatesTest, JoinsWeightUpdate) {
  const std::vector<Value*> results = momentum(gradient());
  ASSERT_TRUE(fuse(results));
  ASSERT_EQ(graph().nodes.size(), 1U);
  const ir::Node* node = results[0]->producer;
  EXPECT_TRUE(opdef::is_fused(node, opdef::kConvWeightUpdate));
  EXPECT_EQ(node->input(2), w_);
  EXPECT_EQ(node->string_attribute("rule"), "momentum");
  EXPECT_EQ(node->int_attribute("group"), 1);
}

TEST_F(FuseConvUpdatesTest, JoinsPlainDescent) {
  Value* y = g_.op("Sub", {w_, g_.op("Mul", {rate_, gradient()})});
  ASSERT_TRUE(fuse({y}));
  ASSERT_EQ(graph().nodes.size(), 1U);
  EXPECT_TRUE(opdef::is_fused(y->producer, opdef::kConvDescent));
  EXPECT_EQ(y->producer->input(3), rate_);
}

TEST_F(FuseConvUpdatesTest, LeavesGradientsThatOthersRead) {
  Value* dw = gradient();
  std::vector<Value*> results = momentum(dw);
  results.push_back(g_.op("ReduceSumSquare", {dw}));
  EXPECT_FALSE(fuse(results));
}

TEST_F(FuseConvUpdatesTest, LeavesGradientsThatAreScaled) {
  EXPECT_FALSE(fuse(momentum(g_.op("Mul", {gradient(), rate_}))));
}

TEST_F(FuseConvUpdatesTest, LeavesUpdatesThatAreGuarded) {
  Value* is_done = graph().add_input("is_done", ir::Type::tensor(DataType::kBool, Dims{}));
  const std::vector<Value*> results = momentum(gradient());
  Value* kept = g_.op("Where", {is_done, results[0], w_});
  EXPECT_FALSE(fuse({kept, results[1]}));
}

TEST_F(FuseConvUpdatesTest, LeavesWhatTheDeviceDoesNotPrefer) {
  const std::vector<Value*> results = momentum(gradient());
  EXPECT_FALSE(fuse(results, /*is_preferred=*/false));
  EXPECT_EQ(graph().nodes.size(), 2U);
  EXPECT_EQ(results[0]->producer->domain, ir::kFunctionDomain);
}

}  // namespace
}  // namespace onnxgrad::passes

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/conv_chain.h"
#include "opdef/fused.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// Which convolutions become chains. The sizes that pay on the CPU are in
// ops/testing/candidates_test.cpp, values in ops/nn/conv/conv_chain_test.cpp and
// tests/python/test_convolution_chains.py.

namespace onnxgrad::passes {
namespace {

using ir::Value;

class ChainConvolutionsTest : public testing::Test {
 protected:
  Value* input(const std::string& name, const Dims& dims) {
    return graph().add_input(name, ir::Type::tensor(dtype_, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }
  Value* convolve(Value* x, const Dims& w) {
    const std::int64_t pad = w[2] / 2;
    const std::int64_t group = w[1] == 1 ? w[0] : 1;
    return g_.op("Conv", {x, input("w" + std::to_string(++weights_), w)},
                 {{.name = "pads", .value = std::vector<std::int64_t>(4, pad)},
                  {.name = "group", .value = group}});
  }
  Value* expand(Value* x) { return convolve(x, {48, 8, 1, 1}); }
  Value* depthwise(Value* x) { return convolve(x, {48, 1, 3, 3}); }
  Value* project(Value* x) { return convolve(x, {8, 48, 1, 1}); }

  bool chain(std::vector<Value*> outputs) {
    graph().outputs = std::move(outputs);
    fold_constants(graph(), bench_.context());
    fuse_convolutions(graph(), bench_.context());
    PassContext context = bench_.context();
    context.prefers = [this](const ir::Node& node) {
      return opdef::ConvChain::read(node).links.size() <= most_links_;
    };
    const bool changed = chain_convolutions(graph(), context);
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(chain_convolutions(graph(), context));
    return changed;
  }

  DataType dtype_ = DataType::kFloat32;
  std::size_t most_links_ = 3;
  int weights_ = 0;
  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
};

TEST_F(ChainConvolutionsTest, AnInvertedResidual) {
  Value* x = input("x", {8, 8, 32, 32});
  Value* wide = depthwise(g_.op("Relu", {expand(x)}));
  Value* y = g_.op("Relu", {g_.add(x, project(wide))});
  ASSERT_TRUE(chain({y}));
  ASSERT_EQ(graph().nodes.size(), 1U);
  const ir::Node& node = *graph().nodes[0];
  ASSERT_TRUE(opdef::is_fused(&node, opdef::kConvChain));
  EXPECT_EQ(node.inputs.size(), 10U);
  EXPECT_EQ(node.input(0), x);
  EXPECT_EQ(node.input(9), x);  // the residual of the last
  const auto links = opdef::ConvChain::read(node).links;
  ASSERT_EQ(links.size(), 3U);
  for (std::size_t i = 0; i < links.size(); ++i) {
    ir::Node link;
    link.attributes = links[i];
    EXPECT_EQ(link.int_attribute("group"), i == 1 ? 48 : 1);
    EXPECT_EQ(link.float_attribute("low") == 0, i != 1);
  }
}

TEST_F(ChainConvolutionsTest, EndsWhereTheDeviceWantsNoMore) {
  Value* y = expand(project(depthwise(expand(input("x", {8, 8, 32, 32})))));
  ASSERT_TRUE(chain({depthwise(y)}));
  ASSERT_EQ(graph().nodes.size(), 2U);
  EXPECT_EQ(opdef::ConvChain::read(*graph().nodes[0]).links.size(), 3U);
  EXPECT_EQ(opdef::ConvChain::read(*graph().nodes[1]).links.size(), 2U);
}

TEST_F(ChainConvolutionsTest, LeavesWhatOthersRead) {
  Value* wide = expand(input("x", {8, 8, 32, 32}));
  EXPECT_FALSE(chain({depthwise(wide), wide}));
}

TEST_F(ChainConvolutionsTest, LeavesAResidualOfTheSameValue) {
  Value* wide = expand(input("x", {8, 8, 32, 32}));
  EXPECT_FALSE(chain({g_.add(wide, depthwise(wide))}));
}

TEST_F(ChainConvolutionsTest, LeavesWeightsThatAreConvolutions) {
  Value* w = convolve(input("x", {64, 1, 96, 96}), {1, 1, 3, 3});
  Value* y = g_.op("Conv", {input("image", {2, 1, 99, 99}), w});
  EXPECT_FALSE(chain({y}));
}

TEST_F(ChainConvolutionsTest, LeavesWhatTheDeviceDoesNotPrefer) {
  most_links_ = 1;
  EXPECT_FALSE(chain({depthwise(expand(input("x", {8, 8, 32, 32})))}));
}

TEST_F(ChainConvolutionsTest, LeavesOtherTypes) {
  dtype_ = DataType::kFloat64;
  EXPECT_FALSE(chain({depthwise(expand(input("x", {8, 8, 32, 32})))}));
}

}  // namespace
}  // namespace onnxgrad::passes

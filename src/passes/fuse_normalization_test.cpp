#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "opdef/fused_normalization.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// BatchNormalization with the nodes around it, after the pass. Values of the fused kernels are
// compared with formulas in src/ops/nn/fused_normalization_test.cpp.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

const Dims kImages{4, 3, 5, 5};

class FuseNormalizationTest : public testing::Test {
 protected:
  Value* input(const char* name, const Dims& dims, DataType dtype = DataType::kFloat32) {
    return graph().add_input(name, ir::Type::tensor(dtype, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }

  Value* normalise(Value* x, const char* name) {
    const auto channel = [&](const char* part) {
      return input((std::string(name) + part).c_str(), {3}, x->dtype());
    };
    Value* scale = channel("_scale");
    weights_.push_back(scale);
    return g_.ops("BatchNormalization",
                  {x, scale, channel("_bias"), channel("_mean"), channel("_var")}, 3,
                  {{.name = "training_mode", .value = std::int64_t{1}},
                   {.name = "epsilon", .value = 1e-3F}})[0];
  }
  Value* clip(Value* x) {
    const auto bound = [&](float value) {
      return graph().add_initializer("bound", Tensor::scalar(value));
    };
    return g_.op("Clip", {x, bound(0), bound(6)});
  }

  // The gradients of sum(y * y) with respect to the inputs and scales become outputs, after `y`.
  bool fuse(Value* y, std::vector<Value*> wrt) {
    wrt.insert(wrt.end(), weights_.begin(), weights_.end());
    const std::vector<Value*> outputs{g_.reduce_sum(g_.mul(y, y), {}, false)};
    const std::vector<Value*> seeds{g_.ones_like(outputs[0])};
    graph().outputs =
        autodiff::add_vjp(g_, testing_support::Workbench::registry(), outputs, seeds, wrt);
    graph().outputs.insert(graph().outputs.begin(), y);
    fold_constants(graph(), bench_.context());
    eliminate_identities(graph(), bench_.context());
    merge_common_subexpressions(graph(), bench_.context());
    const bool changed = fuse_normalization(graph(), bench_.context());
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(fuse_normalization(graph(), bench_.context()));
    return changed;
  }
  std::int64_t count(std::string_view op_type) {
    return std::ranges::count(graph().nodes, op_type, &Node::op_type);
  }
  Value* rounded(Value* x) { return g_.cast(g_.cast(x, DataType::kBfloat16), DataType::kFloat32); }
  const Node* gradient_node() {
    return *std::ranges::find(graph().nodes, opdef::kFusedNormalizationGrad, &Node::op_type);
  }
  opdef::FusedNormalization fused_gradient(std::size_t index = 0) {
    for (const Node* node : graph().nodes) {
      if (node->op_type != opdef::kFusedNormalizationGrad || index-- > 0) continue;
      return opdef::FusedNormalization::read(*node);
    }
    ADD_FAILURE() << "no fused gradient";
    return {};
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
  std::vector<Value*> weights_;
};

TEST_F(FuseNormalizationTest, TakesInRelu) {
  Value* x = input("x", kImages);
  Value* y = g_.op("Relu", {normalise(x, "n")});
  ASSERT_TRUE(fuse(y, {x}));
  EXPECT_EQ(y->producer->domain, ir::kFusedDomain);
  EXPECT_EQ(y->producer->op_type, opdef::kFusedNormalization);
  EXPECT_EQ(count("Relu") + count("Where") + count("Greater"), 0);
  EXPECT_EQ(fused_gradient().mask, opdef::NormMask::kPositive);
}

TEST_F(FuseNormalizationTest, TakesInClip) {
  Value* x = input("x", kImages);
  Value* y = clip(normalise(x, "n"));
  ASSERT_TRUE(fuse(y, {x}));
  EXPECT_EQ(y->producer->op_type, opdef::kFusedNormalization);
  EXPECT_EQ(count("Clip") + count("Where") + count("Less") + count("Max"), 0);
  EXPECT_EQ(fused_gradient().mask, opdef::NormMask::kInside);
  EXPECT_EQ(fused_gradient().high, 6);
}

TEST_F(FuseNormalizationTest, TakesInResidualAndBothCotangents) {
  Value* x = input("x", kImages);
  Value* h = g_.op("Relu", {normalise(x, "a")});
  Value* y = g_.op("Relu", {g_.add(normalise(g_.op("Sin", {h}), "b"), h)});
  ASSERT_TRUE(fuse(y, {x}));
  EXPECT_EQ(count(opdef::kFusedNormalization), 2);
  EXPECT_EQ(count("Relu") + count("Where"), 0);
  EXPECT_EQ(y->producer->inputs.size(), 6U);
  EXPECT_EQ(fused_gradient(0).mask, opdef::NormMask::kResult);
  EXPECT_EQ(fused_gradient(1).mask, opdef::NormMask::kPositive);
}

TEST_F(FuseNormalizationTest, BothBranchesOfAResidual) {
  Value* x = input("x", kImages);
  Value* y = g_.op("Relu", {g_.add(normalise(x, "a"), normalise(g_.op("Sin", {x}), "b"))});
  ASSERT_TRUE(fuse(y, {x}));
  EXPECT_EQ(count(opdef::kFusedNormalization), 2);
  EXPECT_EQ(count(opdef::kFusedNormalizationGrad), 2);
  EXPECT_EQ(count("Where"), 0);
}

TEST_F(FuseNormalizationTest, KeepsWhatOthersRead) {
  Value* x = input("x", kImages);
  Value* v = normalise(x, "n");
  Value* y = g_.add(g_.op("Relu", {v}), g_.op("Sin", {v}));
  ASSERT_TRUE(fuse(y, {x}));  // only the statistics are shared
  EXPECT_EQ(count("Relu"), 1);
  EXPECT_EQ(count("Where"), 1);
  EXPECT_EQ(fused_gradient().mask, opdef::NormMask::kNone);
}

TEST_F(FuseNormalizationTest, KeepsClipThatOthersReadAsWell) {
  Value* x = input("x", kImages);
  Value* v = normalise(x, "n");
  Value* y = g_.add(clip(v), g_.op("Sin", {v}));
  ASSERT_TRUE(fuse(y, {x}));
  EXPECT_EQ(count("Clip"), 1);
}

// A backward pass of its own with activations of 16 bits: its input is a half that was saved.
class LoneNormalizationGradientTest : public FuseNormalizationTest {
 protected:
  // The gradient of x, of a normalization of `kept`.
  Value* gradient_of(Value* kept, Value* scale, Value* dy) {
    return g_.call(
        "BatchNormalizationGrad", {dy, kept, scale}, 3,
        {{.name = "epsilon", .value = 1e-3F}, {.name = "rank", .value = std::int64_t{4}}})[0];
  }
};

TEST_F(LoneNormalizationGradientTest, HasStatisticsOfItsOwn) {
  Value* x = input("x", kImages, DataType::kBfloat16);
  Value* result = g_.cast(input("result", kImages, DataType::kBfloat16), DataType::kFloat32);
  Value* zero = graph().add_initializer("zero", Tensor::scalar(0.0F));
  Value* masked = g_.where(g_.op("Greater", {result, zero}), input("dy", kImages), zero);
  graph().outputs = {gradient_of(g_.cast(x, DataType::kFloat32), input("scale", {3}), masked)};
  fold_constants(graph(), bench_.context());
  ASSERT_TRUE(fuse_normalization(graph(), bench_.context()));
  EXPECT_EQ(ir::find_fault(graph()), "");
  EXPECT_EQ(count("Where") + count("Greater"), 0);
  const Node* grad = gradient_node();
  const Node* statistics = grad->inputs[4]->producer;
  EXPECT_EQ(statistics->op_type, opdef::kFusedNormalization);
  EXPECT_EQ(statistics->outputs[0], nullptr);
  EXPECT_EQ(statistics->inputs[0], grad->inputs[1]);
  EXPECT_EQ(fused_gradient().mask, opdef::NormMask::kResult);
  EXPECT_EQ(opdef::FusedNormalization::read(*statistics).epsilon, 1e-3F);
  EXPECT_FALSE(fuse_normalization(graph(), bench_.context()));
}

TEST_F(LoneNormalizationGradientTest, OfAReluWhoseResultIsRoundedReadsIt) {
  Value* x = input("x", kImages);
  Value* v = normalise(x, "n");
  Value* y = rounded(g_.op("Relu", {v}));
  Value* zero = graph().add_initializer("zero", Tensor::scalar(0.0F));
  Value* masked = g_.where(g_.op("Greater", {y, zero}), input("dy", kImages), zero);
  graph().outputs = {y, gradient_of(x, weights_[0], masked)};
  fold_constants(graph(), bench_.context());
  ASSERT_TRUE(fuse_normalization(graph(), bench_.context()));
  EXPECT_EQ(ir::find_fault(graph()), "");
  EXPECT_EQ(count("Relu") + count("Where"), 0);
  EXPECT_EQ(count(opdef::kFusedNormalization), 1);
  EXPECT_EQ(fused_gradient().mask, opdef::NormMask::kResult);
  const Node* grad = gradient_node();
  ASSERT_EQ(grad->inputs.size(), 8U);
  EXPECT_EQ(grad->inputs[7], y) << "a number that is rounded to zero passes nothing";
}

TEST_F(LoneNormalizationGradientTest, LeavesAMaskedCotangentThatOthersReadBeforeIt) {
  Value* result = g_.cast(input("result", kImages, DataType::kBfloat16), DataType::kFloat32);
  Value* zero = graph().add_initializer("zero", Tensor::scalar(0.0F));
  Value* masked = g_.where(g_.op("Greater", {result, zero}), input("dy", kImages), zero);
  Value* other = g_.op("Sin", {masked});
  Value* x = g_.cast(input("x", kImages, DataType::kBfloat16), DataType::kFloat32);
  graph().outputs = {other, gradient_of(x, input("scale", {3}), masked)};
  fold_constants(graph(), bench_.context());
  ASSERT_TRUE(fuse_normalization(graph(), bench_.context()));
  EXPECT_EQ(ir::find_fault(graph()), "");
  EXPECT_EQ(count("Where"), 1);
  EXPECT_EQ(fused_gradient().mask, opdef::NormMask::kNone);
}

TEST_F(LoneNormalizationGradientTest, OfFloat32IsLeftAlone) {
  Value* x = input("x", kImages);
  graph().outputs = {gradient_of(x, input("scale", {3}), input("dy", kImages))};
  fold_constants(graph(), bench_.context());
  EXPECT_FALSE(fuse_normalization(graph(), bench_.context()));
}

TEST_F(FuseNormalizationTest, LeavesFloat64AndFixedStatistics) {
  Value* x = input("x", kImages, DataType::kFloat64);
  EXPECT_FALSE(fuse(g_.op("Relu", {normalise(x, "n")}), {x}));
}

}  // namespace
}  // namespace onnxgrad::passes

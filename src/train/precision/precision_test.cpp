#include "train/precision/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/uses.h"
#include "onnxgrad/option_error.h"
#include "train/testing/draft.h"
#include "train/tools/engine.h"

// Which values lower_precision() rounds and who reads the rounded numbers. What the graphs compute
// is compared with a simulation in NumPy in tests/python/test_precision.py, training with PyTorch
// in test_precision_curves.py.

namespace onnxgrad::train::precision_test {
namespace {

using ir::Node;
using ir::Value;
using train_test::Draft;

constexpr auto kFloat = DataType::kFloat32;

class PrecisionTest : public testing::Test {
 protected:
  ir::Graph& graph() { return *draft_.model->graph; }
  Value* input(const char* name, const Dims& dims, DataType dtype = kFloat) {
    return graph().add_input(name, ir::Type::tensor(dtype, dims));
  }

  // Appends the gradients of sum(y * y), and rounds; returns the gradients.
  std::vector<Value*> lower(Value* y, const std::vector<Value*>& wrt,
                            const MixedPrecision& precision) {
    const std::vector<Value*> outputs{g_.reduce_sum(g_.mul(y, y), {}, false)};
    const std::vector<Value*> seeds{g_.ones_like(outputs[0])};
    PrecisionScope scope;
    const auto& registry = builtin_ops();
    std::vector<Value*> gradients =
        autodiff::add_vjp(g_, registry, outputs, seeds, wrt, nullptr, nullptr, &scope.backward);
    graph().outputs = gradients;
    graph().outputs.push_back(outputs[0]);
    lower_precision(g_, registry, precision, scope);
    EXPECT_EQ(ir::find_fault(graph()), "");
    return gradients;
  }

  static bool is_cast(const Value* value, DataType to) {
    return value->producer != nullptr && value->producer->op_type == "Cast" && value->dtype() == to;
  }
  /// A number of 16 bits in float32.
  static bool is_rounded(const Value* value, DataType half) {
    return is_cast(value, kFloat) && value->producer->inputs[0]->dtype() == half;
  }
  std::vector<const Node*> nodes(std::string_view op_type) {
    std::vector<const Node*> found;
    for (const Node* node : graph().nodes) {
      if (node->op_type == op_type) found.push_back(node);
    }
    return found;
  }
  std::vector<const Node*> products() {
    std::vector<const Node*> found = nodes("MatMul");
    const std::vector<const Node*> more = nodes("Gemm");
    found.insert(found.end(), more.begin(), more.end());
    return found;
  }

  Draft draft_;
  ir::GraphBuilder& g_ = draft_.g;
};

class F16Test : public PrecisionTest, public testing::WithParamInterface<Precision> {
 protected:
  static DataType half() {
    return GetParam() == Precision::kFloat16 ? DataType::kFloat16 : DataType::kBfloat16;
  }
};

TEST_P(F16Test, AllProductsReadNumbersOf16Bits) {
  Value* w = input("w", {64, 48});
  Value* v = input("v", {48, 32});
  Value* h = g_.op("Tanh", {g_.matmul(input("x", {16, 64}), w)});
  const std::vector<Value*> gradients = lower(g_.matmul(h, v), {w, v}, {.type = GetParam()});
  ASSERT_EQ(products().size(), 5U);  // two, and three of the gradient: x has none
  for (const Node* product : products()) {
    EXPECT_TRUE(is_rounded(product->inputs[0], half())) << product->outputs[0]->name;
    EXPECT_TRUE(is_rounded(product->inputs[1], half())) << product->outputs[0]->name;
  }
  for (const Value* gradient : gradients) {
    EXPECT_EQ(gradient->dtype(), kFloat);
    EXPECT_NE(gradient->producer->op_type, "Cast") << "gradients of weights are not rounded";
  }
}

TEST_P(F16Test, NothingIsRoundedWithinAGroupOfElementwiseNodes) {
  Value* w = input("w", {64, 48});
  Value* v = input("v", {48, 32});
  Value* product = g_.matmul(input("x", {16, 64}), w);
  Value* sin = g_.op("Sin", {g_.op("Neg", {product})});
  lower(g_.matmul(sin, v), {v}, {.type = GetParam()});
  EXPECT_EQ(sin->producer->inputs[0]->producer->op_type, "Neg");
  EXPECT_EQ(sin->producer->inputs[0]->producer->inputs[0], product);
}

TEST_P(F16Test, TheLossAndItsGradientAreFloat32) {
  Value* w = input("w", {64, 48});
  Value* y = g_.matmul(input("x", {16, 64}), w);
  lower(y, {w}, {.type = GetParam()});
  const std::vector<const Node*> squares = nodes("Mul");
  ASSERT_FALSE(squares.empty());
  EXPECT_EQ(squares.front()->inputs[0], y) << "scores that no product follows";
}

TEST_P(F16Test, ExcludedNodesAndTheirGradientsReadFloat32) {
  Value* w = input("w", {64, 48});
  Value* v = input("v", {48, 32});
  Value* x = input("x", {16, 64});
  Value* h = g_.op("Tanh", {g_.matmul(x, w)});
  Node* last = g_.matmul(h, v)->producer;
  last->name = "last";
  lower(last->outputs[0], {w, v}, {.type = GetParam(), .float32_nodes = {"las*"}});
  EXPECT_EQ(last->inputs[1], v);
  std::size_t of_floats = 0;
  for (const Node* product : products()) {
    if (!is_rounded(product->inputs[0], half())) ++of_floats;
  }
  EXPECT_EQ(of_floats, 3U);  // it and its two gradients
}

TEST_P(F16Test, WhatOnlyMovesElementsMovesF16) {
  Value* w = input("w", {64, 64});
  Value* h = g_.matmul(g_.op("Tanh", {g_.matmul(input("x", {64, 64}), w)}), w);
  Value* moved = g_.transpose(h, {1, 0});
  const Node* transpose = moved->producer;
  lower(g_.matmul(moved, w), {w}, {.type = GetParam()});
  EXPECT_EQ(transpose->inputs[0]->dtype(), half());
}

INSTANTIATE_TEST_SUITE_P(Precision, F16Test,
                         testing::Values(Precision::kBfloat16, Precision::kFloat16),
                         [](const auto& one) {
                           return one.param == Precision::kFloat16 ? "fp16" : "bf16";
                         });

TEST_F(PrecisionTest, Float32ChangesNothing) {
  Value* w = input("w", {64, 48});
  Value* y = g_.matmul(input("x", {16, 64}), w);
  lower(y, {w}, {});
  EXPECT_EQ(nodes("Cast").size(), 0U);
}

// Convolution, BatchNormalization, Clip, convolution.
class ClippedNormalizationTest : public PrecisionTest {
 protected:
  Value* write() {
    Value* x = input("x", {4, 3, 16, 16});
    w_ = input("w", {8, 3, 1, 1});
    v_ = input("v", {8, 8, 1, 1});
    sums_ = g_.op("Conv", {x, w_});
    norm_ = g_.ops("BatchNormalization",
                   {sums_, input("s", {8}), input("b", {8}), input("m", {8}), input("q", {8})}, 3,
                   {{.name = "training_mode", .value = std::int64_t{1}}})[0];
    const auto bound = [&](float value) {
      return graph().add_initializer("bound", Tensor::scalar(value));
    };
    clipped_ = g_.op("Clip", {norm_, bound(0), bound(6)});
    return g_.op("Conv", {clipped_, v_});
  }
  bool has_f16(const Value* value) {
    const ir::Uses uses(graph());
    return std::ranges::any_of(uses.of(value), [](const ir::Use& use) {
      return use.node != nullptr && is_cast(use.node->outputs[0], DataType::kBfloat16);
    });
  }

  Value *w_ = nullptr, *v_ = nullptr, *sums_ = nullptr, *norm_ = nullptr, *clipped_ = nullptr;
};

TEST_F(ClippedNormalizationTest, WhatTheClipReadsIsNotStored) {
  Value* y = write();
  lower(y, {w_, v_}, {.type = Precision::kBfloat16});
  EXPECT_TRUE(has_f16(sums_));
  EXPECT_FALSE(has_f16(norm_));
  EXPECT_TRUE(has_f16(clipped_));
}

TEST_F(PrecisionTest, OptionsOutOfRangeAreRefused) {
  Value* w = input("w", {64, 48});
  Value* y = g_.matmul(input("x", {16, 64}), w);
  EXPECT_THROW(check_precision({.type = Precision::kFloat16, .loss_scale = 0.5}), OptionError);
  EXPECT_THROW(check_precision({.type = Precision::kFloat16, .growth_interval = 0}), OptionError);
  EXPECT_THROW(lower(y, {w}, {.type = Precision::kBfloat16, .float32_nodes = {"no such node"}}),
               OptionError);
}

TEST_F(PrecisionTest, ProductsOfFloat64AreRefused) {
  Value* w = input("w", {64, 48}, DataType::kFloat64);
  Value* y = g_.matmul(input("x", {16, 64}, DataType::kFloat64), w);
  EXPECT_THROW(lower(y, {w}, {.type = Precision::kBfloat16}), OptionError);
}

}  // namespace
}  // namespace onnxgrad::train::precision_test

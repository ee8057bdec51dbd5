#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/pattern.h"
#include "opdef/fused.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// Where the mask of a Relu and the sum of a bias move. Numbers are compared in
// tests/python/test_pool_gradients.py.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

class FusePoolGradientsTest : public testing::Test {
 protected:
  ir::Graph& graph() { return bench_.graph(); }
  Value* input(const char* name, const Dims& dims) {
    return graph().add_input(name, ir::Type::tensor(DataType::kFloat32, dims));
  }
  std::vector<ir::Attribute> window() {
    return {{.name = "kernel_shape", .value = std::vector<std::int64_t>{2, 2}},
            {.name = "strides", .value = std::vector<std::int64_t>{2, 2}},
            {.name = "pads", .value = std::vector<std::int64_t>{0, 0, 0, 0}},
            {.name = "dilations", .value = std::vector<std::int64_t>{1, 1}},
            {.name = "auto_pad", .value = std::string("NOTSET")},
            {.name = "ceil_mode", .value = std::int64_t{0}},
            {.name = "storage_order", .value = std::int64_t{0}}};
  }
  Value* gradient(Value* dy, Value* indices, Value* x) {
    return g_.call("MaxPoolGrad", {dy, indices, x}, 1, window())[0];
  }
  Value* mask(Value* of, Value* dx) {
    return g_.where(g_.greater(of, g_.scalar_like(of, 0)), dx, g_.scalar_like(dx, 0));
  }
  bool fuse(std::vector<Value*> outputs, bool is_preferred = true) {
    graph().outputs = std::move(outputs);
    graph().nodes.shrink_to_fit();  // a list that grows while it is read is somewhere else then
    PassContext context = bench_.context();
    context.prefers = [=](const Node&) { return is_preferred; };
    const bool changed = fuse_pool_gradients(graph(), context);
    EXPECT_EQ(ir::find_fault(graph()), "");
    EXPECT_FALSE(fuse_pool_gradients(graph(), context));
    return changed;
  }
  std::int64_t count(std::string_view op_type) {
    return std::ranges::count(graph().nodes, op_type, &Node::op_type);
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
  Value* x_ = g_.op("Relu", {input("z", {2, 3, 8, 6})});
  std::vector<Value*> pool_ = g_.ops("MaxPool", {x_}, 2, window());
  Value* dy_ = input("dy", {2, 3, 4, 3});
};

TEST_F(FusePoolGradientsTest, MasksWhatIsSpread) {
  Value* dz = mask(x_, gradient(dy_, pool_[1], x_));
  ASSERT_TRUE(fuse({pool_[0], dz}));
  const Node* spread = dz->producer;
  ASSERT_TRUE(opdef::is_fused(spread, opdef::kMaxPoolGrad));
  ASSERT_EQ(spread->inputs.size(), 2U);
  EXPECT_EQ(spread->inputs[1], pool_[1]);
  const Node* where = spread->inputs[0]->producer;
  ASSERT_TRUE(ir::is_op(where, "Where"));
  EXPECT_EQ(where->inputs[1], dy_);
  EXPECT_EQ(where->inputs[0]->producer->inputs[0], pool_[0]);
  EXPECT_EQ(count("Where"), 1);
  EXPECT_EQ(count("Greater"), 1);
  EXPECT_EQ(dz->type.static_dims(), Dims({2, 3, 8, 6}));
}

TEST_F(FusePoolGradientsTest, SumsOverAllPlacesAreThoseOfTheWindows) {
  Value* dz = mask(x_, gradient(dy_, pool_[1], x_));
  Value* bias = g_.reduce_sum(dz, {0, 2, 3}, false);
  Value* half = g_.reduce_sum(dz, {0, 2}, false);
  ASSERT_TRUE(fuse({pool_[0], dz, bias, half}));
  EXPECT_TRUE(ir::is_op(bias->producer->inputs[0]->producer, "Where"));
  EXPECT_EQ(half->producer->inputs[0], dz);
  EXPECT_EQ(bias->type.static_dims(), Dims({3}));
}

TEST_F(FusePoolGradientsTest, OtherReadersKeepTheMaskWhereItIs) {
  Value* dx = gradient(dy_, pool_[1], x_);
  Value* dz = mask(x_, dx);
  ASSERT_TRUE(fuse({pool_[0], dz, dx}));  // only the shape's input is dropped
  EXPECT_TRUE(ir::is_op(dz->producer, "Where"));
  EXPECT_TRUE(opdef::is_fused(dx->producer, opdef::kMaxPoolGrad));
}

TEST_F(FusePoolGradientsTest, MasksOfOtherValuesStay) {
  Value* other = input("other", {2, 3, 8, 6});
  Value* dz = mask(other, gradient(dy_, pool_[1], x_));
  Value* taken = graph().add_input("taken", ir::Type::tensor(DataType::kInt64, Dims{2, 3, 4, 3}));
  Value* of_input = mask(x_, gradient(dy_, taken, x_));
  ASSERT_TRUE(fuse({pool_[0], dz, of_input}));
  EXPECT_TRUE(ir::is_op(dz->producer, "Where"));
  EXPECT_TRUE(ir::is_op(of_input->producer, "Where"));
}

TEST_F(FusePoolGradientsTest, WithoutAKernelTheInputStays) {
  Value* dx = gradient(dy_, pool_[1], x_);
  EXPECT_FALSE(fuse({pool_[0], dx}, /*is_preferred=*/false));
  EXPECT_EQ(dx->producer->inputs.size(), 3U);
}

TEST_F(FusePoolGradientsTest, AveragePools) {
  Value* dx = g_.call("AveragePoolGrad", {dy_, x_}, 1, window())[0];
  ASSERT_TRUE(fuse({dx}));
  ASSERT_TRUE(opdef::is_fused(dx->producer, opdef::kAveragePoolGrad));
  EXPECT_EQ(dx->producer->inputs, std::vector<Value*>{dy_});
  EXPECT_EQ(count("Relu"), 0);
}

}  // namespace
}  // namespace onnxgrad::passes

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "opdef/quantized_weight.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// Which matrices stay packed; ops/fused/quantized_gemm_test.cpp compares products, and
// tests/python/test_quantized_base.py has all forms of files.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

// y = x W' and the gradient dy W with W of 300 x 200 integers in blocks of 32; names of operators.
std::vector<std::string> plan(testing_support::Workbench& bench, bool has_constant_scales) {
  ir::Graph& graph = bench.graph();
  ir::GraphBuilder& g = bench.builder();
  const auto input = [&](const char* name, Dims dims) {
    return graph.add_input(name, ir::Type::tensor(DataType::kFloat32, dims));
  };
  Value* codes = g.constant(Tensor::zeros(DataType::kInt4, {300, 200}));
  Value* scales = has_constant_scales ? g.constant(Tensor::zeros(DataType::kFloat32, {300, 7}))
                                      : input("scales", {300, 7});
  Value* weight = g.op("DequantizeLinear", {codes, scales},
                       {{"axis", std::int64_t{1}}, {"block_size", std::int64_t{32}}});
  Value* y = g.matmul(input("x", {5, 200}), g.transpose(weight, {1, 0}));
  graph.outputs = {y, g.matmul(input("dy", {5, 300}), weight)};
  for (const Pass& pass : plan_passes(true)) pass.run(graph, bench.context());
  EXPECT_EQ(ir::find_fault(graph), "");
  EXPECT_FALSE(fuse_quantized_gemm(graph, bench.context()));
  std::vector<std::string> names;
  for (const Node* node : graph.nodes) names.push_back(node->op_type);
  return names;
}

TEST(FuseQuantizedGemm, BothPassesReadTheIntegers) {
  testing_support::Workbench bench;
  const std::string name(opdef::kQuantizedGemm);
  ASSERT_EQ(plan(bench, true), (std::vector<std::string>{name, name}));
  for (const Node* node : bench.graph().nodes) {
    const auto gemm = opdef::QuantizedGemm::read(*node);
    EXPECT_EQ(gemm.transpose_b, node == bench.graph().nodes.front());
    EXPECT_EQ(gemm.form.rows, 300);
    EXPECT_EQ(gemm.form.columns, 200);
    EXPECT_EQ(gemm.form.column_block, 32);
    EXPECT_EQ(gemm.form.scale_row, 7);
    EXPECT_EQ(gemm.form.type, DataType::kInt4);
  }
}

TEST(FuseQuantizedGemm, ScalesThatAreTrainedAreNoConstants) {
  testing_support::Workbench bench;
  const auto names = plan(bench, false);
  EXPECT_EQ(std::ranges::count(names, std::string(opdef::kQuantizedGemm)), 0);
}

}  // namespace
}  // namespace onnxgrad::passes

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

// Which sums over a result a product computes itself; ops/fused/fused_gemm_test.cpp compares
// values, passes_test.cpp has other epilogues.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

// Nodes of the plan of an activation's gradient and its sums over `axes`, which are the gradient of
// a bias if these are all axes but the last: one for each product or group of element-wise work.
std::vector<const Node*> plan(testing_support::Workbench& bench, const Dims& leading,
                              std::vector<std::int64_t> axes) {
  ir::Graph& graph = bench.graph();
  ir::GraphBuilder& g = bench.builder();
  const auto input = [&](const char* name, Dims dims) {
    return graph.add_input(name, ir::Type::tensor(DataType::kFloat32, dims));
  };
  std::vector<std::int64_t> x(leading.begin(), leading.end());
  std::vector<std::int64_t> slope = x;
  x.push_back(100);
  slope.push_back(50);
  Value* product = g.matmul(input("x", Dims(x)), input("w", {100, 50}));
  Value* stored = g.mul(product, input("slope", Dims(slope)));
  graph.outputs = {stored, g.reduce_sum(stored, std::move(axes), false)};
  for (const Pass& pass : plan_passes(true)) pass.run(graph, bench.context());
  EXPECT_EQ(ir::find_fault(graph), "");
  return {graph.nodes.begin(), graph.nodes.end()};
}

TEST(FuseEpilogues, ColumnSumsBelongToTheProduct) {
  for (const Dims& leading : {Dims{15}, Dims{3, 5}, Dims{1, 15}}) {
    testing_support::Workbench bench;
    std::vector<std::int64_t> axes;
    for (std::size_t axis = 0; axis < leading.rank(); ++axis) {
      axes.push_back(static_cast<std::int64_t>(axis));
    }
    const auto nodes = plan(bench, leading, axes);
    ASSERT_EQ(nodes.size(), 1U) << ir::to_text(bench.graph());
    ASSERT_TRUE(opdef::is_fused(nodes[0], opdef::kGemm));
    const auto gemm = opdef::Gemm::read(*nodes[0]);
    EXPECT_TRUE(gemm.sums_columns);
    EXPECT_EQ(gemm.epilogue.value().to_string(), "mul(in0, in1)");
  }
}

TEST(FuseEpilogues, OtherSumsDoNot) {
  for (const std::vector<std::int64_t>& axes :
       std::vector<std::vector<std::int64_t>>{{0}, {1}, {2}, {0, 2}, {0, 1, 2}}) {
    testing_support::Workbench bench;
    for (const Node* node : plan(bench, {3, 5}, axes)) {
      if (!opdef::is_fused(node, opdef::kGemm)) continue;
      EXPECT_FALSE(opdef::Gemm::read(*node).sums_columns) << ir::to_text(bench.graph());
    }
  }
}

}  // namespace
}  // namespace onnxgrad::passes

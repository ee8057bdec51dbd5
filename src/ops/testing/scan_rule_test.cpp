#include <gtest/gtest.h>

#include "ops/testing/case_runner.h"

// Rules of nodes with subgraphs may change the primal: values that the gradient of a body reads
// become additional outputs of the node.

namespace onnxgrad::ops_test {
namespace scan_rule {

using ir::Node;

// Recurrent layer, h' = tanh(x W + h U), that also outputs h' h at each step.
const OpCase kRecurrence{
    .name = "recurrence",
    .model = R"(
  last, all = Scan <num_scan_inputs = 1, body = step ($T[3] h, $T[2] x) => ($T[3] next, $T[3] y) {
    from_x = MatMul (x, w)
    from_h = MatMul (h, u)
    sum = Add (from_x, from_h)
    next = Tanh (sum)
    y = Mul (next, h)
  }> (h0, xs))",
    .inputs = {uniform({3}, -1, 1).named("h0"), uniform({4, 2}, -1, 1).named("xs"),
               uniform({2, 3}, -1, 1).named("w"), uniform({3, 3}, -1, 1).named("u")},
    .outputs = {"last", "all"}};

const Node& find_scan(const ir::Model& model) {
  return **std::ranges::find(model.graph->nodes, "Scan", &Node::op_type);
}

}  // namespace scan_rule

TEST(ScanRule, SavesWhatTheGradientOfTheBodyReads) {
  using namespace scan_rule;  // NOLINT(google-build-using-namespace): this file's own
  const runtime::Engine& engine = builtin_engine();
  const BuiltCase built = build_case(kRecurrence, {.dtype = DataType::kFloat64});

  // The products and the state before each step are saved, but not the sum, nor values computed
  // from it.
  EXPECT_EQ(find_scan(*built.forward).outputs.size(), 2U);
  EXPECT_EQ(find_scan(*built.gradient).outputs.size(), 5U) << ir::to_text(*built.gradient);
  EXPECT_EQ(ir::find_fault(*built.gradient->graph), "");

  const CaseResult result = run_case(kRecurrence, built, {}, engine);
  runtime::Executor forward(built.forward, engine, {});
  const ScalarFunction f = [&](const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> outputs = forward.run(inputs);
    double sum = 0;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const std::vector<double> y = outputs[k].to_doubles();
      const std::vector<double> seed = result.seeds[k].to_doubles();
      for (std::size_t i = 0; i < y.size(); ++i) sum += seed[i] * y[i];
    }
    return sum;
  };
  ASSERT_EQ(result.gradients.size(), 4U);
  for (const Difference& difference :
       check_gradient(f, built.inputs, built.wrt, result.gradients)) {
    ADD_FAILURE() << difference.to_string();
  }
}

}  // namespace onnxgrad::ops_test

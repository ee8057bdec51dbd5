#include "passes/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "opdef/expr.h"
#include "opdef/fused.h"
#include "passes/testing/context.h"

namespace onnxgrad::passes {
namespace {

using ir::Value;

class PassTest : public testing::Test {
 protected:
  Value* input(const char* name, Dims dims, DataType dtype = DataType::kFloat32) {
    return graph().add_input(name, ir::Type::tensor(dtype, dims));
  }
  ir::Graph& graph() { return bench_.graph(); }
  const opdef::OpRegistry& registry() { return testing_support::Workbench::registry(); }
  PassContext context() { return bench_.context(); }
  std::vector<std::string> op_types() {
    std::vector<std::string> types;
    for (const ir::Node* node : graph().nodes) types.push_back(node->op_type);
    return types;
  }
  void run(bool fuse = true) {
    for (const Pass& pass : plan_passes(fuse)) {
      pass.run(graph(), context());
      ASSERT_EQ(ir::find_fault(graph()), "") << pass.name;
    }
    for (const ir::Node* node : graph().nodes) {
      for (const Value* output : node->outputs) EXPECT_TRUE(output->type.static_dims());
    }
  }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
};

// Linear regression by gradient descent, as the training step's graph has it.
class LinearStepTest : public PassTest {
 protected:
  Value* x_ = input("X", {10, 2});
  Value* y_ = input("y", {10, 1});
  Value* w_ = input("W", {2, 1});
  Value* b_ = input("b", {1});
  Value* rate_ = input("rate", {});

  Value* difference() { return g_.sub(g_.add(g_.matmul(x_, w_), b_), y_); }

  // The operators of the plan, sorted, with this loss and these updates.
  std::vector<std::string> plan_of(Value* loss, bool trains_bias = true) {
    const std::vector<Value*> weights{w_, b_};
    const std::vector<Value*> outputs{loss};
    const std::vector<Value*> seeds{g_.ones_like(loss)};
    const auto gradients = autodiff::add_vjp(g_, registry(), outputs, seeds, weights);
    graph().outputs.insert(graph().outputs.begin(), loss);
    graph().outputs.push_back(g_.sub(w_, g_.mul(rate_, gradients[0])));
    if (trains_bias) graph().outputs.push_back(g_.sub(b_, g_.mul(rate_, gradients[1])));
    PassContext with_states = context();
    with_states.next_states = {graph().outputs.begin() + 1, graph().outputs.end()};
    for (const Pass& pass : plan_passes(true)) {
      pass.run(graph(), with_states);
      EXPECT_EQ(ir::find_fault(graph()), "") << pass.name;
    }
    std::vector<std::string> types = op_types();
    std::ranges::sort(types);
    return types;
  }
};

using Operators = std::vector<std::string>;
const Operators kOneKernel{"LinearStep"};
const Operators kThreeKernels{"Elementwise", "Gemm", "GemmUpdate"};

TEST_F(LinearStepTest, IsOneKernel) {
  Value* d = difference();
  EXPECT_EQ(plan_of(g_.reduce_sum(g_.mul(d, d), {}, false)), kOneKernel) << ir::to_text(graph());
}

TEST_F(LinearStepTest, HowTheSquareIsWrittenDoesNotMatter) {
  Value* square = g_.op("Pow", {g_.sub(y_, g_.add(b_, g_.matmul(x_, w_))), g_.scalar_like(y_, 2)});
  EXPECT_EQ(plan_of(g_.reduce_sum(square, {}, false)), kOneKernel) << ir::to_text(graph());
}

TEST_F(LinearStepTest, ABiasThatIsNotTrainedIsReadAlone) {
  Value* d = difference();
  EXPECT_EQ(plan_of(g_.reduce_sum(g_.mul(d, d), {}, false), /*trains_bias=*/false), kOneKernel);
}

TEST_F(LinearStepTest, FactorsOfScoresAndBiasDoNotMatter) {  // a Gemm's alpha and beta
  Value* scores = g_.add(g_.scale(g_.matmul(x_, w_), 0.5), g_.scale(b_, 2));
  Value* d = g_.sub(scores, y_);
  EXPECT_EQ(plan_of(g_.reduce_sum(g_.mul(d, d), {}, false)), kOneKernel) << ir::to_text(graph());
}

TEST_F(LinearStepTest, AnotherLossIsNoLinearStep) {
  EXPECT_EQ(plan_of(g_.reduce_sum(g_.op("Abs", {difference()}), {}, false)), kThreeKernels);
}

TEST_F(LinearStepTest, ScoresThatAreReadOtherwiseAreKept) {
  Value* d = difference();
  graph().outputs = {d};
  EXPECT_EQ(plan_of(g_.reduce_sum(g_.mul(d, d), {}, false)), kThreeKernels);
}

TEST_F(LinearStepTest, APenaltyIsNotLost) {
  Value* d = difference();
  Value* penalty = g_.reduce_sum(g_.mul(w_, w_), {}, false);
  const auto types = plan_of(g_.add(g_.reduce_sum(g_.mul(d, d), {}, false), penalty));
  EXPECT_EQ(std::ranges::count(types, "LinearStep"), 0);
}

TEST_F(LinearStepTest, WeightsOfRowsAreNotLost) {
  Value* d = difference();
  Value* weighted = g_.mul(input("row_weights", {10, 1}), g_.mul(d, d));
  EXPECT_EQ(plan_of(g_.reduce_sum(weighted, {}, false)), kThreeKernels);
}

// Attention of two heads that were split off by Reshape and Transpose, with its gradient: two nodes
// that read and write the tensors before these; not where something else reads the probabilities.
TEST_F(PassTest, AttentionIsOneNodeEachWay) {
  for (const bool is_read : {false, true}) {
    SCOPED_TRACE(is_read);
    testing_support::Workbench bench;
    ir::GraphBuilder& g = bench.builder();
    const auto split = [&](const char* name, const std::vector<std::int64_t>& perm) {
      Value* x = bench.graph().add_input(name, ir::Type::tensor(DataType::kFloat32, Dims{2, 5, 6}));
      return std::pair{x, g.transpose(g.reshape(x, g.ints({2, 5, 2, 3})), perm)};
    };
    const auto [xq, q] = split("q", {0, 2, 1, 3});
    const auto [xk, kt] = split("k", {0, 2, 3, 1});
    const auto [xv, v] = split("v", {0, 2, 1, 3});
    Value* shares = g.op("Softmax", {g.scale(g.matmul(q, kt), 0.5)},
                         {{.name = "axis", .value = std::int64_t{-1}}});
    Value* y = g.reshape(g.transpose(g.matmul(shares, v), {0, 2, 1, 3}), g.ints({2, 5, 6}));
    const std::vector<Value*> weights{xq, xk, xv};
    const std::vector<Value*> outputs{y};
    Value* seed =
        bench.graph().add_input("seed", ir::Type::tensor(DataType::kFloat32, Dims{2, 5, 6}));
    const std::vector<Value*> seeds{seed};
    bench.graph().outputs = autodiff::add_vjp(g, registry(), outputs, seeds, weights);
    bench.graph().outputs.push_back(is_read ? shares : y);
    for (const Pass& pass : plan_passes(true)) {
      pass.run(bench.graph(), bench.context());
      ASSERT_EQ(ir::find_fault(bench.graph()), "") << pass.name;
    }
    std::vector<std::string> types;
    for (const ir::Node* node : bench.graph().nodes) {
      if (node->op_type != "Reshape") types.push_back(node->op_type);
    }
    const std::vector<std::string> expected{"Attention", "AttentionGradient"};
    EXPECT_EQ(types == expected, !is_read) << ir::to_text(bench.graph());
    EXPECT_FALSE(fuse_attention(bench.graph(), bench.context()));
  }
}

// GELU and SiLU in the forms of exporters, each with its gradient: one node, and a product in what
// follows; not functions that are only similar.
TEST_F(PassTest, ActivationsAreOneNode) {
  using Form = Value* (*)(ir::GraphBuilder& g, Value* x);
  const Form divided = [](ir::GraphBuilder& g, Value* x) {
    Value* root = g.scalar_like(x, 1.4142135623730951);
    Value* erf = g.op("Erf", {g.div(x, root)});
    return g.scale(g.mul(x, g.add(erf, g.scalar_like(x, 1))), 0.5);
  };
  const Form halved_first = [](ir::GraphBuilder& g, Value* x) {
    Value* erf = g.op("Erf", {g.scale(x, 0.70710678118654752)});
    return g.mul(g.scale(x, 0.5), g.add(g.scalar_like(x, 1), erf));
  };
  const Form by_tanh = [](ir::GraphBuilder& g, Value* x) {
    Value* cube = g.op("Pow", {x, g.scalar_like(x, 3)});
    Value* inner = g.scale(g.add(x, g.scale(cube, 0.044715)), 0.7978845608028654);
    return g.mul(g.scale(x, 0.5), g.add(g.op("Tanh", {inner}), g.scalar_like(x, 1)));
  };
  const Form gated = [](ir::GraphBuilder& g, Value* x) { return g.mul(x, g.op("Sigmoid", {x})); };
  const Form standard = [](ir::GraphBuilder& g, Value* x) {
    return g.op("Gelu", {x}, {{.name = "approximate", .value = std::string("none")}});
  };
  const Form standard_tanh = [](ir::GraphBuilder& g, Value* x) {
    return g.op("Gelu", {x}, {{.name = "approximate", .value = std::string("tanh")}});
  };
  const Form quick = [](ir::GraphBuilder& g, Value* x) {
    return g.mul(x, g.op("Sigmoid", {g.scale(x, 1.702)}));
  };
  const std::vector<std::pair<Form, int>> forms = {{divided, 0}, {halved_first, 0},  {standard, 0},
                                                   {by_tanh, 1}, {standard_tanh, 1}, {gated, 2},
                                                   {quick, -1}};
  for (std::size_t i = 0; i < forms.size(); ++i) {
    for (const bool has_gradient : {false, true}) {
      SCOPED_TRACE(i);
      testing_support::Workbench bench;
      ir::GraphBuilder& g = bench.builder();
      const auto add_input = [&](const char* name) {
        return bench.graph().add_input(name, ir::Type::tensor(DataType::kFloat32, Dims{64, 64}));
      };
      Value* x = add_input("x");
      Value* y = forms[i].first(g, x);
      bench.graph().outputs = {y};
      if (has_gradient) {
        const std::vector<Value*> weights{x};
        const std::vector<Value*> outputs{y};
        const std::vector<Value*> seeds{add_input("seed")};
        bench.graph().outputs.push_back(
            autodiff::add_vjp(g, registry(), outputs, seeds, weights)[0]);
      }
      fold_constants(bench.graph(), bench.context());
      EXPECT_EQ(fuse_activations(bench.graph(), bench.context()), forms[i].second >= 0);
      ASSERT_EQ(ir::find_fault(bench.graph()), "");
      if (forms[i].second < 0) continue;
      EXPECT_EQ(bench.graph().nodes.size(), has_gradient ? 2U : 1U) << ir::to_text(bench.graph());
      EXPECT_EQ(y->producer->int_attribute("function"), forms[i].second);
      EXPECT_FALSE(fuse_activations(bench.graph(), bench.context()));
    }
  }
}

// The gradient of a cross-entropy reads the scores and one number per row; not where something else
// reads the log-probabilities, nor where a device has one of the two kernels.
TEST_F(PassTest, CrossEntropyKeepsOneNumberPerRow) {
  enum class Case : std::uint8_t { kUsual, kAnotherReader, kLossAlone };
  for (const Case one : {Case::kUsual, Case::kAnotherReader, Case::kLossAlone}) {
    SCOPED_TRACE(static_cast<int>(one));
    testing_support::Workbench bench;
    ir::GraphBuilder& g = bench.builder();
    Value* scores = bench.graph().add_input("x", ir::Type::tensor(DataType::kFloat32, Dims{8, 10}));
    Value* labels = bench.graph().add_input("labels", ir::Type::tensor(DataType::kInt64, Dims{8}));
    const std::vector<Value*> both = g.ops("SoftmaxCrossEntropyLoss", {scores, labels}, 2);
    const std::vector<Value*> weights{scores};
    const std::vector<Value*> outputs{both[0]};
    const std::vector<Value*> seeds{g.ones_like(both[0])};
    bench.graph().outputs = autodiff::add_vjp(g, registry(), outputs, seeds, weights);
    bench.graph().outputs.push_back(one == Case::kAnotherReader ? both[1] : both[0]);
    fold_constants(bench.graph(), bench.context());
    PassContext context = bench.context();
    context.prefers = [=](const ir::Node& node) {
      return one != Case::kLossAlone || !node.op_type.ends_with("Grad");
    };
    EXPECT_EQ(keep_log_sums(bench.graph(), context), one == Case::kUsual);
    ASSERT_EQ(ir::find_fault(bench.graph()), "");
    EXPECT_FALSE(keep_log_sums(bench.graph(), context));
    if (one != Case::kUsual) continue;
    const ir::Node* loss = both[0]->producer;
    EXPECT_EQ(loss->outputs[1]->type.static_dims(), Dims{8});
    EXPECT_EQ(bench.graph().outputs[0]->producer->inputs[4], loss->outputs[1]);
  }
}

// The gates of a cell are computed once, by the operator, and its gradient reads them; not where
// another node is the one that they belong to.
TEST_F(PassTest, CellsKeepTheirGates) {
  for (const auto& [op_type, gates] : {std::pair{"LSTM", 4}, {"GRU", 3}, {"RNN", 1}}) {
    SCOPED_TRACE(op_type);
    testing_support::Workbench bench;
    ir::GraphBuilder& g = bench.builder();
    const auto add_input = [&](const char* name, const Dims& dims) {
      return bench.graph().add_input(name, ir::Type::tensor(DataType::kFloat32, dims));
    };
    Value* x = add_input("x", {5, 2, 3});
    Value* w = add_input("w", {1, gates * 4, 3});
    Value* r = add_input("r", {1, gates * 4, 4});
    Value* y = g.op(op_type, {x, w, r}, {{.name = "hidden_size", .value = std::int64_t{4}}});
    const std::vector<Value*> weights{x, w, r};
    const std::vector<Value*> outputs{y};
    const std::vector<Value*> seeds{g.ones_like(y)};
    bench.graph().outputs = autodiff::add_vjp(g, registry(), outputs, seeds, weights);
    fold_constants(bench.graph(), bench.context());  // attributes are complete afterwards
    const std::size_t nodes = bench.graph().nodes.size();
    ASSERT_TRUE(keep_gates(bench.graph(), bench.context()));
    ASSERT_EQ(ir::find_fault(bench.graph()), "");
    EXPECT_EQ(bench.graph().nodes.size(), nodes - 1);
    EXPECT_EQ(y->producer->domain, ir::kFusedDomain);
    EXPECT_EQ(y->producer->op_type, op_type);
    EXPECT_FALSE(keep_gates(bench.graph(), bench.context()));
  }
}

// The gates of an LSTM are kept as values if its gradient is their only reader and they are a
// sigmoid or tanh of their sums.
TEST_F(PassTest, GatesOfLstmAreKeptAsValues) {
  enum class Case : std::uint8_t { kUsual, kActivation, kClip, kPeepholes, kAnotherReader };
  for (const Case one :
       {Case::kUsual, Case::kActivation, Case::kClip, Case::kPeepholes, Case::kAnotherReader}) {
    SCOPED_TRACE(static_cast<int>(one));
    testing_support::Workbench bench;
    ir::GraphBuilder& g = bench.builder();
    const auto add_input = [&](const char* name, const Dims& dims) {
      return bench.graph().add_input(name, ir::Type::tensor(DataType::kFloat32, dims));
    };
    Value* w = add_input("w", {1, 16, 3});
    std::vector<Value*> inputs = {add_input("x", {5, 2, 3}),
                                  w,
                                  add_input("r", {1, 16, 4}),
                                  nullptr,
                                  nullptr,
                                  nullptr,
                                  nullptr};
    if (one == Case::kPeepholes) inputs.push_back(add_input("p", {1, 12}));
    std::vector<ir::Attribute> attributes = {{.name = "hidden_size", .value = std::int64_t{4}}};
    if (one == Case::kActivation) {
      attributes.push_back({.name = "activations",
                            .value = std::vector<std::string>{"Sigmoid", "Tanh", "Softsign"}});
    }
    if (one == Case::kClip) attributes.push_back({.name = "clip", .value = 1.0F});
    Value* y = g.op("LSTM", inputs, attributes);
    const std::vector<Value*> weights{w};
    const std::vector<Value*> outputs{y};
    const std::vector<Value*> seeds{g.ones_like(y)};
    bench.graph().outputs = autodiff::add_vjp(g, registry(), outputs, seeds, weights);
    fold_constants(bench.graph(), bench.context());
    ir::Node* gradient = nullptr;
    for (ir::Node* node : bench.graph().nodes) {
      if (node->input(8) != nullptr) gradient = node;
    }
    ASSERT_NE(gradient, nullptr);
    if (one == Case::kAnotherReader) bench.graph().outputs.push_back(g.neg(gradient->input(8)));
    ASSERT_TRUE(keep_gates(bench.graph(), bench.context()));
    ASSERT_EQ(ir::find_fault(bench.graph()), "");
    const std::int64_t expected = one == Case::kUsual ? 1 : 0;
    EXPECT_EQ(gradient->domain, expected == 1 ? ir::kFusedDomain : ir::kFunctionDomain);
    EXPECT_EQ(gradient->int_attribute("gate_values", 0), expected);
    EXPECT_EQ(y->producer->int_attribute("gate_values", 0), expected);
    EXPECT_EQ(y->producer->domain, ir::kFusedDomain);
  }
}

TEST_F(PassTest, GatesOfAnotherCellAreNotKept) {
  Value* x = input("x", {5, 2, 3});
  Value* w = input("w", {1, 4, 3});
  Value* r = input("r", {1, 4, 4});
  const auto attributes = [](float clip) {
    return std::vector<ir::Attribute>{{.name = "hidden_size", .value = std::int64_t{4}},
                                      {.name = "clip", .value = clip}};
  };
  Value* y = g_.op("RNN", {x, w, r}, attributes(1));
  Value* gates = g_.call("RNNGates", {x, w, r, nullptr, nullptr, nullptr, y}, 1, attributes(2))[0];
  Value* others =
      g_.call("RNNGates", {g_.neg(x), w, r, nullptr, nullptr, nullptr, y}, 1, attributes(1))[0];
  graph().outputs = {y, gates, others};
  EXPECT_FALSE(keep_gates(graph(), context()));
}

TEST_F(PassTest, BiasAndActivationBecomeAnEpilogue) {
  Value* x = input("x", {15, 100});
  Value* w = input("w", {100, 50});
  Value* b = input("b", {50});
  graph().outputs = {g_.op("Relu", {g_.add(g_.matmul(x, w), b)})};
  run();
  ASSERT_EQ(op_types(), std::vector<std::string>{"Gemm"});
  const ir::Node& gemm = *graph().nodes[0];
  EXPECT_EQ(gemm.inputs, (std::vector<Value*>{x, w, b}));
  EXPECT_EQ(opdef::ExprProgram::from_ints(gemm.ints_attribute("epilogue")).to_string(),
            "relu(add(in0, in1))");
}

TEST_F(PassTest, GemmIsAProductWithScaledTerms) {
  Value* a = input("a", {3, 2});
  Value* b = input("b", {4, 3});
  Value* c = input("c", {4});
  graph().outputs = {g_.op("Gemm", {a, b, c},
                           {{.name = "transA", .value = std::int64_t{1}},
                            {.name = "transB", .value = std::int64_t{1}},
                            {.name = "alpha", .value = 0.5F},
                            {.name = "beta", .value = 2.0F}})};
  run();
  // beta c is smaller than the product: computed once, before it.
  ASSERT_EQ(op_types(), (std::vector<std::string>{"Elementwise", "Gemm"})) << ir::to_text(graph());
  EXPECT_EQ(graph().nodes[1]->int_attribute("transA", 0), 1);
  EXPECT_EQ(opdef::ExprProgram::from_ints(graph().nodes[1]->ints_attribute("epilogue")).to_string(),
            "add(mul(in0, 0.5), in1)");
}

// softmax(x) = e / sum(e): what comes after the reduction has the full space again.
TEST_F(PassTest, AReductionEndsItsGroup) {
  Value* x = input("x", {4, 5});
  Value* e = g_.exp(g_.sub(x, g_.reduce_max(x, {1}, true)));
  graph().outputs = {g_.div(e, g_.reduce_sum(e, {1}, true))};
  run();
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Elementwise", "Elementwise", "Elementwise"}))
      << ir::to_text(graph());
}

// The update of one weight [4, 3] by its gradient; see opdef/fused.h.
class WeightUpdatePass : public PassTest {
 protected:
  // (w', m', v')
  std::vector<Value*> adam(Value* gradient) {
    const opdef::WeightUpdate update{
        .rule = opdef::UpdateRule::kAdam, .beta1 = 0.9, .share1 = 0.1, .shrinks = true};
    return g_.call(opdef::kWeightUpdate,
                   {gradient, w_, input("m", {4, 3}), input("v", {4, 3}), input("rate", {}),
                    input("epsilon", {}), input("shrink", {})},
                   update.num_outputs(), update.attributes());
  }
  Value* product() {
    return g_.matmul(g_.transpose(input("x", {5, 4}), {1, 0}), input("dy", {5, 3}));
  }
  // The operators without what specialised functions add to their names.
  void expect_types(const std::vector<std::string>& types) {
    run();
    std::vector<std::string> names;
    for (const ir::Node* node : graph().nodes) {
      names.emplace_back(opdef::base_name(node->domain, node->op_type));
    }
    EXPECT_EQ(names, types) << ir::to_text(graph());
    EXPECT_FALSE(fuse_weight_updates(graph(), context()));
  }
  const ir::Node& last() { return *graph().nodes.back(); }

  Value* w_ = input("w", {4, 3});
};

TEST_F(WeightUpdatePass, TakesItsProduct) {
  graph().outputs = adam(product());
  expect_types({"GemmWeightUpdate"});
  EXPECT_EQ(last().int_attribute("transA", 0), 1);
  EXPECT_EQ(last().int_attribute("transB", 1), 0);
  ASSERT_EQ(last().inputs.size(), 8U);
  EXPECT_EQ(last().inputs[0]->name, "x");
  EXPECT_EQ(last().inputs[1]->name, "dy");
  EXPECT_EQ(last().inputs[2], w_);
  EXPECT_EQ(last().inputs[7]->name, "shrink");
  EXPECT_EQ(opdef::WeightUpdate::read(last()).rule, opdef::UpdateRule::kAdam);
  EXPECT_EQ(last().outputs, graph().outputs);
}

TEST_F(WeightUpdatePass, AProductThatIsReadElsewhereStays) {
  Value* gradient = product();
  graph().outputs = adam(gradient);
  graph().outputs.push_back(gradient);
  expect_types({"Gemm", "WeightUpdate"});
}

TEST_F(WeightUpdatePass, OtherGradientsStay) {
  graph().outputs = adam(g_.exp(input("g", {4, 3})));
  expect_types({"Elementwise", "WeightUpdate"});
}

// The averages of an update in element-wise work (AMSGrad's, say) decay: denormal numbers may be
// flushed.
TEST_F(PassTest, AveragesInElementwiseWorkMayBecomeZero) {
  Value* average = g_.add(g_.scale(input("m", {4, 3}), 0.9), g_.scale(input("g", {4, 3}), 0.1));
  graph().outputs = {average};
  PassContext with_states = context();
  with_states.next_states = {average};
  run_passes(graph(), with_states, true);
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Elementwise"})) << ir::to_text(graph());
  EXPECT_EQ(graph().nodes.back()->int_attribute("flush_denormals", 0), 1);
}

// A weight without slots does not decay.
TEST_F(PassTest, PlainDescentIsNotFlushed) {
  Value* b = input("b", {3});
  graph().outputs = {g_.sub(b, g_.scale(input("g", {3}), 0.1))};
  PassContext with_states = context();
  with_states.next_states = {graph().outputs.front()};
  run_passes(graph(), with_states, true);
  EXPECT_EQ(graph().nodes.back()->find_attribute("flush_denormals"), nullptr);
}

// The mask of a ReLU is computed where the backward part reads it; the forward part is one kernel.
TEST_F(PassTest, MasksAreComputedWhereTheyAreRead) {
  Value* x = input("x", {15, 100});
  Value* w = input("w", {100, 50});
  Value* w2 = input("w2", {50, 10});
  Value* h = g_.op("Relu", {g_.matmul(x, w)});
  Value* y = g_.matmul(h, w2);
  const std::vector<Value*> outputs{y};
  const std::vector<Value*> seeds{input("dy", {15, 10})};
  const std::vector<Value*> wrt{w};
  graph().outputs = {y, autodiff::add_vjp(g_, registry(), outputs, seeds, wrt)[0]};
  run();
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Gemm", "Gemm", "Gemm", "Gemm"}))
      << ir::to_text(graph());
}

// An update that a loss scale guards: new weights are not stored until the condition is known.
TEST_F(PassTest, GuardedUpdatesAreComputedWhereTheyAreChosen) {
  Value* w = input("w", {64, 64});
  Value* g = g_.mul(input("g", {64, 64}), input("inverse_scale", {}));
  Value* size = g_.reduce_sum(g_.matmul(g, g), {0, 1}, false);
  Value* is_finite = g_.op("Less", {size, input("limit", {})});
  Value* updated = g_.sub(w, g_.mul(g, input("rate", {})));
  graph().outputs = {g_.op("Where", {is_finite, updated, w})};
  run();
  // The gradient; its product and what that adds up to; the update.
  ASSERT_EQ(op_types(),
            (std::vector<std::string>{"Elementwise", "Gemm", "Elementwise", "Elementwise"}))
      << ir::to_text(graph());
  EXPECT_EQ(graph().nodes[0]->outputs.size(), 1U);
  EXPECT_EQ(graph().nodes[3]->outputs, graph().outputs);
}

// a -> MatMul -> b, and c = a + b: fusing a with c would need the product inside.
TEST_F(PassTest, NoPathLeavesAGroupAndComesBack) {
  Value* x = input("x", {4, 4});
  Value* a = g_.exp(x);
  Value* product = g_.matmul(a, a);
  graph().outputs = {g_.add(a, g_.log(product))};
  run();
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Elementwise", "Gemm"})) << ir::to_text(graph());
  EXPECT_NO_THROW(ir::sort_topologically(graph()));
}

// y reads q, which the second program of the group of ab, y, p and r must not take in.
class SharedDivisor : public PassTest, public testing::WithParamInterface<bool> {};

TEST_P(SharedDivisor, WhatTheFirstProgramReadsIsNotInTheSecond) {
  Value* ab = g_.add(input("a", {4, 3}), input("b", {4, 3}));
  Value* root = g_.sqrt(input("v", {3}));
  Value* q = g_.div(input("s", {3}), root);
  Value* y = g_.mul(ab, q);
  Value* r = g_.reduce_sum(g_.mul(ab, input("c", {4, 3})), {0}, false);
  graph().outputs = {y, g_.div(r, root)};
  if (GetParam()) graph().outputs.push_back(q);
  run();
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Elementwise", "Elementwise"}))
      << ir::to_text(graph());
}

INSTANTIATE_TEST_SUITE_P(Passes, SharedDivisor, testing::Bool());

// A Sum of more inputs than one program may have instructions: the operands stay outside.
TEST_F(PassTest, GroupsKeepToTheLimitOfInstructions) {
  std::vector<Value*> terms;
  for (int i = 0; i < 40; ++i) {
    std::vector<Value*> inner;
    for (int k = 0; k < 120; ++k) inner.push_back(input("x", {3}));
    terms.push_back(g_.op("Sum", inner));
  }
  graph().outputs = {g_.op("Sum", terms)};
  run();
  EXPECT_GT(graph().nodes.size(), 1U);
  for (const ir::Node* node : graph().nodes) {
    EXPECT_NO_THROW(opdef::ExprProgram::from_ints(node->ints_attribute("program")));
  }
}

TEST_F(PassTest, EqualNodesAndConstantsAreMerged) {
  Value* x = input("x", {3});
  ir::Value* one = graph().add_initializer("one", Tensor::scalar(1.0F));
  ir::Value* same = graph().add_initializer("same", Tensor::scalar(1.0F));
  graph().outputs = {g_.mul(g_.add(x, one), g_.add(x, same))};
  EXPECT_TRUE(merge_common_subexpressions(graph(), context()));
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Add", "Mul"}));
  EXPECT_FALSE(merge_common_subexpressions(graph(), context()));
}

TEST_F(PassTest, ExpandedOperandsAreBroadcastByTheKernel) {
  Value* x = input("x", {3, 4});
  Value* row = input("row", {4});
  graph().outputs = {g_.mul(x, g_.expand(row, g_.ints({3, 4})))};
  run();
  ASSERT_EQ(op_types(), std::vector<std::string>{"Elementwise"});
  EXPECT_EQ(graph().nodes[0]->inputs, (std::vector<Value*>{x, row}));
}

TEST_F(PassTest, AProductThatIsReadTwiceIsNoUpdate) {
  Value* w = input("w", {2, 3});
  Value* x = input("x", {5, 2});
  Value* dy = input("dy", {5, 3});
  Value* gradient = g_.matmul(g_.transpose(x, {1, 0}), dy);
  graph().outputs = {g_.sub(w, g_.scale(gradient, 0.1)), gradient};
  run();
  const auto types = op_types();
  EXPECT_EQ(std::ranges::count(types, "GemmUpdate"), 0);
  EXPECT_EQ(std::ranges::count(types, "Transpose"), 0);
}

TEST_F(PassTest, WithoutFusionEveryNodeIsItsOwnKernel) {
  Value* x = input("x", {3});
  graph().outputs = {g_.exp(g_.neg(x))};
  run(/*fuse=*/false);
  EXPECT_EQ(op_types(), (std::vector<std::string>{"Elementwise", "Elementwise"}));
}

TEST_F(PassTest, ASecondRunChangesNothing) {
  Value* x = input("x", {15, 10});
  Value* w = input("w", {10, 5});
  graph().outputs = {g_.reduce_sum(g_.op("Tanh", {g_.matmul(x, w)}), {0}, false)};
  run();
  const std::string before = ir::to_text(graph());
  EXPECT_FALSE(eliminate_identities(graph(), context()));
  EXPECT_FALSE(merge_common_subexpressions(graph(), context()));
  EXPECT_FALSE(fuse_gemm(graph(), context()));
  EXPECT_FALSE(fuse_gemm_updates(graph(), context()));
  EXPECT_FALSE(fuse_elementwise(graph(), context(), true));
  EXPECT_FALSE(fuse_epilogues(graph(), context()));
  EXPECT_EQ(ir::to_text(graph()), before);
}

}  // namespace
}  // namespace onnxgrad::passes

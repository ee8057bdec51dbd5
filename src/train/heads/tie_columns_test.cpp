#include "train/heads/tie_columns.h"

#include <gmock/gmock.h>

#include <ostream>
#include <string>
#include <vector>

#include "onnx/model_io.h"
#include "train/heads/heads.h"
#include "train/session/session.h"
#include "train/tools/engine.h"

// Layers of two opposite columns in ONNX's text syntax: which are tied, and what becomes of them.

namespace onnxgrad::train::tie_columns_test {

constexpr const char* kShare =
    " p = Sigmoid(s)  a = Abs(p)  r = ReduceSum(a, axis)  Y = Div(p, r) ";

onnx_io::FileModel load(const std::string& constants, const std::string& nodes) {
  return onnx_io::load_text(
      "<ir_version: 10, opset_import: [\"\" : 21, \"ai.onnx.ml\" : 3]>\n"
      "main (double[N, 3] X) => (double[N, 2] Y) <" +
      constants + ", int64[1] axis = {1}> {" + nodes + "}");
}

std::shared_ptr<const ir::Model> working_of(const onnx_io::FileModel& file) {
  return std::make_shared<const ir::Model>(onnx_io::to_internal(file, builtin_ops()));
}

constexpr const char* kOpposite = "double[3, 2] W = {-1, 1, 2, -2, -0.3, 0.3}";
constexpr const char* kBias = ", double[1, 2] b = {0.5, -0.5}";
constexpr const char* kLayer = "m = MatMul(X, W)  s = Add(m, b)";

struct Case {
  std::string name;
  std::string constants;
  std::string nodes;
  bool is_tied = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class TieColumns : public testing::TestWithParam<Case> {};

TEST_P(TieColumns, WhatIsOppositeAndNothingElse) {
  const onnx_io::FileModel file = load(GetParam().constants, GetParam().nodes);
  const auto working = working_of(file);
  const std::string before = ir::to_text(*working);
  const auto tied = tie_opposite_columns(working);
  EXPECT_EQ(tied != working, GetParam().is_tied);
  EXPECT_EQ(ir::to_text(*working), before) << "the working copy itself stays";
  EXPECT_EQ(tie_opposite_columns(tied), tied) << "a second run finds nothing";
  if (!GetParam().is_tied) return;
  EXPECT_EQ(tied->graph->find("W")->initializer.num_elements(), 3);
  EXPECT_EQ(tied->graph->find("s")->producer->op_type, "Concat");
  const Session session({.file = file, .working = tied}, {}, Sgd{}, {.engine = {.threads = 1}});
  EXPECT_EQ(session.graph().weights.front().dims.num_elements(), 3);
}

INSTANTIATE_TEST_SUITE_P(
    Layers, TieColumns,
    testing::ValuesIn(std::vector<Case>{
        {.name = "sigmoids_normalised",
         .constants = std::string(kOpposite) + kBias,
         .nodes = std::string(kLayer) + kShare,
         .is_tied = true},
        {.name = "bias_first_and_of_rank_one",
         .constants = std::string(kOpposite) + ", double[2] b = {0.5, -0.5}",
         .nodes = std::string("m = MatMul(X, W)  s = Add(b, m)") + kShare,
         .is_tied = true},
        {.name = "no_bias",
         .constants = kOpposite,
         .nodes = std::string("s = MatMul(X, W)") + kShare,
         .is_tied = true},
        {.name = "gemm",
         .constants = std::string(kOpposite) + kBias,
         .nodes = std::string("s = Gemm(X, W, b)") + kShare,
         .is_tied = true},
        {.name = "gemm_transposed",
         .constants = std::string("double[2, 3] W = {-1, 2, 0, 1, -2, 0}") + kBias,
         .nodes = std::string("s = Gemm <transB = 1, alpha = 2.0> (X, W, b)") + kShare,
         .is_tied = true},
        {.name = "softmax",
         .constants = std::string(kOpposite) + kBias,
         .nodes = std::string(kLayer) + " Y = Softmax(s)",
         .is_tied = true},
        {.name = "zeros_before_normalised_sigmoids",
         .constants = std::string("double[3, 2] W = {0, 0, 0, 0, 0, 0}") + kBias,
         .nodes = std::string(kLayer) + kShare,
         .is_tied = true},
        {.name = "zeros_before_a_softmax",  // a network at its start
         .constants = std::string("double[3, 2] W = {0, 0, 0, 0, 0, 0}") + kBias,
         .nodes = std::string(kLayer) + " Y = Softmax(s)"},
        {.name = "zeros_before_sigmoids_of_two_labels",
         .constants = std::string("double[3, 2] W = {0, 0, 0, 0, 0, 0}") + kBias,
         .nodes = std::string(kLayer) + " Y = Sigmoid(s)"},
        {.name = "one_number_is_not_opposite",
         .constants = std::string("double[3, 2] W = {-1, 1, 2, -2, -0.3, 0.31}") + kBias,
         .nodes = std::string(kLayer) + kShare},
        {.name = "bias_is_not_opposite",
         .constants = std::string(kOpposite) + ", double[1, 2] b = {0.5, 0.5}",
         .nodes = std::string(kLayer) + kShare},
        {.name = "bias_is_one_number",
         .constants = std::string(kOpposite) + ", double[1] b = {0}",
         .nodes = std::string(kLayer) + kShare},
        {.name = "another_reader_of_the_weight",
         .constants = std::string(kOpposite) + kBias,
         .nodes = std::string("m1 = MatMul(X, W)  f = ReduceSum(W)  m = Add(m1, f)"
                              "  s = Add(m, b)") +
                  kShare},
        {.name = "hidden_layer",
         .constants = std::string(kOpposite) + kBias + ", double[2, 2] V = {1, 2, 3, 4}",
         .nodes = std::string(kLayer) + " h = Relu(s)  t = MatMul(h, V)  Y = Softmax(t)"},
        {.name = "regression",
         .constants = std::string(kOpposite) + kBias,
         .nodes = "m = MatMul(X, W)  Y = Add(m, b)"},
        {.name = "columns_are_features",
         .constants = std::string("double[3, 2] W = {1, 2, -1, -2, 3, 4}") + kBias,
         .nodes = std::string(kLayer) + kShare},
    }),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// X = rows of numbers, and what a model gives for them.
std::vector<double> run(const std::shared_ptr<const ir::Model>& model) {
  const auto& engine = cpu_engine();
  runtime::Executor executor(std::make_shared<ir::Model>(ir::clone(*model)), engine, {});
  std::vector<double> numbers;
  for (int i = 0; i < 30; ++i) numbers.push_back(0.37 * i - 4.1);
  const Tensor x = Tensor::from(numbers, Dims{10, 3});
  const std::vector<Tensor> inputs{x};
  return executor.run(inputs).front().to_doubles();
}

TEST(TieColumns, ComputesTheSame) {
  const auto working =
      working_of(load(std::string(kOpposite) + kBias, std::string(kLayer) + kShare));
  const auto tied = tie_opposite_columns(working);
  ASSERT_NE(tied, working);
  EXPECT_THAT(run(tied), testing::Pointwise(testing::DoubleNear(1e-14), run(working)));
}

TEST(TieColumns, TheLossIsThatOfTheScore) {
  const auto tied = tie_opposite_columns(
      working_of(load(std::string(kOpposite) + kBias, std::string(kLayer) + kShare)));
  EXPECT_EQ(resolve_loss(*tied->graph, {}).info.line,
            "loss: binary cross-entropy on 's_1' (scores before output 'Y'), 2 classes");
}

TEST(TieColumns, BothColumnsAreWrittenBack) {
  const onnx_io::FileModel file =
      load(std::string(kOpposite) + kBias, std::string(kLayer) + kShare);
  const auto tied = tie_opposite_columns(working_of(file));
  const std::vector<std::pair<std::string, Tensor>> weights{
      {"W", Tensor::from(std::vector<double>{0.1, -0.7, 0}, Dims{3, 1})},
      {"b", Tensor::from(std::vector<double>{1.0 / 3}, Dims{1, 1})}};
  const auto again = onnx_io::load_bytes(onnx_io::with_weights(file, *tied, weights));
  EXPECT_THAT(again.model->graph->find("W")->initializer.to_doubles(),
              testing::ElementsAre(-0.1, 0.1, 0.7, -0.7, 0, 0));
  EXPECT_THAT(again.model->graph->find("b")->initializer.to_doubles(),
              testing::ElementsAre(-1.0 / 3, 1.0 / 3));
}

}  // namespace onnxgrad::train::tie_columns_test

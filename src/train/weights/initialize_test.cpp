#include "train/weights/initialize.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "train/testing/draft.h"

namespace onnxgrad::train::initialize_test {

using train_test::Draft;

/// x [N, 200] -> MatMul w0 [200, 100] + b0 -> activation -> MatMul w1 [100, 50] + b1 -> Sigmoid.
Draft mlp(const std::string& activation) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  const auto zeros = [](Dims dims) { return Tensor::zeros(DataType::kFloat32, std::move(dims)); };
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 200});
  ir::Value* w0 = draft.weight("w0", zeros({200, 100}));
  ir::Value* b0 = draft.weight("b0", zeros({1, 100}));
  ir::Value* w1 = draft.weight("w1", zeros({100, 50}));
  ir::Value* b1 = draft.weight("b1", zeros({1, 50}));
  ir::Value* hidden = g.op(activation, {g.add(g.matmul(x, w0), b0)});
  draft.output(g.op("Sigmoid", {g.add(g.matmul(hidden, w1), b1)}), "p");
  return draft;
}

using Drawn = std::map<std::string, std::vector<double>>;

Drawn draw(const Draft& draft, const InitializeOptions& options) {
  Drawn drawn;
  for (const NamedTensor& weight : draw_weights(*draft.model, builtin_ops(), options)) {
    drawn[weight.name] = weight.tensor.to_doubles();
  }
  return drawn;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

double deviation(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// Uniform in [-bound, bound]: the largest is near the bound, the deviation is bound / sqrt(3).
void expect_uniform(const std::vector<double>& values, double bound, double slack = 0.02) {
  EXPECT_LE(largest(values), bound * (1 + 1e-6));
  EXPECT_GT(largest(values), bound * (1 - 5 * slack));
  EXPECT_NEAR(deviation(values), bound / std::sqrt(3.0), bound * slack);
}

// LayerNormalization, or the same written out, with `scale` and `shift`.
Draft normalization(bool written_out) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  const Tensor threes = Tensor::from(std::vector<float>{3, 3}, Dims{2});
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 2});
  ir::Value* scale = draft.weight("scale", threes);
  ir::Value* shift = draft.weight("shift", threes);
  if (!written_out) {
    draft.output(g.op("LayerNormalization", {x, scale, shift}));
    return draft;
  }
  ir::Value* last = draft.weight("last", Tensor::from(std::vector<std::int64_t>{-1}, Dims{1}));
  ir::Value* d = g.sub(x, g.op("ReduceMean", {x, last}));
  ir::Value* root = g.op("Sqrt", {g.op("ReduceMean", {g.mul(d, d), last})});
  draft.output(g.add(g.mul(g.div(d, root), scale), shift));
  return draft;
}

TEST(Initialize, NormalizationsBeginAsNone) {
  for (const bool written_out : {false, true}) {
    const Drawn drawn = draw(normalization(written_out), {});
    EXPECT_THAT(drawn.at("scale"), testing::ElementsAre(1, 1)) << written_out;
    EXPECT_THAT(drawn.at("shift"), testing::ElementsAre(0, 0)) << written_out;
  }
}

TEST(Initialize, AutoIsScikitLearnsBound) {
  const Drawn relu = draw(mlp("Relu"), {});
  expect_uniform(relu.at("w0"), std::sqrt(6.0 / 300));
  expect_uniform(relu.at("b0"), std::sqrt(6.0 / 300), 0.1);
  expect_uniform(relu.at("w1"), std::sqrt(6.0 / 150));
  const Drawn sigmoid = draw(mlp("Sigmoid"), {});
  expect_uniform(sigmoid.at("w0"), std::sqrt(2.0 / 300));
  // The Sigmoid behind the scores does not count: the hidden layers' activation does.
  expect_uniform(sigmoid.at("w1"), std::sqrt(2.0 / 150));
}

TEST(Initialize, SchemesHaveTheirWidths) {
  const Draft draft = mlp("Relu");
  const auto w0 = [&](InitScheme scheme) { return draw(draft, {.scheme = scheme}).at("w0"); };
  expect_uniform(w0(InitScheme::kGlorotUniform), std::sqrt(6.0 / 300));
  expect_uniform(w0(InitScheme::kHeUniform), std::sqrt(6.0 / 200));
  expect_uniform(w0(InitScheme::kLecunUniform), std::sqrt(3.0 / 200));
  expect_uniform(w0(InitScheme::kUniform), 1 / std::sqrt(200.0));
  EXPECT_NEAR(deviation(w0(InitScheme::kGlorotNormal)), std::sqrt(2.0 / 300), 2e-3);
  EXPECT_NEAR(deviation(w0(InitScheme::kHeNormal)), std::sqrt(2.0 / 200), 2e-3);
  EXPECT_NEAR(deviation(w0(InitScheme::kLecunNormal)), std::sqrt(1.0 / 200), 2e-3);
  EXPECT_NEAR(deviation(w0(InitScheme::kNormal)), 1, 0.02);
  EXPECT_EQ(largest(w0(InitScheme::kZeros)), 0);
  EXPECT_EQ(largest(draw(draft, {.scheme = InitScheme::kHeNormal}).at("b0")), 0);
}

TEST(Initialize, DrawsDependOnSeedAndPlaceOnly) {
  const Draft draft = mlp("Tanh");
  const Drawn all = draw(draft, {.seed = 5});
  EXPECT_EQ(all, draw(draft, {.seed = 5}));
  EXPECT_NE(all.at("w1"), draw(draft, {.seed = 6}).at("w1"));
  const Drawn one = draw(draft, {.seed = 5, .weights = {"w1"}});
  EXPECT_EQ(one.size(), 1U);
  EXPECT_EQ(one.at("w1"), all.at("w1"));
  EXPECT_NE(all.at("b0"), all.at("b1"));
  EXPECT_THROW(draw(draft, {.weights = {"v*"}}), ModelError);
}

TEST(Initialize, TransposedGemmAndConvolutionHaveTheirFans) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  const auto zeros = [](Dims dims) { return Tensor::zeros(DataType::kFloat32, std::move(dims)); };
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 8, 6, 6});
  ir::Value* kernel = draft.weight("kernel", zeros({40, 8, 3, 3}));
  ir::Value* shift = draft.weight("shift", zeros({40}));
  ir::Value* w = draft.weight("w", zeros({30, 640}));
  ir::Value* b = draft.weight("b", zeros({30}));
  ir::Value* maps = g.op("Relu", {g.op("Conv", {x, kernel, shift})});
  ir::Value* flat = g.op("Flatten", {maps});
  draft.output(g.op("Gemm", {flat, w, b}, {{.name = "transB", .value = std::int64_t{1}}}), "y");
  const Drawn automatic = draw(draft, {});
  EXPECT_NEAR(deviation(automatic.at("kernel")), std::sqrt(2.0 / 72), 0.01);
  EXPECT_EQ(largest(automatic.at("shift")), 0);
  expect_uniform(automatic.at("w"), std::sqrt(6.0 / 670));
  expect_uniform(draw(draft, {.scheme = InitScheme::kHeUniform}).at("w"), std::sqrt(6.0 / 640));
  expect_uniform(draw(draft, {.scheme = InitScheme::kUniform}).at("b"), 1 / std::sqrt(640.0), 0.2);
}

// Parameters outside of layers: tokens are drawn, scales of values stay.
TEST(Initialize, ParametersOfNoLayer) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 64});
  ir::Value* places = draft.weight("places", Tensor::zeros(DataType::kFloat32, Dims{1, 64}));
  ir::Value* gamma = draft.weight("gamma", Tensor::zeros(DataType::kFloat32, Dims{64}));
  draft.output(g.mul(g.op("Relu", {g.add(x, places)}), gamma));
  const Drawn drawn = draw(draft, {.seed = 1});
  ASSERT_EQ(drawn.size(), 1U);
  EXPECT_NEAR(deviation(drawn.at("places")), 0.02, 0.006);
}

}  // namespace onnxgrad::train::initialize_test

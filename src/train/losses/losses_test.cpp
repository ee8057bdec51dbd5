#include "train/losses/losses.h"

#include <gmock/gmock.h>

#include <map>

#include "autodiff/gradient.h"
#include "runtime/executor.h"
#include "train/testing/draft.h"

namespace onnxgrad::train::losses_test {

using nlohmann::json;
using train_test::dims_of;
using train_test::Draft;
using train_test::tensor_of;

LossFunction function_of(const std::string& name) {
  static const std::map<std::string, LossFunction> functions{
      {"squared_error", SquaredError{}},
      {"softmax_cross_entropy", SoftmaxCrossEntropy{}},
      {"binary_cross_entropy", BinaryCrossEntropy{}},
      {"negative_log_likelihood", NegativeLogLikelihood{}},
      {"one_vs_rest_log", OneVsRest{}},
      {"hinge", OneVsRest{.kind = OneVsRest::Kind::kHinge}},
      {"modified_huber", OneVsRest{.kind = OneVsRest::Kind::kModifiedHuber}},
  };
  return functions.at(name);
}

ir::SymbolicShape batch_of(const Dims& dims) {
  ir::SymbolicShape shape{ir::Dim::named("N")};
  for (std::size_t axis = 1; axis < dims.rank(); ++axis) shape.emplace_back(dims[axis]);
  return shape;
}

struct Computed {
  double loss = 0;
  double ratio = 0;  ///< numerator / denominator
  std::vector<double> gradient;
};

Computed compute(const json& row, DataType dtype) {
  const Dims dims = dims_of(row["scores_shape"]);
  Draft draft;
  ir::Value* scores = draft.input("scores", dtype, batch_of(dims));
  const LossFunction function = function_of(row["loss"]);
  const ir::Type type = target_type(function, *scores);
  EXPECT_EQ(type.dtype == DataType::kInt64, row["target_is_class"].get<bool>());
  ir::Value* target = draft.model->graph->add_input("label", type);
  ir::Value* weight = nullptr;
  if (!row["weights"].is_null()) weight = draft.input("weight", dtype, {ir::Dim::named("N")});
  const Reduction reduction = row["reduction"] == "mean" ? Reduction::kMean : Reduction::kSum;
  const WrittenLoss written = write_loss(
      draft.g, function, reduction, {.scores = scores, .target = target, .sample_weight = weight});
  ir::Value* loss = written.loss;
  ir::Value* seed = draft.g.scalar_like(loss, 1);
  const auto gradients = autodiff::add_vjp(draft.g, builtin_ops(), std::span(&loss, 1),
                                           std::span(&seed, 1), std::span(&scores, 1));
  for (ir::Value* value : {loss, written.numerator, written.denominator, gradients[0]}) {
    draft.output(draft.g.identity(value));
  }
  runtime::Executor executor(draft.model, cpu_engine());
  std::vector<Tensor> inputs{tensor_of(row["scores"], dtype, dims),
                             tensor_of(row["target"], type.dtype, dims_of(row["target_shape"]))};
  if (weight != nullptr) inputs.push_back(tensor_of(row["weights"], dtype, Dims{dims[0]}));
  const auto outputs = executor.run(inputs);
  const double numerator = outputs[1].to_doubles().front();
  return {.loss = outputs[0].to_doubles().front(),
          .ratio = numerator / outputs[2].to_doubles().front(),
          .gradient = outputs[3].to_doubles()};
}

class Losses : public testing::TestWithParam<std::size_t> {
 protected:
  static const json& row() { return train_test::training_values()["losses"].at(GetParam()); }
};

// Stored values come from NumPy; their gradients from central differences in extended precision.
TEST_P(Losses, HaveTheStoredValueAndGradient) {
  SCOPED_TRACE(row()["name"]);
  for (const DataType dtype : {DataType::kFloat64, DataType::kFloat32}) {
    const double tolerance = dtype == DataType::kFloat64 ? 1e-9 : 2e-5;
    const Computed computed = compute(row(), dtype);
    const double value = row()["value"];
    EXPECT_NEAR(computed.loss, value, tolerance * std::max(1.0, std::abs(value)));
    const auto gradient = row()["gradient"].get<std::vector<double>>();
    ASSERT_EQ(computed.gradient.size(), gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      EXPECT_NEAR(computed.gradient[i], gradient[i],
                  tolerance * std::max(1.0, std::abs(gradient[i])))
          << "element " << i;
    }
    if (row()["reduction"] == "mean") {
      EXPECT_NEAR(computed.ratio, value, tolerance * std::max(1.0, std::abs(value)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Losses, testing::Range<std::size_t>(0, 60));

TEST(LossTable, IsWhole) { EXPECT_EQ(train_test::training_values()["losses"].size(), 60U); }

// d/ds of log(1 + exp(-z)) at z = 60: exp(-60), which 1 - sigmoid(60) would lose.
TEST(LossPrecision, BinaryCrossEntropyKeepsSmallGradients) {
  const json row{{"loss", "binary_cross_entropy"},
                 {"reduction", "sum"},
                 {"scores_shape", {1, 1}},
                 {"scores", {60.0}},
                 {"target_is_class", true},
                 {"target_shape", {1}},
                 {"target", {1.0}},
                 {"weights", nullptr}};
  const Computed computed = compute(row, DataType::kFloat64);
  EXPECT_NEAR(computed.gradient[0] / -std::exp(-60.0), 1, 1e-9);
}

TEST(LossPrecision, ProbabilityZeroGivesAFiniteLoss) {
  const json row{{"loss", "negative_log_likelihood"},
                 {"reduction", "sum"},
                 {"scores_shape", {1, 2}},
                 {"scores", {0.0, 1.0}},
                 {"target_is_class", true},
                 {"target_shape", {1}},
                 {"target", {0.0}},
                 {"weights", nullptr}};
  EXPECT_NEAR(compute(row, DataType::kFloat32).loss, 87.3365, 1e-3);  // -log of 2^-126
}

// A batch of rows that do not count: its loss is 0 and moves nothing.
TEST(LossPrecision, WeightsThatAreAllZeroGiveZero) {
  const json row{{"loss", "squared_error"}, {"reduction", "mean"},      {"scores_shape", {2, 1}},
                 {"scores", {1.0, 2.0}},    {"target_is_class", false}, {"target_shape", {2, 1}},
                 {"target", {0.0, 0.0}},    {"weights", {0.0, 0.0}}};
  EXPECT_EQ(compute(row, DataType::kFloat32).loss, 0);
  EXPECT_THAT(compute(row, DataType::kFloat32).gradient, testing::ElementsAre(0, 0));
}

TEST(LossTypes, ScoresThatDoNotFitAreRefused) {
  Draft draft;
  const ir::Value* labels = draft.input("labels", DataType::kInt64, {ir::Dim::named("N")});
  const ir::Value* vector = draft.input("vector", DataType::kFloat32, {ir::Dim::named("N")});
  EXPECT_THROW(target_type(SquaredError{}, *labels), ModelError);
  EXPECT_THROW(target_type(SoftmaxCrossEntropy{}, *vector), ModelError);
  EXPECT_THROW(target_type(NegativeLogLikelihood{}, *vector), ModelError);
  EXPECT_EQ(target_type(SquaredError{}, *vector).dtype, DataType::kFloat32);
  EXPECT_EQ(target_type(BinaryCrossEntropy{}, *vector).dtype, DataType::kInt64);
}

std::vector<double> correct_rows(const LossFunction& function, const std::vector<float>& scores,
                                 Dims dims, const std::vector<std::int64_t>& labels,
                                 const std::vector<float>& weights) {
  Draft draft;
  ir::Value* x = draft.input("scores", DataType::kFloat32, batch_of(dims));
  ir::Value* target = draft.input("label", DataType::kInt64, {ir::Dim::named("N")});
  ir::Value* weight =
      weights.empty() ? nullptr : draft.input("weight", DataType::kFloat32, {ir::Dim::named("N")});
  const CorrectRows rows = write_correct_rows(
      draft.g, function, {.scores = x, .target = target, .sample_weight = weight});
  draft.output(rows.correct);
  draft.output(draft.g.identity(rows.rows));
  runtime::Executor executor(draft.model, cpu_engine());
  std::vector<Tensor> inputs{Tensor::from(scores, dims), Tensor::from(labels, Dims{dims[0]})};
  if (!weights.empty()) inputs.push_back(Tensor::from(weights, Dims{dims[0]}));
  std::vector<double> counts;
  for (const Tensor& output : executor.run(inputs)) counts.push_back(output.to_doubles().front());
  return counts;
}

TEST(CorrectRows, AreCounted) {
  EXPECT_THAT(correct_rows(SoftmaxCrossEntropy{}, {1, 2, 0, 5, 4, 3}, Dims{2, 3}, {1, 1}, {}),
              testing::ElementsAre(1, 2));
  EXPECT_THAT(correct_rows(BinaryCrossEntropy{}, {1, -2, 0.5}, Dims{3, 1}, {1, 0, 0}, {}),
              testing::ElementsAre(2, 3));
  EXPECT_THAT(correct_rows(LogLoss{}, {0.75, 0.25, 0.625}, Dims{3, 1}, {1, 0, 0}, {}),
              testing::ElementsAre(2, 3));
  EXPECT_THAT(correct_rows(BinaryCrossEntropy{}, {1, -2, 0.5}, Dims{3, 1}, {1, 0, 0}, {1, 0.5, 3}),
              testing::ElementsAre(1.5, 4.5));
  const LossFunction ignoring = SoftmaxCrossEntropy{.ignore_index = -1};
  EXPECT_THAT(correct_rows(ignoring, {1, 2, 0, 5, 4, 3, 1, 0, 0}, Dims{3, 3}, {1, -1, 2}, {}),
              testing::ElementsAre(1, 2));
}

TEST(LossOptions, OutOfRangeAreRefusedByName) {
  const auto message = [](const LossFunction& function) -> std::string {
    try {
      check_loss_options(function);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(Huber{.delta = 0}), testing::HasSubstr("Huber loss: delta is 0"));
  EXPECT_THAT(message(SmoothL1{.beta = -1}), testing::HasSubstr("beta is -1"));
  EXPECT_THAT(message(Elastic{.l1_weight = 0, .l2_weight = 0}), testing::HasSubstr("l1_weight"));
  EXPECT_THAT(message(SoftmaxCrossEntropy{.label_smoothing = 1}),
              testing::HasSubstr("label_smoothing is 1"));
  EXPECT_THAT(message(SoftmaxCrossEntropy{.class_weights = {1, -2}}),
              testing::HasSubstr("a class weight is -2"));
  EXPECT_THAT(message(SoftmaxCrossEntropy{.ignore_index = 1, .one_hot = true}),
              testing::HasSubstr("one-hot"));
  EXPECT_EQ(message(SoftmaxCrossEntropy{.class_weights = {1, 2}, .label_smoothing = 0.5}), "");
}

TEST(LossTypes, OneHotTargetsHaveTheShapeOfTheScores) {
  Draft draft;
  const ir::Value* scores = draft.input("scores", DataType::kFloat32, {ir::Dim::named("N"), 3});
  const LossFunction one_hot = SoftmaxCrossEntropy{.one_hot = true};
  EXPECT_EQ(target_type(one_hot, *scores).to_string(), scores->type.to_string());
  EXPECT_FALSE(is_classification(one_hot, *scores));
  EXPECT_THROW(target_type(SoftmaxCrossEntropy{.class_weights = {1, 2}}, *scores), ModelError);
}

TEST(LossTypes, TokensAreComparedWithTheNextOnes) {
  Draft draft;
  const ir::Dim rows = ir::Dim::named("N");
  const ir::Value* scores = draft.input("scores", DataType::kFloat32, {rows, 3, 9});
  const ir::Value* flat = draft.input("flat", DataType::kFloat32, {rows, 9});
  EXPECT_EQ(target_type(CausalLm{}, *scores, 2).to_string(), "int64[N, 3]");
  EXPECT_EQ(target_type(MaskedLm{}, *scores, 2).to_string(), "int64[N, 3]");
  EXPECT_EQ(target_type(Dpo{}, *scores).dtype, DataType::kFloat64);
  EXPECT_THROW(target_type(CausalLm{}, *flat), ModelError);
  EXPECT_THROW(target_type(Dpo{}, *flat), ModelError);
  const Tensor tokens = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4, 2, 6}, Dims{2, 3});
  EXPECT_THAT(compared_classes(CausalLm{.ignore_index = -1, .pad = 2}, tokens),
              testing::ElementsAre(-1, 3, -1, -1, 6, -1));
  EXPECT_THAT(compared_classes(MaskedLm{}, tokens), testing::ElementsAre(1, 2, 3, 4, 2, 6));
}

}  // namespace onnxgrad::train::losses_test

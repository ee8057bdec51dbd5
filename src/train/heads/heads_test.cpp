#include "train/heads/heads.h"

#include <gmock/gmock.h>

#include "train/testing/draft.h"

namespace onnxgrad::train::heads_test {

using testing::ElementsAre;
using testing::HasSubstr;
using train_test::Draft;

/// scores [N, classes] from a MatMul.
ir::Value* add_scores(Draft& draft, std::int64_t classes) {
  ir::Value* x = draft.input("X", DataType::kFloat32, {ir::Dim(), 4});
  ir::Value* w = draft.weight("coefficient", Tensor::zeros(DataType::kFloat32, Dims{4, classes}));
  ir::Value* b = draft.weight("intercept", Tensor::zeros(DataType::kFloat32, Dims{1, classes}));
  ir::Value* scores = draft.g.add(draft.g.matmul(x, w), b);
  draft.model->graph->rename(scores, "add_result1");
  return scores;
}

/// A node whose output types are given, as import leaves those of ai.onnx.ml.
ir::Value* ml_node(Draft& draft, const std::string& op_type, std::vector<ir::Value*> inputs,
                   ir::Type type, std::vector<ir::Attribute> attributes = {}) {
  ir::Node* node = draft.model->graph->add_node(op_type, std::move(inputs), 1,
                                                std::move(attributes), "ai.onnx.ml");
  node->outputs[0]->type = std::move(type);
  return node->outputs[0];
}

Tensor int_labels(const std::vector<std::int64_t>& labels) {
  return Tensor::from(labels, Dims{static_cast<std::int64_t>(labels.size())});
}

/// The label branch: ArgMax, ArrayFeatureExtractor, Reshape.
ir::Value* add_labels(Draft& draft, ir::Value* probabilities, const Tensor& classes) {
  ir::GraphBuilder& g = draft.g;
  ir::Value* table = draft.weight("classes", classes);
  ir::Value* best = g.op("ArgMax", {probabilities}, {{.name = "axis", .value = std::int64_t{1}}});
  ir::Value* picked = ml_node(draft, "ArrayFeatureExtractor", {table, best},
                              ir::Type::tensor(classes.dtype(), ir::SymbolicShape{1, ir::Dim()}));
  return g.reshape(picked, {-1});
}

ir::Value* add_zip_map(Draft& draft, ir::Value* probabilities) {
  ir::Type map{.kind = ir::Type::Kind::kSequence};
  return ml_node(draft, "ZipMap", {probabilities}, map);
}

TEST(Heads, MultiClassMlpAsSkl2onnxWritesIt) {
  Draft draft;
  ir::Value* p = draft.g.op("Softmax", {add_scores(draft, 3)});
  draft.output(add_labels(draft, p, int_labels({3, 5, 7})), "output_label");
  draft.output(add_zip_map(draft, p), "output_probability");
  const ResolvedLoss loss = resolve_loss(*draft.model->graph, {});
  EXPECT_TRUE(std::holds_alternative<SoftmaxCrossEntropy>(loss.function));
  EXPECT_EQ(loss.scores->name, "add_result1");
  EXPECT_EQ(loss.info.line,
            "loss: softmax cross-entropy on 'add_result1' (scores before output "
            "'output_probability'), 3 classes from initializer 'classes'");
  EXPECT_THAT(loss.info.classes.to_int64s(), ElementsAre(3, 5, 7));
  EXPECT_EQ(loss.info.num_classes, 3);
  EXPECT_TRUE(loss.info.is_classifier);
}

TEST(Heads, LabelOutputAloneIsEnough) {
  Draft draft;
  ir::Value* p = draft.g.op("Softmax", {add_scores(draft, 2)});
  draft.output(add_labels(draft, p, Tensor::from_strings({"no", "yes"}, Dims{2})), "label");
  const ResolvedLoss loss = resolve_loss(*draft.model->graph, {});
  EXPECT_EQ(loss.scores->name, "add_result1");
  EXPECT_THAT(loss.info.classes.strings(), ElementsAre("no", "yes"));
}

ir::Value* add_two_columns(Draft& draft, ir::Value* scores) {
  ir::GraphBuilder& g = draft.g;
  ir::Value* p = g.op("Sigmoid", {scores});
  ir::Value* unity = draft.weight("unity", Tensor::from(std::vector{1.0F}, Dims{1}));
  return g.concat({g.sub(unity, p), p}, 1);
}

TEST(Heads, BinaryMlpHasOneScore) {
  Draft draft;
  ir::Value* p = add_two_columns(draft, add_scores(draft, 1));
  draft.output(add_labels(draft, p, int_labels({0, 1})), "output_label");
  draft.output(add_zip_map(draft, p), "output_probability");
  const ResolvedLoss loss = resolve_loss(*draft.model->graph, {});
  EXPECT_TRUE(std::holds_alternative<BinaryCrossEntropy>(loss.function));
  EXPECT_EQ(loss.scores->name, "add_result1");
  EXPECT_EQ(loss.info.num_classes, 2);
  EXPECT_EQ(loss.info.line,
            "loss: binary cross-entropy on 'add_result1' (scores before output "
            "'output_probability'), 2 classes from initializer 'classes'");
}

TEST(Heads, RegressionLooksBehindTheReshape) {
  Draft draft;
  draft.output(draft.g.reshape(add_scores(draft, 2), {-1, 1}), "variable");
  const ResolvedLoss loss = resolve_loss(*draft.model->graph, {});
  EXPECT_TRUE(std::holds_alternative<SquaredError>(loss.function));
  EXPECT_EQ(loss.info.line, "loss: squared error on 'add_result1' (before output 'variable')");
  EXPECT_FALSE(loss.info.is_classifier);
}

TEST(Heads, RegressionOnTheOutputItself) {
  Draft draft;
  draft.output(add_scores(draft, 1), "variable");
  EXPECT_EQ(resolve_loss(*draft.model->graph, {}).info.line, "loss: squared error on 'variable'");
}

TEST(Heads, NormalizedProbabilitiesWithoutScoresTakeTheirLogarithm) {
  Draft draft;
  ir::Value* votes = draft.g.op("Relu", {add_scores(draft, 3)});
  ir::Value* p = ml_node(draft, "Normalizer", {votes}, votes->type,
                         {{.name = "norm", .value = std::string("L1")}});
  draft.output(p, "probabilities");
  const ResolvedLoss loss = resolve_loss(*draft.model->graph, {});
  EXPECT_TRUE(std::holds_alternative<NegativeLogLikelihood>(loss.function));
  EXPECT_EQ(loss.scores->name, "probabilities");
}

TEST(Heads, ScoresOfAListOfClassesWithoutProbabilitiesAreMargins) {
  Draft draft;
  ir::Value* scores = add_scores(draft, 3);
  draft.output(add_labels(draft, scores, int_labels({0, 1, 2})), "label");
  const ResolvedLoss loss = resolve_loss(*draft.model->graph, {});
  ASSERT_TRUE(std::holds_alternative<OneVsRest>(loss.function));
  EXPECT_EQ(std::get<OneVsRest>(loss.function).kind, OneVsRest::Kind::kHinge);
}

TEST(Heads, SigmoidPerColumnIsManyLabels) {
  Draft draft;
  draft.output(draft.g.op("Sigmoid", {add_scores(draft, 3)}), "probabilities");
  const ResolvedLoss loss = resolve_loss(*draft.model->graph, {});
  EXPECT_TRUE(std::holds_alternative<BinaryCrossEntropy>(loss.function));
  EXPECT_FALSE(loss.info.is_classifier);
  EXPECT_EQ(loss.scores->name, "add_result1");
}

void expect_error(const Draft& draft, const Loss& loss, const std::string& part) {
  try {
    resolve_loss(*draft.model->graph, loss);
    FAIL() << "no error, expected: " << part;
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Heads, ScoresLossOnProbabilitiesIsAnErrorWithTheHint) {
  Draft draft;
  draft.output(draft.g.op("Softmax", {add_scores(draft, 3)}), "probabilities");
  expect_error(draft, {.function = SoftmaxCrossEntropy{}, .output = "probabilities"},
               "Apply it to 'add_result1'");
  EXPECT_EQ(resolve_loss(*draft.model->graph, {.function = SoftmaxCrossEntropy{}}).scores->name,
            "add_result1");
  EXPECT_EQ(resolve_loss(*draft.model->graph,
                         {.function = SoftmaxCrossEntropy{}, .output = "add_result1"})
                .scores->name,
            "add_result1");
  EXPECT_EQ(resolve_loss(*draft.model->graph, {.function = NegativeLogLikelihood{}}).scores->name,
            "probabilities");
}

TEST(Heads, UnknownAmbiguousAndMissingOutputsAreErrors) {
  Draft draft;
  ir::Value* scores = add_scores(draft, 3);
  draft.output(draft.g.op("Relu", {scores}), "first");
  expect_error(draft, {.output = "frist"}, "Did you mean 'first'?");
  draft.output(draft.g.op("Tanh", {scores}), "second");
  expect_error(draft, {}, "several outputs could take the loss: 'first', 'second'");
  EXPECT_EQ(resolve_loss(*draft.model->graph, {.output = "second"}).scores->name, "second");

  Draft integers;
  ir::Value* ids = integers.input("ids", DataType::kInt64, {ir::Dim(), 4});
  integers.output(integers.g.op("Abs", {ids}), "out");
  expect_error(integers, {}, "no output that a loss can be applied to");
}

TEST(Heads, AListOfClassesMustFitTheScores) {
  Draft draft;
  ir::Value* p = draft.g.op("Softmax", {add_scores(draft, 3)});
  draft.output(add_labels(draft, p, int_labels({0, 1})), "label");
  expect_error(draft, {}, "lists 2 classes, but 'add_result1' has scores for 3");
}

}  // namespace onnxgrad::train::heads_test

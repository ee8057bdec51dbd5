#include <gmock/gmock.h>

#include <cstdlib>

#include "onnxgrad/onnxgrad.h"

// Graphs as files: gradient, loss and training step. They are run here by the engine; Python tests
// run them in other runtimes.

namespace onnxgrad::graphs_test {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kLinear = R"(
<ir_version: 8, opset_import: ["" : 18], producer_name: "by hand">
linear (float[N, 2] x) => (float[N, 1] y)
<float[2, 1] w = {1, 1}, float[1] b = {0}>
{
  [first] m = MatMul(x, w)
  [second] y = Add(m, b)
}
)";

Tensor floats(const std::vector<float>& values, Dims dims) {
  return Tensor::from(values, std::move(dims));
}

NamedTensor x_feed() {
  return {.name = "x", .tensor = floats({1, 0, 0, 1, 1, 1, 2, -1}, Dims{4, 2})};
}
NamedTensor label_feed() {
  return {.name = "label", .tensor = floats({2.5F, -0.5F, 1.5F, 5.5F}, Dims{4, 1})};
}
NamedTensor w_feed() { return {.name = "w", .tensor = floats({1, 1}, Dims{2, 1})}; }
NamedTensor b_feed() { return {.name = "b", .tensor = floats({0}, Dims{1})}; }

std::vector<std::string> names_of(const std::vector<ValueInfo>& values) {
  std::vector<std::string> names;
  for (const ValueInfo& value : values) names.push_back(value.name);
  return names;
}

std::vector<Tensor> run(const Model& model, const NamedTensors& feeds) {
  InferenceSession session(Model::from_bytes(model.to_bytes()), {.threads = 1});
  return session.run({}, feeds);
}

TEST(GradientFile, OfAnOutputWithItsUpstreamGradient) {
  const Model model = gradient(Model::from_text(kLinear));
  EXPECT_EQ(model.opset(), 26);
  EXPECT_EQ(model.ir_version(), 10);
  EXPECT_THAT(names_of(model.inputs()), ElementsAre("x", "w", "b", "y_grad"));
  EXPECT_THAT(names_of(model.outputs()), ElementsAre("w_grad", "b_grad"));
  const NamedTensor seed{.name = "y_grad", .tensor = floats({1, 2, 3, 4}, Dims{4, 1})};
  const auto gradients = run(model, {x_feed(), w_feed(), b_feed(), seed});
  EXPECT_EQ(gradients[0].dims(), Dims({2, 1}));
  EXPECT_THAT(gradients[0].to_doubles(), ElementsAre(1 + 3 + 8, 2 + 3 - 4));
  EXPECT_THAT(gradients[1].to_doubles(), ElementsAre(10));
}

TEST(GradientFile, FilledSeedsAndKeptOutputs) {
  const Model model = gradient(Model::from_text(kLinear),
                               {.wrt = {"x", "b"}, .fill_grad = true, .keep_outputs = true});
  EXPECT_THAT(names_of(model.inputs()), ElementsAre("x", "b"));
  EXPECT_THAT(names_of(model.outputs()), ElementsAre("x_grad", "b_grad", "y"));
  const auto results = run(model, {x_feed(), b_feed()});
  EXPECT_THAT(results[0].to_doubles(), testing::Each(1));
  EXPECT_THAT(results[1].to_doubles(), ElementsAre(4));
  EXPECT_THAT(results[2].to_doubles(), ElementsAre(1, 1, 2, 1));
}

TEST(GradientFile, UnknownNamesAreErrors) {
  const Model model = Model::from_text(kLinear);
  const auto refused = [&](const GradientOptions& options, const std::string& part) {
    try {
      gradient(model, options);
      FAIL() << part;
    } catch (const ModelError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  refused({.wrt = {"ww"}}, "weight, input or value 'ww'\n");
  refused({.wrt = {"ww"}}, "Did you mean 'w'?");
  refused({.outputs = {"z"}}, "output or value 'z'");
  refused({.write = {.target_opset = 8}}, "8");
  refused({.write = {.target_opset = 99}}, "99");
}

TEST(LossFile, KeepsTheFileAndAddsToIt) {
  const Model model = add_loss(Model::from_text(kLinear));
  EXPECT_EQ(model.opset(), 18);
  EXPECT_EQ(model.ir_version(), 8);
  EXPECT_EQ(model.producer_name(), "by hand");
  EXPECT_THAT(names_of(model.inputs()), ElementsAre("x", "label"));
  EXPECT_THAT(names_of(model.outputs()), ElementsAre("loss", "y"));
  EXPECT_EQ(model.outputs()[0].type, "float32[]");
  const auto results = run(model, {x_feed(), label_feed()});
  EXPECT_NEAR(results[0].to_doubles()[0], (2.25 + 2.25 + 0.25 + 20.25) / 4, 1e-6);
  EXPECT_THAT(results[1].to_doubles(), ElementsAre(1, 1, 2, 1));
  EXPECT_THAT(model.to_bytes(), testing::AllOf(HasSubstr("first"), HasSubstr("second")));

  const Model alone = add_loss(Model::from_text(kLinear), {.sample_weight = "weight"},
                               {.loss_name = "error", .keep_outputs = false});
  EXPECT_THAT(names_of(alone.inputs()), ElementsAre("x", "label", "weight"));
  EXPECT_THAT(names_of(alone.outputs()), ElementsAre("error"));
  const NamedTensor weight{.name = "weight", .tensor = floats({1, 0, 1, 0}, Dims{4})};
  EXPECT_NEAR(run(alone, {x_feed(), label_feed(), weight})[0].to_doubles()[0], (2.25 + 0.25) / 2,
              1e-6);
}

TEST(LossFile, GradientOfTheLoss) {
  const Model model = gradient(add_loss(Model::from_text(kLinear)), {.fill_grad = true});
  EXPECT_THAT(names_of(model.outputs()), ElementsAre("w_grad", "b_grad"));
  const auto gradients = run(model, {x_feed(), w_feed(), b_feed(), label_feed()});
  EXPECT_THAT(gradients[1].to_doubles(), ElementsAre(2 * (-1.5 + 1.5 + 0.5 - 4.5) / 4));
}

TEST(LossFile, OfAClassifierAsSkl2onnxWritesIt) {
  const char* root = std::getenv("ONNXGRAD_SOURCE_DIR");
  const Model model = Model::load(std::string(root == nullptr ? "." : root) +
                                  "/tests/data/sklearn_mlps/three_classes.onnx");
  const Model lossy = add_loss(model);
  EXPECT_EQ(lossy.opset(), model.opset());
  EXPECT_THAT(names_of(lossy.outputs()), ElementsAre("loss", "output_label", "output_probability"));
  InferenceSession session(lossy, {.threads = 1});
  const NamedTensors feeds{
      {.name = "X", .tensor = floats({5.1F, 3.5F, 1.4F, 0.2F}, Dims{1, 4})},
      {.name = lossy.inputs().at(1).name,  // 'label' is taken by a value of the file
       .tensor = Tensor::from(std::vector<std::int64_t>{1}, Dims{1})}};
  const auto results = session.run({}, feeds);
  EXPECT_NEAR(results[0].to_doubles()[0], -std::log(results[2].to_doubles()[1]), 1e-5);
}

// The step as a file, fed with its own outputs, does what the session does.
TEST(StepFile, TrainsLikeTheSession) {
  const Model model = Model::from_text(kLinear);
  for (const Optimizer& optimizer :
       {Optimizer(Sgd{.learning_rate = 0.1}), Optimizer(Sgd{.learning_rate = 0.1, .momentum = 0.9}),
        Optimizer(Adam{.learning_rate = 0.1})}) {
    SCOPED_TRACE(to_string(optimizer));
    const Model step = training_step(model, {}, optimizer, {.gradients = true});
    InferenceSession file(step, {.threads = 1});
    TrainingSession session(model, {}, optimizer, {.engine = {.threads = 1}});
    const NamedTensors first = session.state();
    NamedTensors state = first;
    for (int i = 0; i < 5; ++i) {
      NamedTensors feeds{
          x_feed(), label_feed(), {.name = "learning_rate", .tensor = Tensor::scalar(0.1F)}};
      feeds.insert(feeds.end(), state.begin(), state.end());
      const auto outputs = file.run({}, feeds);
      EXPECT_NEAR(outputs[0].to_doubles()[0], session.step({x_feed(), label_feed()}).loss, 1e-5);
      ASSERT_EQ(outputs.size(), 3 + state.size());
      for (std::size_t k = 0; k < state.size(); ++k) state[k].tensor = outputs[3 + k];
    }
    const NamedTensors trained = session.state();
    for (std::size_t k = 0; k < state.size(); ++k) {
      EXPECT_EQ(step.outputs().at(3 + k).name, "next/" + trained[k].name);
      const auto expected = trained[k].tensor.to_doubles();
      const auto given = state[k].tensor.to_doubles();
      for (std::size_t e = 0; e < expected.size(); ++e) EXPECT_NEAR(given[e], expected[e], 1e-5);
    }
  }
}

}  // namespace onnxgrad::graphs_test

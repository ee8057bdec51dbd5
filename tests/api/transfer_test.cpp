#include "onnxgrad/transfer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/training_session.h"

namespace onnxgrad::transfer_test {
namespace {

Model two_layers() {
  return Model::from_text(R"(
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 2] x) => (float[N, 2] y, int64[N] label)
    <float[2, 3] w1 = {1, 2, 3, 4, 5, 6}, float[3, 2] w2 = {1, -1, 2, -2, 3, -3},
     float[2] b2 = {0.5, -0.5}>
    { a = MatMul(x, w1)  h = Tanh(a)  m = MatMul(h, w2)  s = Add(m, b2)
      y = Softmax(s)  label = ArgMax <axis = 1, keepdims = 0> (y) })");
}

std::vector<float> run(const Model& model, const std::string& output) {
  InferenceSession session(model);
  const std::vector<std::string> names{output};
  const Tensor x = Tensor::from(std::vector<float>{0.1F, -0.2F, 0.3F, 0.4F}, Dims{2, 2});
  const Tensor result = session.run(names, {{.name = "x", .tensor = x}}).front();
  const auto numbers = result.data<float>();
  return {numbers.begin(), numbers.end()};
}

std::vector<std::string> trained(const Model& model, const TrainingOptions& options) {
  std::vector<std::string> names;
  const TrainingSession session(model, Loss{}, Sgd{}, options);
  for (const WeightInfo& weight : session.trained_weights()) names.push_back(weight.name);
  return names;
}

TEST(Transfer, NewHeadHasTheWidthAndKeepsTheRest) {
  const Model model = two_layers();
  const Model wide = replace_head(model, {.classes = 5, .seed = 1});
  EXPECT_EQ(wide.weight("w2").dims(), (Dims{3, 5}));
  EXPECT_EQ(wide.weight("b2").dims(), (Dims{5}));
  EXPECT_TRUE(wide.weight("w1").equals(model.weight("w1")));
  EXPECT_EQ(wide.outputs().front().shape->back().value, 5);
  EXPECT_EQ(run(wide, "y").size(), 10U);
  EXPECT_EQ(run(features(wide, {"head"}), "h"), run(features(model, {"h"}), "h"));
  EXPECT_EQ(features(model, {"h"}).weights().size(), 1U);
  // A file that was loaded again is the same.
  const Model again = Model::from_bytes(wide.to_bytes());
  EXPECT_TRUE(again.weight("w2").equals(wide.weight("w2")));
  EXPECT_EQ(run(again, "y"), run(wide, "y"));
}

TEST(Transfer, LayersAreNamedByTheirDistanceFromTheEnd) {
  const Model model = two_layers();
  EXPECT_EQ(model.weights().at(0).level, 1);
  EXPECT_EQ(trained(model, {.trainable = {"head"}}), (std::vector<std::string>{"w2", "b2"}));
  EXPECT_EQ(trained(model, {.trainable = {"last:1"}}),
            (std::vector<std::string>{"w1", "w2", "b2"}));
  EXPECT_EQ(trained(model, {.frozen = {"head"}}), (std::vector<std::string>{"w1"}));
}

TEST(Transfer, RefusesWhatIsNoHead) {
  const Model model = two_layers();
  EXPECT_THROW(replace_head(model, {.classes = 0}), OptionError);
  EXPECT_THROW(replace_head(model, {.classes = 3, .at = {"w1"}}), ModelError);
  EXPECT_THROW(replace_head(model, {.classes = 3, .at = {"other"}}), ModelError);
  EXPECT_THROW(features(model, {"other"}), ModelError);
  EXPECT_THROW(unfold_batch_norm(model), ModelError);
}

TEST(Transfer, BatchNormalizationChangesNothing) {
  const Model folded = Model::from_text(R"(
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 2] x) => (float[N, 2, 1] y)
    <int64[1] axes = {2}, float[2, 2, 1] weight = {1, 2, 3, 4}, float[2] bias = {0.5, -0.5}>
    { c = Unsqueeze(x, axes)  y = Conv(c, weight, bias) })");
  const Model unfolded = unfold_batch_norm(folded);
  const std::vector<float> before = run(folded, "y");
  const std::vector<float> after = run(unfolded, "y");
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 1e-5);
}

}  // namespace
}  // namespace onnxgrad::transfer_test

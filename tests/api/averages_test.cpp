#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "onnxgrad/augmentation.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/trainer.h"

namespace onnxgrad::averages_test {
namespace {

Model linear() {
  return Model::from_text(R"(
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 2] x) => (float[N, 1] y)
    <float[2, 1] w = {0.5, -0.25}>
    { y = MatMul(x, w) })");
}

NamedTensors batch() {
  return {{.name = "x", .tensor = Tensor::from(std::vector<float>{1, 2, 3, 4}, Dims{2, 2})},
          {.name = "label", .tensor = Tensor::from(std::vector<float>{1, -1}, Dims{2, 1})}};
}

std::vector<double> state(const TrainingSession& session, const std::string& name) {
  for (const NamedTensor& one : session.state()) {
    if (one.name == name) return one.tensor.to_doubles();
  }
  return {};
}

TEST(Averages, TrainedModelHasTheAverageOrTheWeights) {
  TrainingSession session(linear(), SquaredError{}, Sgd{.learning_rate = 0.01},
                          {.update = {.average = EqualAverage{}}});
  std::vector<double> sum(2, 0);
  for (int i = 0; i < 3; ++i) {
    session.step(batch());
    const auto now = state(session, "w");
    for (std::size_t k = 0; k < 2; ++k) sum[k] += now[k];
  }
  const auto average = session.trained_model().weight("w").to_doubles();
  for (std::size_t k = 0; k < 2; ++k) EXPECT_NEAR(average[k], sum[k] / 3, 1e-6);
  EXPECT_EQ(session.trained_model(WeightKind::kTrained).weight("w").to_doubles(),
            state(session, "w"));
  EXPECT_TRUE(session.uses_average());
  const double averaged = session.evaluate(batch()).loss;
  session.use_average(false);
  EXPECT_NE(session.evaluate(batch()).loss, averaged);
}

TEST(Averages, NoAverageIsAnError) {
  TrainingSession session(linear(), SquaredError{}, Sgd{});
  EXPECT_FALSE(session.has_average());
  EXPECT_THROW(session.use_average(true), OptionError);
  EXPECT_THROW(session.trained_model(WeightKind::kAverage), OptionError);
}

TEST(Averages, RowsOfAFitAreThoseOfAugmentedRows) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, Dims{3, 2});
  const Tensor y = Tensor::from(std::vector<float>{1, 2, 3}, Dims{3, 1});
  const std::vector<Augmentation> changes{GaussianNoise{.scale = 0.5}, Mixup{.alpha = 1}};
  Trainer trainer(linear(), {.function = SquaredError{}}, Sgd{.learning_rate = 0.1});
  trainer.fit(x, y,
              {.epochs = 1, .batch_size = 3, .shuffle = false, .augment = changes, .seed = 4});
  const std::vector<Tensor> inputs{x};
  const auto rows = augmented_rows(inputs, y, changes, 4, 1);
  TrainingSession session(linear(), SquaredError{}, Sgd{.learning_rate = 0.1});
  session.step({{.name = "x", .tensor = rows[0]}, {.name = "label", .tensor = rows[1]}});
  EXPECT_EQ(state(trainer.session(), "w"), state(session, "w"));
}

TEST(Averages, WeightsOfRowsFollowTheEpoch) {
  const Tensor x = Tensor::from(std::vector<float>{1, 0, 0, 1}, Dims{2, 2});
  const Tensor y = Tensor::from(std::vector<float>{9, 9}, Dims{2, 1});
  std::vector<std::int64_t> epochs;
  Trainer trainer(linear(), {.function = SquaredError{}}, Sgd{.learning_rate = 0.01});
  trainer.fit(x, y,
              {.epochs = 2,
               .sampling = Sampling::kWeighted,
               .replacement = false,
               .on_row_weights = [&](std::int64_t epoch) {
                 epochs.push_back(epoch);
                 return std::vector<double>{1, 0};
               }});
  EXPECT_EQ(epochs, (std::vector<std::int64_t>{1, 2}));
  EXPECT_GT(state(trainer.session(), "w")[0], 0.5);
  EXPECT_EQ(state(trainer.session(), "w")[1], -0.25);
}

}  // namespace
}  // namespace onnxgrad::averages_test

#include "onnxgrad/quantization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/training_session.h"

namespace onnxgrad::quantization_test {
namespace {

Model two_layers() {
  return Model::from_text(R"(
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 2] x) => (float[N, 2] y)
    <float[2, 3] w1 = {1, 2, 3, 4, 5, 6}, float[3, 2] w2 = {1, -1, 2, -2, 3, -3},
     float[2] b2 = {0.5, -0.5}>
    { a = MatMul(x, w1)  h = Tanh(a)  y = Gemm(h, w2, b2) })");
}

NamedTensors rows() {
  return {{.name = "x",
           .tensor = Tensor::from(std::vector<float>{0.1F, -0.2F, 0.3F, 0.4F}, Dims{2, 2})}};
}

TEST(Quantization, TrainedIntegersComputeWhatWasEvaluated) {
  const std::vector<NamedTensors> batches{rows()};
  const Model model = quantize(two_layers(), batches, {.weights = DataType::kInt8});
  EXPECT_EQ(model.weight("w1").dtype(), DataType::kInt8);
  EXPECT_EQ(model.weight("b2").dtype(), DataType::kInt32);
  EXPECT_EQ(float_weights(model).size(), 3U);
  TrainingSession session(model, SquaredError{}, Sgd{.learning_rate = 0.05});
  NamedTensors feeds = rows();
  feeds.push_back({.name = session.loss().target.name,
                   .tensor = Tensor::from(std::vector<float>{1, 0, 0, 1}, Dims{2, 2})});
  const double first = session.step(feeds).loss;
  for (int i = 0; i < 30; ++i) session.step(feeds);
  EXPECT_LT(session.evaluate(feeds).loss, 0.5 * first);
  const Model trained = session.trained_model();
  EXPECT_EQ(trained.weight("w1").dtype(), DataType::kInt8);
  const std::vector<std::string> names{"y"};
  const auto given = InferenceSession(trained).run(names, rows()).front().to_doubles();
  const auto wanted = session.predict(rows(), names).front().to_doubles();
  for (std::size_t i = 0; i < given.size(); ++i) EXPECT_NEAR(given[i], wanted[i], 1e-5);
}

TEST(Quantization, ErrorsNameWhatIsWrong) {
  EXPECT_THROW(quantize(two_layers(), {}), DataError);
  EXPECT_THROW(quantize(two_layers(), {}, {.weights = DataType::kInt16}), OptionError);
  EXPECT_THROW(quantize(two_layers(), {}, {.activations = false, .layers = {"w9"}}), ModelError);
  EXPECT_THROW(calibration_from_name("max"), OptionError);
}

}  // namespace
}  // namespace onnxgrad::quantization_test

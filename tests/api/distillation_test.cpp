#include "onnxgrad/distillation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/training_session.h"

namespace onnxgrad::distillation_test {
namespace {

// y = w x for one number x, with two inner values of one and two columns.
Model line(float w, const std::string& hidden) {
  return Model::from_text(R"(
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 1] x) => (float[N, 1] y)
    <float[1, 1] w = {)" + std::to_string(w) +
                          R"(}, float[1, 2] wide = {1, 2}>
    { y = MatMul(x, w)  )" +
                          hidden + " }");
}

Tensor column(const std::vector<float>& numbers) {
  return Tensor::from(numbers, Dims{static_cast<std::int64_t>(numbers.size()), 1});
}

TEST(Distillation, TheLossIsASumOfTaskAndTeacher) {
  const Model student = line(1, "h = Neg(y)");
  const Model teacher = line(3, "h = MatMul(x, wide)");
  const Loss loss = distill(student, teacher, {.alpha = 0.25}, {.function = SquaredError{}});
  const LossInfo info = find_loss(student, loss);
  EXPECT_EQ(info.line,
            "loss: 0.75 times squared error on 'y', plus 0.25 times squared error of 'y' towards "
            "'y' of the teacher");
  TrainingSession session(student, loss, Sgd{.learning_rate = 0.5});
  const NamedTensors feeds{{.name = "x", .tensor = column({1, 2})},
                           {.name = "label", .tensor = column({0, 0})}};
  // x^2 = 2.5 in the mean, the teacher is at 3 x.
  EXPECT_FLOAT_EQ(static_cast<float>(session.step(feeds).loss), 0.75F * 2.5F + 0.25F * 4 * 2.5F);
  // dL/dw = 2 * 2.5 * (0.75 w + 0.25 (w - 3)) = 1.25, w = 1 - 0.5 * 1.25
  EXPECT_FLOAT_EQ(session.trained_model().weight("w").data<float>()[0], 1 - 0.625F);
  EXPECT_EQ(session.trained_model().to_bytes().size(), student.to_bytes().size());
}

TEST(Distillation, ValuesOfOtherWidthsAreProjected) {
  const Model student = line(1, "h = Neg(y)");
  const Model teacher = line(3, "h = MatMul(x, wide)");
  const Loss loss = distill(
      student, teacher,
      {.outputs = DistillationOptions::Outputs::kNone, .alpha = 1, .values = {{.student = "h"}}});
  TrainingSession session(student, loss, Sgd{.learning_rate = 0.05});
  EXPECT_TRUE(session.loss().target.name.empty());
  const NamedTensors feeds{{.name = "x", .tensor = column({1, 2})}};
  const double first = session.step(feeds).loss;
  for (int i = 0; i < 200; ++i) session.step(feeds);
  EXPECT_LT(session.step(feeds).loss, 1e-3 * first);
  ASSERT_EQ(session.weights().size(), 1U);
  EXPECT_EQ(session.state()[1].name, "distillation.projection_1");
  EXPECT_THROW(session.with_training_info(), ModelError);
}

TEST(Distillation, ErrorsNameThePlace) {
  const Model student = line(1, "h = Neg(y)");
  EXPECT_THROW(distill(student, student, {.values = {{.student = "k"}}}), ModelError);
  EXPECT_THROW(distill(student, student, {.attention = 1}), ModelError);
  EXPECT_THROW(distill(student, student, {.alpha = std::nan("")}), OptionError);
  EXPECT_THROW(matched_outputs_from_name("kll"), OptionError);
}

TEST(Distillation, AnInnerValueCanBeTheTarget) {
  const Model model = line(1, "h = Mul(y, y)");
  const Loss loss{.function = SquaredError{}, .output = "y", .target_value = "h"};
  TrainingSession session(model, loss, Sgd{});
  const NamedTensors feeds{{.name = "x", .tensor = column({1, 2})}};
  EXPECT_FLOAT_EQ(static_cast<float>(session.evaluate(feeds).loss), 2);  // (0 + 4) / 2
}

}  // namespace
}  // namespace onnxgrad::distillation_test

#include "train/session/session.h"

#include <gmock/gmock.h>

#include <cmath>

#include "train/testing/draft.h"

namespace onnxgrad::train::session_test {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using train_test::Draft;

Tensor floats(const std::vector<float>& values, Dims dims) {
  return Tensor::from(values, std::move(dims));
}

TrainingOptions one_thread() { return {.engine = {.threads = 1}}; }

Source source_of(const Draft& draft) { return {.file = {}, .working = draft.model}; }

// y = 2 a - b + 0.5 on four points.
NamedTensors linear_batch() {
  return {{.name = "x", .tensor = floats({1, 0, 0, 1, 1, 1, 2, -1}, Dims{4, 2})},
          {.name = "label", .tensor = floats({2.5F, -0.5F, 1.5F, 5.5F}, Dims{4, 1})}};
}

double number(const Tensor& tensor, std::size_t i = 0) { return tensor.to_doubles().at(i); }

TEST(Session, OneStepOfLinearRegressionIsTheOneByHand) {
  Session session(source_of(train_test::linear_model({1, 1}, 0)), {.function = SquaredError{}},
                  Sgd{.learning_rate = 0.1}, one_thread());
  const StepResult result = session.step(linear_batch());
  // Errors of the start: 1 - 2.5, 1 + 0.5, 2 - 1.5, 1 - 5.5.
  const std::vector<double> errors{-1.5, 1.5, 0.5, -4.5};
  double loss = 0;
  std::vector<double> gradient(3, 0);
  const std::vector<std::vector<double>> rows{{1, 0}, {0, 1}, {1, 1}, {2, -1}};
  for (std::size_t i = 0; i < 4; ++i) {
    loss += errors[i] * errors[i] / 4;
    gradient[0] += 2 * errors[i] * rows[i][0] / 4;
    gradient[1] += 2 * errors[i] * rows[i][1] / 4;
    gradient[2] += 2 * errors[i] / 4;
  }
  EXPECT_NEAR(result.loss, loss, 1e-6);
  const NamedTensors state = session.state();
  ASSERT_EQ(state.size(), 2U);
  EXPECT_EQ(state[0].name, "W");
  EXPECT_NEAR(number(state[0].tensor, 0), 1 - 0.1 * gradient[0], 1e-6);
  EXPECT_NEAR(number(state[0].tensor, 1), 1 - 0.1 * gradient[1], 1e-6);
  EXPECT_NEAR(number(state[1].tensor), -0.1 * gradient[2], 1e-6);
  EXPECT_EQ(session.runner().steps(), 1);
}

TEST(Session, LinearRegressionConverges) {
  Session session(source_of(train_test::linear_model()), {}, Sgd{.learning_rate = 0.1},
                  one_thread());
  double loss = 0;
  for (int i = 0; i < 2000; ++i) loss = session.step(linear_batch()).loss;
  EXPECT_LT(loss, 1e-10);
  EXPECT_THAT(session.state()[0].tensor.to_doubles(),
              ElementsAre(DoubleNear(2, 1e-4), DoubleNear(-1, 1e-4)));
  EXPECT_NEAR(session.evaluate(linear_batch()).loss, loss, 1e-9);
}

TEST(Session, SmallerBatchesShareTheState) {
  Session session(source_of(train_test::linear_model()), {}, Sgd{.learning_rate = 0.1},
                  one_thread());
  const NamedTensors small{{.name = "x", .tensor = floats({1, 0}, Dims{1, 2})},
                           {.name = "label", .tensor = floats({2.5F}, Dims{1, 1})}};
  session.step(linear_batch());
  const double before = session.evaluate(small).loss;
  EXPECT_NEAR(session.step(small).loss, before, 1e-6);
  EXPECT_LT(session.evaluate(small).loss, before);
}

TEST(Session, GivesGradientsAndTheirNorm) {
  TrainingOptions options = one_thread();
  options.outputs = {"b_grad", "y", "gradient_norm", "W_grad"};
  Session session(source_of(train_test::linear_model({1, 1}, 0)), {}, Sgd{.learning_rate = 0},
                  options);
  const StepResult result = session.step(linear_batch());
  ASSERT_EQ(result.outputs.size(), 4U);
  const double b = number(result.outputs[0]);
  const double w0 = number(result.outputs[3], 0);
  const double w1 = number(result.outputs[3], 1);
  EXPECT_NEAR(b, 2 * (-1.5 + 1.5 + 0.5 - 4.5) / 4, 1e-6);
  EXPECT_THAT(result.outputs[1].to_doubles(), ElementsAre(1, 1, 2, 1));
  EXPECT_NEAR(number(result.outputs[2]), std::sqrt(b * b + w0 * w0 + w1 * w1), 1e-5);
}

TEST(Session, FrozenWeightsStayAsTheyAre) {
  TrainingOptions options = one_thread();
  options.frozen = {"W"};
  Session session(source_of(train_test::linear_model({1, 1}, 0)), {}, Sgd{.learning_rate = 0.1},
                  options);
  session.step(linear_batch());
  ASSERT_EQ(session.state().size(), 1U);
  EXPECT_EQ(session.state()[0].name, "b");
  EXPECT_NE(number(session.state()[0].tensor), 0);
}

TEST(Session, StateGoesOutAndBack) {
  Session session(source_of(train_test::linear_model()), {}, Adam{.learning_rate = 0.1},
                  one_thread());
  for (int i = 0; i < 5; ++i) session.step(linear_batch());
  const NamedTensors state = session.state();
  ASSERT_EQ(state.size(), 7U);  // two weights, two slots each, the step count
  const double next = session.step(linear_batch()).loss;
  const double after = session.step(linear_batch()).loss;
  session.runner().state().load(state);
  EXPECT_EQ(session.step(linear_batch()).loss, next);
  EXPECT_EQ(session.step(linear_batch()).loss, after);
  session.reset();
  EXPECT_EQ(session.runner().steps(), 0);
  for (const NamedTensor& entry : session.state()) {
    EXPECT_THAT(entry.tensor.to_doubles(), testing::Each(0)) << entry.name;
  }
}

TEST(Session, RefusesAStateOfAnotherModel) {
  Session session(source_of(train_test::linear_model()), {}, Sgd{}, one_thread());
  NamedTensors state = session.state();
  state[0].tensor = floats({1, 2, 3}, Dims{3, 1});
  EXPECT_THROW(session.runner().state().load(state), CheckpointError);
  state = session.state();
  state.pop_back();
  EXPECT_THROW(session.runner().state().load(state), CheckpointError);
  state = session.state();
  state[0].name = "V";
  EXPECT_THROW(session.runner().state().load(state), CheckpointError);
}

TEST(Session, PredictsWithThePresentWeights) {
  Session session(source_of(train_test::linear_model({1, 1}, 0)), {}, Sgd{.learning_rate = 0.1},
                  one_thread());
  const NamedTensors x{linear_batch()[0]};
  EXPECT_THAT(session.predict(x, {}).at(0).to_doubles(), ElementsAre(1, 1, 2, 1));
  session.step(linear_batch());
  const auto state = session.state();
  const double expected = number(state[0].tensor, 0) + number(state[1].tensor);
  EXPECT_NEAR(number(session.predict(x, {}).at(0)), expected, 1e-6);
}

TEST(Session, ResultsHaveTheNamesOfTheirPorts) {
  TrainingOptions options = one_thread();
  options.outputs = {"b_grad", "y"};
  Session session(source_of(train_test::linear_model({1, 1}, 0)), {.function = SquaredError{}},
                  Sgd{.learning_rate = 0.1}, options);
  session.use_sample_weights("w");
  session.log_gradient_norm(true);
  const StepPorts& ports = session.graph().ports;
  const auto& outputs = session.graph().model->graph->outputs;
  EXPECT_EQ(outputs.at(ports.loss)->name, "loss");
  ASSERT_EQ(ports.extras.size(), 2U);
  EXPECT_EQ(outputs.at(ports.extras[0])->name, "b_grad");
  EXPECT_EQ(outputs.at(ports.extras[1])->name, "y");
  EXPECT_TRUE(ports.gradients.empty() && ports.target_losses.empty() && !ports.row_losses);

  const NamedTensors batch = linear_batch();
  const Tensor weights = floats({1, 2, 0, 1}, Dims{4});
  StepRunner& runner = session.runner();
  runtime::Execution& plan = bind_all(runner, {&batch[0].tensor, &batch[1].tensor, &weights});
  // Errors: -1.5, 1.5, 0.5, -4.5.
  const StepRunner::Results results = runner.run_with_results(plan);
  EXPECT_NEAR(results.loss, (2.25 + 2 * 2.25 + 20.25) / 4, 1e-6);
  EXPECT_EQ(runner.denominator(plan), 4);
  const std::vector<double> gradient{2 * (-1.5 - 9) / 4, 2 * (3 + 4.5) / 4,
                                     2 * (-1.5 + 3 - 4.5) / 4};
  EXPECT_NEAR(runner.gradient_norm(plan).value(), std::hypot(gradient[0], gradient[1], gradient[2]),
              1e-5);
  EXPECT_NEAR(number(results.outputs.at(0)), gradient[2], 1e-6);
  EXPECT_FALSE(results.row_losses.is_defined());
}

// Sample weights, norms, guards: the step is recompiled, and continues as if it had not been.
TEST(Session, GoesOnWhenItsStepIsCompiledAnew) {
  Session session(source_of(train_test::linear_model()), {}, Adam{.learning_rate = 0.1},
                  one_thread());
  Session untouched(source_of(train_test::linear_model()), {}, Adam{.learning_rate = 0.1},
                    one_thread());
  for (Session* one : {&session, &untouched}) {
    one->runner().set_learning_rate(0.05);
    for (int i = 0; i < 3; ++i) one->step(linear_batch());
  }
  session.use_sample_weights("w");
  session.log_gradient_norm(true);
  session.guard_updates();
  EXPECT_EQ(session.runner().steps(), 3);
  EXPECT_EQ(session.runner().learning_rate(), 0.05);
  NamedTensors weighted = linear_batch();
  weighted.push_back({.name = "w", .tensor = floats({1, 1, 1, 1}, Dims{4})});
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(session.step(weighted).loss, untouched.step(linear_batch()).loss, 1e-6);
  }
  const NamedTensors found = session.state();
  const NamedTensors expected = untouched.state();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[i].name);
    EXPECT_THAT(found[i].tensor.to_doubles(),
                testing::Pointwise(DoubleNear(1e-6), expected[i].tensor.to_doubles()));
  }
}

void expect_data_error(Session& session, const NamedTensors& feeds, const std::string& part) {
  try {
    session.step(feeds);
    FAIL() << "no error, expected: " << part;
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Session, RefusesWrongFeeds) {
  Session session(source_of(train_test::linear_model()), {}, Sgd{}, one_thread());
  const NamedTensors good = linear_batch();
  expect_data_error(session, {good[0]}, "input 'label'");
  expect_data_error(session, {good[1]}, "input 'x'");
  expect_data_error(session, {good[0], good[1], good[1]}, "fed twice");
  NamedTensors feeds = good;
  feeds[0].name = "X";
  expect_data_error(session, feeds, "Did you mean 'x'?");
  feeds = good;
  feeds[0].tensor = feeds[0].tensor.cast(DataType::kFloat64);
  expect_data_error(session, feeds, "input 'x' is float64, expected float32");
  feeds = good;
  feeds[0].tensor = floats({1, 2, 3, 4}, Dims{4, 1});
  EXPECT_THROW(session.step(feeds), ShapeError);
  EXPECT_EQ(session.runner().steps(), 0);
  EXPECT_GT(session.step(good).loss, 0);
}

TEST(Session, UnknownOutputsAndDevicesAreNamed) {
  TrainingOptions options = one_thread();
  options.outputs = {"W_gard"};
  try {
    const Session session(source_of(train_test::linear_model()), {}, Sgd{}, options);
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Did you mean 'W_grad'?"));
  }
  options = one_thread();
  options.engine.device = "cuda";
  EXPECT_THROW(Session(source_of(train_test::linear_model()), {}, Sgd{}, options), DeviceError);
}

}  // namespace onnxgrad::train::session_test

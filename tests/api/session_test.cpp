#include <gmock/gmock.h>

#include <memory>
#include <thread>

#include "onnxgrad/onnxgrad.h"

// The public sessions and the trainer. What they compute is tested in src/train.

namespace onnxgrad::api_session_test {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kScores = R"(
<ir_version: 8, opset_import: ["" : 17]>
scores (float[N, 2] x) => (float[N, 3] y, float[N, 3] twice)
<float[2, 3] w = {1, 0, 0, 0, 1, 0}, float[3] b = {0, 0, 0.5}, float[1] two = {2}>
{
  m = MatMul(x, w)
  y = Add(m, b)
  twice = Mul(y, two)
}
)";

constexpr const char* kLinear = R"(
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 2] x) => (float[N, 1] y)
<float[2, 1] w = {0, 0}, float[1] b = {0}>
{
  m = MatMul(x, w)
  y = Add(m, b)
}
)";

Tensor floats(const std::vector<float>& values, Dims dims) {
  return Tensor::from(values, std::move(dims));
}

NamedTensors one_row() { return {{.name = "x", .tensor = floats({2, 3}, Dims{1, 2})}}; }

TEST(InferenceSessionApi, RunsChosenOutputs) {
  InferenceSession session(Model::from_text(kScores), {.threads = 1});
  EXPECT_EQ(session.inputs().at(0).name, "x");
  EXPECT_EQ(session.outputs().size(), 2U);
  EXPECT_TRUE(session.plan_summary().empty());
  const auto all = session.run({}, one_row());
  ASSERT_EQ(all.size(), 2U);
  EXPECT_THAT(all[0].to_doubles(), ElementsAre(2, 3, 0.5));
  const std::vector<std::string> names{"twice"};
  EXPECT_THAT(session.run(names, one_row()).at(0).to_doubles(), ElementsAre(4, 6, 1));
  EXPECT_FALSE(session.plan_summary().empty());
  const NamedTensors more{{.name = "x", .tensor = floats({2, 3, 1, 1}, Dims{2, 2})}};
  EXPECT_EQ(session.run(names, more).at(0).dims(), Dims({2, 3}));
}

TEST(InferenceSessionApi, MeasuresTimeAndMemory) {
  InferenceSession session(Model::from_text(kScores), {.threads = 1});
  EXPECT_EQ(session.memory().activations, 0);
  session.run({}, one_row());
  EXPECT_TRUE(session.profile().kernels.empty());
  session.set_profiling(true);
  for (int i = 0; i < 3; ++i) session.run({}, one_row());
  session.set_profiling(false);
  session.run({}, one_row());
  const Profile profile = session.profile();
  ASSERT_FALSE(profile.kernels.empty());
  for (const KernelTime& kernel : profile.kernels) EXPECT_EQ(kernel.calls, 3) << kernel.node;
  EXPECT_THAT(profile.trace_json, HasSubstr("traceEvents"));

  const MemoryReport memory = session.memory();
  EXPECT_GE(memory.activations, 2 * 3 * 4);  // the outputs
  EXPECT_GE(memory.constants, 2 * 3 * 4);    // w, packed
  EXPECT_EQ(memory.weights + memory.optimizer_state + memory.evaluation + memory.snapshots, 0);
  EXPECT_THAT(memory.to_text(), HasSubstr("activations"));
}

TEST(InferenceSessionApi, RefusesWrongFeeds) {
  InferenceSession session(Model::from_text(kScores), {.threads = 1});
  EXPECT_THROW(session.run({}, {}), DataError);
  EXPECT_THROW(session.run(std::vector<std::string>{"z"}, one_row()), DataError);
  EXPECT_THROW(session.run({}, {{.name = "x", .tensor = floats({1}, Dims{1, 1})}}), ShapeError);
  EXPECT_THAT(session.run({}, one_row()).at(0).to_doubles(), ElementsAre(2, 3, 0.5));
}

TEST(InferenceSessionApi, NamesTheOperatorThatItCannotRun) {
  const Model model = Model::from_text(R"(
<ir_version: 9, opset_import: ["" : 20]>
g (float8e4m3fn[2] x) => (bool[2] y)
{
  [first] y = IsNaN(x)
}
)");
  try {
    InferenceSession session(model, {.threads = 1});
    session.run({}, {{.name = "x", .tensor = Tensor::zeros(DataType::kFloat8E4M3FN, Dims{2})}});
    FAIL();
  } catch (const UnsupportedOperatorError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("no kernel"), HasSubstr("IsNaN node 'first'")));
  }
}

TEST(InferenceSessionApi, InputsWithDefaultsMayBeLeftOut) {
  InferenceSession session(Model::from_text(R"(
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, float[1] factor = {3}) => (float[2] y) { y = Mul(x, factor) }
)"),
                           {.threads = 1});
  const NamedTensor x{.name = "x", .tensor = floats({1, 2}, Dims{2})};
  EXPECT_THAT(session.run({}, {x}).at(0).to_doubles(), ElementsAre(3, 6));
  const NamedTensor factor{.name = "factor", .tensor = floats({10}, Dims{1})};
  EXPECT_THAT(session.run({}, {x, factor}).at(0).to_doubles(), ElementsAre(10, 20));
}

NamedTensors batch() {
  return {{.name = "x", .tensor = floats({1, 0, 0, 1, 1, 1, 2, -1}, Dims{4, 2})},
          {.name = "label", .tensor = floats({2.5F, -0.5F, 1.5F, 5.5F}, Dims{4, 1})}};
}

TrainingOptions one_thread() { return {.engine = {.threads = 1}}; }

TEST(TrainingSessionApi, TrainsAndHandsTheFileBack) {
  const Model model = Model::from_text(kLinear);
  TrainingSession session(model, {}, Sgd{.learning_rate = 0.1}, one_thread());
  EXPECT_EQ(session.loss().line, "loss: squared error on 'y'");
  EXPECT_EQ(session.trained_weights().size(), 2U);
  EXPECT_EQ(session.loss().target.name, "label");
  const double first = session.step(batch()).loss;
  for (int i = 0; i < 500; ++i) session.step(batch());
  EXPECT_EQ(session.steps(), 501);
  const EvaluationResult result = session.evaluate(batch());
  EXPECT_LT(result.loss, 1e-3 * first);
  EXPECT_EQ(result.rows, 4);
  const Model trained = session.trained_model();
  EXPECT_EQ(trained.to_bytes().size(), model.to_bytes().size());
  InferenceSession inference(trained, {.threads = 1});
  const auto predicted = session.predict({batch()[0]});
  EXPECT_EQ(inference.run({}, {batch()[0]}).at(0).to_doubles(), predicted.at(0).to_doubles());
  // A model that was returned does not change with further steps.
  const auto before = trained.weight("w").to_doubles();
  session.step(batch());
  EXPECT_EQ(trained.weight("w").to_doubles(), before);
}

// One bias of zeros for two layers, as exporters write it of a new network.
TEST(TrainingSessionApi, TakesApartWhatEqualNumbersMadeOneWeight) {
  const Model model = Model::from_text(R"(
<ir_version: 8, opset_import: ["" : 17]>
two (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {1, 0.5, -0.25, 2}, float[2, 2] v = {0.75, -1, 3, 0.5}, float[2] b = {0, 0}>
{
  h = Gemm(x, w, b)
  y = Gemm(h, v, b)
}
)");
  const NamedTensors batch{{.name = "x", .tensor = floats({2, 3}, Dims{1, 2})},
                           {.name = "label", .tensor = floats({1, 1}, Dims{1, 2})}};
  for (const bool untie : {true, false}) {
    TrainingSession session(model, {.function = SquaredError{}}, Sgd{}, {.untie = untie});
    EXPECT_EQ(session.separated_weights().size(), untie ? 1U : 0U);
    session.step(batch);
    const Model trained = session.trained_model();
    EXPECT_EQ(trained.weights().size(), untie ? 4U : 3U);
    if (!untie) continue;
    EXPECT_THAT(session.separated_weights()[0].parts, ElementsAre("b", "b_1"));
    EXPECT_THAT(session.weights_line(), HasSubstr("trains 4 of 4 weights\ntrained separately"));
    EXPECT_NE(trained.weight("b").to_doubles(), trained.weight("b_1").to_doubles());
    // The weights of a session are known by name to the file that it began with.
    const NamedTensors bias{{.name = "b_1", .tensor = floats({5, 6}, Dims{2})}};
    EXPECT_THAT(set_weights(model, bias).weight("b_1").to_doubles(), ElementsAre(5, 6));
  }
}

TEST(TrainingSessionApi, TakesALossWithoutItsOptions) {
  TrainingSession plain(Model::from_text(kLinear), AbsoluteError{}, Sgd{}, one_thread());
  TrainingSession whole(Model::from_text(kLinear), {.function = AbsoluteError{}}, Sgd{},
                        one_thread());
  EXPECT_EQ(plain.loss().line, "loss: absolute error on 'y'");
  EXPECT_EQ(plain.step(batch()).loss, whole.step(batch()).loss);
}

TEST(TrainingSessionApi, LearningRateIsInForceAtOnce) {
  TrainingSession session(Model::from_text(kLinear), {}, Sgd{.learning_rate = 0.1}, one_thread());
  session.set_learning_rate(0);
  EXPECT_EQ(session.learning_rate(), 0);
  session.step(batch());
  EXPECT_THAT(session.state().at(0).tensor.to_doubles(), ElementsAre(0, 0));
}

TEST(TrainingSessionApi, OneCallAtATime) {
  TrainingSession session(Model::from_text(kLinear), {}, Sgd{}, one_thread());
  std::atomic<int> refused{0};
  std::atomic<int> done{0};
  const auto work = [&] {
    for (int i = 0; i < 300; ++i) {
      try {
        session.step(batch());
        ++done;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("busy"));
        ++refused;
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(done + refused, 600);
  EXPECT_EQ(session.steps(), done);
}

Tensor rows_of(const std::vector<float>& values) {
  return floats(values, Dims{static_cast<std::int64_t>(values.size()) / 2, 2});
}

TEST(TrainerApi, FitsInThreeLines) {
  Trainer trainer(Model::from_text(kLinear), {}, Adam{.learning_rate = 0.1}, one_thread());
  const Tensor x = rows_of({1, 0, 0, 1, 1, 1, 2, -1});
  const Tensor y = floats({2.5F, -0.5F, 1.5F, 5.5F}, Dims{4});
  const History& history = trainer.fit(x, y, {.epochs = 200, .batch_size = 2});
  EXPECT_EQ(history.epochs.size(), 200U);
  EXPECT_LT(history.epochs.back().train_loss, 1e-2);
  const Dataset data{.inputs = {{.name = "x", .tensor = x}}, .target = y};
  EXPECT_NEAR(trainer.evaluate(data, 3).loss, history.epochs.back().train_loss, 1e-2);
  EXPECT_THROW(trainer.evaluate(data, 0), OptionError);
  trainer.reset();
  EXPECT_TRUE(trainer.history().epochs.empty());
  EXPECT_EQ(trainer.session().steps(), 0);
}

// Bare scores and class labels: the automatic loss becomes a softmax cross-entropy.
TEST(TrainerApi, TheTargetSettlesAnAutomaticLoss) {
  Trainer trainer(Model::from_text(kScores), {.output = "y"}, Sgd{.learning_rate = 0.5},
                  one_thread());
  EXPECT_EQ(trainer.session().loss().line, "loss: squared error on 'y'");
  const Tensor x = rows_of({1, 0, 0, 1, -1, -1, 2, 0});
  const Tensor y = Tensor::from(std::vector<std::int64_t>{2, 1, 0, 2}, Dims{4});
  trainer.fit(x, y, {.epochs = 300});
  EXPECT_THAT(trainer.session().loss().line, HasSubstr("softmax cross-entropy on 'y'"));
  EXPECT_EQ(trainer.evaluate({.inputs = {{.name = "", .tensor = x}}, .target = y}).accuracy, 1.0);
}

// The session that was given is trained, by two trainers in turn, and takes weights of rows later.
TEST(TrainerApi, SharesItsSession) {
  const auto session = std::make_shared<TrainingSession>(Model::from_text(kLinear), Loss{},
                                                         Sgd{.learning_rate = 0.25}, one_thread());
  Trainer first(session);
  Trainer second(session);
  EXPECT_EQ(&first.session(), session.get());
  const Tensor x = rows_of({1, 0, 0, 0});
  const Tensor y = floats({1, 3}, Dims{2});
  first.fit(x, y, {.epochs = 1, .batch_size = 2, .shuffle = false});
  // The gradients of ((w0 + b - 1)^2 + (b - 3)^2) / 2 at 0 are -1 and -4.
  EXPECT_THAT(session->state()[0].tensor.to_doubles(), ElementsAre(0.25, 0));
  EXPECT_THAT(session->state()[1].tensor.to_doubles(), ElementsAre(1));
  session->use_sample_weights();
  EXPECT_THAT(session->state()[1].tensor.to_doubles(), ElementsAre(1));
  // The second row alone: (b - 3)^2 has the gradient -4 at 1.
  const Dataset data{.inputs = {{.name = "x", .tensor = x}},
                     .target = y,
                     .sample_weight = floats({0, 1}, Dims{2})};
  second.fit(data, {.epochs = 1, .batch_size = 2, .shuffle = false});
  EXPECT_THAT(session->state()[0].tensor.to_doubles(), ElementsAre(0.25, 0));
  EXPECT_THAT(session->state()[1].tensor.to_doubles(), ElementsAre(2));
  EXPECT_EQ(session->steps(), 2);
}

// A callback that asks for scores, which the validation of the fit does not have.
TEST(TrainerApi, CallbacksEvaluateMetricsWhileTheFitValidates) {
  const Tensor x = rows_of({1, 0, 0, 1, 1, 1, 2, -1});
  const Dataset data{.inputs = {{.name = "x", .tensor = x}},
                     .target = floats({2.5F, -0.5F, 1.5F, 5.5F}, Dims{4})};
  Trainer trainer(Model::from_text(kLinear), {}, Sgd{.learning_rate = 0.1}, one_thread());
  FitOptions options{.epochs = 5, .batch_size = 2, .validation = &data};
  int epochs = 0;
  options.on_epoch_end = [&](const EpochLog& log) {
    const EvaluationResult result = trainer.evaluate(data, 3, {Metric{.name = "mse"}});
    EXPECT_NEAR(result.metrics.at(0), log.val_loss.value(), 1e-6);
    ++epochs;
    return false;
  };
  trainer.fit(data, options);
  EXPECT_EQ(epochs, 5);
}

TEST(TrainerApi, StopsFromAnotherThread) {
  Trainer trainer(Model::from_text(kLinear), {}, Sgd{.learning_rate = 1e-3}, one_thread());
  const Tensor x = rows_of({1, 0, 0, 1, 1, 1, 2, -1});
  const Tensor y = floats({2.5F, -0.5F, 1.5F, 5.5F}, Dims{4});
  std::atomic<bool> begun{false};
  FitOptions options{.epochs = 100'000'000, .batch_size = 1};
  options.on_epoch_end = [&](const EpochLog&) {
    begun = true;
    return false;
  };
  std::thread stopper([&] {
    while (!begun) std::this_thread::yield();
    trainer.stop();
  });
  const History& history = trainer.fit(x, y, options);
  stopper.join();
  EXPECT_EQ(history.stop_reason, "stop() was called");
  EXPECT_EQ(trainer.fit(x, y, {.epochs = 2}).epochs.size(), 2U);
}

TEST(NamesApi, OfLossesAndOptimizers) {
  for (const std::string& name : loss_names()) EXPECT_NO_THROW(loss_from_name(name)) << name;
  for (const std::string& name : optimizer_names()) {
    EXPECT_NO_THROW(optimizer_from_name(name)) << name;
  }
  EXPECT_TRUE(std::holds_alternative<SquaredError>(loss_from_name("mse")));
  EXPECT_TRUE(std::get<Sgd>(optimizer_from_name("nesterov")).nesterov);
  EXPECT_EQ(learning_rate_of(Adam{}), 0.001);
  EXPECT_EQ(to_string(Sgd{.learning_rate = 0.1, .momentum = 0.9}),
            "Sgd(learning_rate=0.1, momentum=0.9)");
  try {
    optimizer_from_name("adamm");
    FAIL();
  } catch (const OptionError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Did you mean 'adam'?"));
  }
  EXPECT_THROW(loss_from_name("sqared_error"), OptionError);
}

TEST(ReportApi, CountsAndJudges) {
  const Report result = report(Model::from_text(kScores));
  EXPECT_EQ(result.opset, 17);
  EXPECT_EQ(result.num_parameters, 10);
  EXPECT_EQ(result.num_trainable, 9);
  ASSERT_EQ(result.operators.size(), 3U);
  EXPECT_EQ(result.operators[0].op_type, "Add");
  EXPECT_TRUE(result.operators[0].runs);
  EXPECT_TRUE(result.operators[0].has_gradient);
  EXPECT_TRUE(result.loss_line.empty());
  EXPECT_THAT(result.loss_problem, HasSubstr("several outputs"));
  EXPECT_THAT(result.to_text(), HasSubstr("MatMul"));

  const Report linear = report(Model::from_text(kLinear));
  EXPECT_EQ(linear.loss_line, "loss: squared error on 'y'");
  EXPECT_TRUE(linear.missing_gradients.empty());
  EXPECT_EQ(linear.to_text(), R"(model, opset 17, IR version 8
input  x: float32[N, 2]
output y: float32[N, 1]

operator  count  runs  gradient
Add           1  yes   yes
MatMul        1  yes   yes

weight  read by  dtype    shape   parameters  FLOPs  trained
w       MatMul   float32  [2, 1]           2      4  yes
b       Add      float32  [1]              1      1  yes
3 parameters (12 B): 3 trained, 0 frozen; 5 FLOPs per row in a forward pass

loss: squared error on 'y'
trainable: trains 2 of 2 weights
)");
  EXPECT_TRUE(linear.is_trainable);
}

}  // namespace onnxgrad::api_session_test

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "onnxgrad/onnxgrad.h"
#include "train/testing/malloc_counter.h"

// A call for which the system has no memory throws; nothing has changed then, and all later calls
// give what they would have given without it. The n-th allocation of a call fails, alone or with
// all after it, for each n. ONNXGRAD_FAULT_TESTS=long: for every n; otherwise for a sample.

namespace onnxgrad::failed_allocations_test {

constexpr std::int64_t kFewRows = 4;

bool tests_all() {
  const char* mode = std::getenv("ONNXGRAD_FAULT_TESTS");
  return mode != nullptr && std::string(mode) == "long";
}

/// One kind of call of one kind of object.
struct Subject {
  std::function<std::vector<Tensor>(std::int64_t rows)> call;
  std::function<NamedTensors()> state = [] { return NamedTensors(); };
  std::function<void(const NamedTensors&)> set_state = [](const NamedTensors& /*state*/) {};
};

struct Scenario {
  std::string name;
  std::function<Subject()> make;
  bool has_progress = false;  ///< a call that throws may have done some of its steps
};

bool are_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].is_defined() != b[i].is_defined()) return false;
    if (a[i].is_defined() && !a[i].equals(b[i])) return false;
  }
  return true;
}

testing::AssertionResult are_equal_states(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << "their numbers differ";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].tensor.equals(b[i].tensor)) return testing::AssertionFailure() << a[i].name;
  }
  return testing::AssertionSuccess();
}

/// Outcome of a call in which an allocation failed.
struct Outcome {
  bool is_reached = false;  ///< there were so many allocations
  bool has_thrown = false;
  std::vector<Tensor> results = {};
};

Outcome call_failing(const std::function<std::vector<Tensor>()>& call, std::int64_t number,
                     bool all_after) {
  Outcome outcome;
  train_test::fail_allocations(number, all_after);
  try {
    outcome.results = call();
  } catch (const InternalError& error) {
    train_test::fail_allocations(0);
    ADD_FAILURE() << "allocation " << number << ": " << error.what();
  } catch (const Error&) {
    outcome.has_thrown = true;
  } catch (const std::bad_alloc&) {
    outcome.has_thrown = true;
  }
  outcome.is_reached = train_test::has_failed_allocation();
  train_test::fail_allocations(0);
  return outcome;
}

std::int64_t next_number(std::int64_t number) {
  return number + 1 + (tests_all() ? 0 : number / 8);
}

void test_scenario(const Scenario& scenario, bool all_after) {
  SCOPED_TRACE(scenario.name + (all_after ? ", all after it" : ""));
  Subject reference = scenario.make();
  Subject tried = scenario.make();
  const NamedTensors first = reference.state();
  const std::vector<Tensor> few = reference.call(kFewRows);
  const NamedTensors after_few = reference.state();
  const auto is_as_before = [&] {
    tried.set_state(first);
    return are_equal(tried.call(kFewRows), few) && are_equal_states(tried.state(), after_few);
  };
  ASSERT_TRUE(is_as_before());
  for (std::int64_t number = 1;; number = next_number(number)) {
    const std::int64_t rows = kFewRows + 1 + number % 300;  // a new plan each time
    tried.set_state(first);
    const Outcome outcome = call_failing([&] { return tried.call(rows); }, number, all_after);
    if (outcome.has_thrown && !scenario.has_progress) {
      ASSERT_TRUE(are_equal_states(tried.state(), first)) << "after allocation " << number;
    }
    if (!outcome.has_thrown) {  // it could do without
      reference.set_state(first);
      ASSERT_TRUE(are_equal(outcome.results, reference.call(rows))) << "allocation " << number;
      ASSERT_TRUE(are_equal_states(tried.state(), reference.state())) << "allocation " << number;
    }
    ASSERT_TRUE(is_as_before()) << "after allocation " << number;
    if (!outcome.is_reached) {
      EXPECT_GT(number, 1);
      return;
    }
  }
}

// ---- models ----

constexpr const char* kLayers = R"(
<ir_version: 8, opset_import: ["" : 17]>
layers (float[N, 2] x) => (float[N, 2] y)
<float[2, 4] w = {1, 2, 3, 4, 0.5, -0.5, 1, -2}, float[4] b = {0, 1, 0.5, 0.25},
 float[4, 2] v = {0.5, -0.5, 1, 0.25, -1, 2, 0.75, 1}>
{
  m = MatMul(x, w)
  a = Add(m, b)
  h = Tanh(a)
  y = MatMul(h, v)
}
)";

// With running statistics, and a Dropout.
constexpr const char* kNormalized = R"(
<ir_version: 8, opset_import: ["" : 17]>
normalized (float[N, 2] x) => (float[N, 2] y)
<float[2, 4] w = {1, 2, 3, 4, 0.5, -0.5, 1, -2}, float[4] scale = {1, 2, 1, 0.5},
 float[4] shift = {0, 1, 0, 0}, float[4] mean = {0, 0, 0, 0}, float[4] var = {1, 1, 1, 1},
 float[4, 2] v = {0.5, -0.5, 1, 0.25, -1, 2, 0.75, 1}, float ratio = {0.25}, bool mode = {1}>
{
  m = MatMul(x, w)
  n, new_mean, new_var = BatchNormalization<training_mode = 1>(m, scale, shift, mean, var)
  d = Dropout<seed = 7>(n, ratio, mode)
  y = MatMul(d, v)
}
)";

// With running statistics alone: results depend on nothing but inputs and state.
constexpr const char* kStatistics = R"(
<ir_version: 8, opset_import: ["" : 17]>
statistics (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {1, 2, 0.5, -0.5}, float[2] scale = {1, 2}, float[2] shift = {0, 1},
 float[2] mean = {0, 0}, float[2] var = {1, 1}>
{
  m = MatMul(x, w)
  y, new_mean, new_var = BatchNormalization<training_mode = 1>(m, scale, shift, mean, var)
}
)";

// The number of positive elements is known only when the step runs.
constexpr const char* kDynamic = R"(
<ir_version: 8, opset_import: ["" : 17]>
dynamic (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {1, 2, 0.5, -0.5}, float[2, 2] v = {0.5, -0.5, 1, 0.25}, float zero = {1.4},
 float share = {0.1}>
{
  h = MatMul(x, w)
  t = Tanh(h)
  p = Greater(x, zero)
  n = NonZero(p)
  i = Transpose(n)
  g = GatherND(t, i)
  s = ReduceSum<keepdims = 0>(g)
  c = Mul(s, share)
  z = MatMul(t, v)
  y = Add(z, c)
}
)";

constexpr const char* kLooped = R"(
<ir_version: 8, opset_import: ["" : 17]>
looped (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {1, 2, 0.5, -0.5}, int64 count = {3}, bool go = {1}>
{
  h = MatMul(x, w)
  y = Loop(count, go, h) <body = step (int64 i, bool c, float[N, 2] s) => (bool d, float[N, 2] r) {
    d = Identity(c)
    m = MatMul(s, w)
    r = Tanh(m)
  }>
}
)";

NamedTensors rows_of(std::int64_t rows) {
  Tensor x = Tensor::empty(DataType::kFloat32, Dims{rows, 2});
  Tensor y = Tensor::empty(DataType::kFloat32, Dims{rows, 2});
  int i = 0;
  for (float& element : x.mutable_data<float>()) element = static_cast<float>(++i % 7) * 0.3F;
  for (float& element : y.mutable_data<float>()) element = static_cast<float>(++i % 5) * 0.2F;
  return {{.name = "x", .tensor = x}, {.name = "label", .tensor = y}};
}

// A result of a call that has ended: what the test allocates does not fail.
Tensor number(double value) {
  train_test::stop_failing();
  return Tensor::scalar(value);
}

Subject training(const char* model, const Optimizer& optimizer, TrainingOptions options,
                 const std::function<std::vector<Tensor>(TrainingSession&, std::int64_t)>& call,
                 const Loss& loss = {SquaredError{}}) {
  options.engine.threads = 1;
  auto session =
      std::make_shared<TrainingSession>(Model::from_text(model), loss, optimizer, options);
  return {.call = [=](std::int64_t rows) { return call(*session, rows); },
          .state =
              [=] {
                NamedTensors state = session->state();
                state.push_back(
                    {.name = "steps", .tensor = number(static_cast<double>(session->steps()))});
                return state;
              },
          .set_state =
              [=](const NamedTensors& state) {
                session->reset();  // the number of steps
                session->load_state({state.begin(), state.end() - 1});
              }};
}

std::vector<Tensor> step(TrainingSession& session, std::int64_t rows) {
  StepResult result = session.step(rows_of(rows));
  train_test::stop_failing();
  std::vector<Tensor> all = std::move(result.outputs);
  if (result.row_losses.is_defined()) all.push_back(result.row_losses);
  all.push_back(number(result.loss));
  return all;
}

Scenario step_of(const std::string& name, const char* model, const Optimizer& optimizer,
                 const TrainingOptions& options = {}, const Loss& loss = {SquaredError{}}) {
  return {.name = name, .make = [=] { return training(model, optimizer, options, step, loss); }};
}

std::vector<Tensor> predict(TrainingSession& session, std::int64_t rows) {
  return session.predict({rows_of(rows)[0]});
}

std::vector<Tensor> evaluate(TrainingSession& session, std::int64_t rows) {
  return {number(session.evaluate(rows_of(rows)).loss)};
}

Subject fitting(const char* model) {
  TrainingOptions options;
  options.engine.threads = 1;
  auto trainer =
      std::make_shared<Trainer>(Model::from_text(model), Loss{SquaredError{}}, Adam{}, options);
  return {.call =
              [=](std::int64_t rows) {
                const NamedTensors data = rows_of(3 * rows);
                FitOptions fit{.epochs = 2, .batch_size = rows};
                fit.validation_fraction = 0.25;
                const History& history = trainer->fit(data[0].tensor, data[1].tensor, fit);
                return std::vector<Tensor>{number(history.epochs.back().train_loss),
                                           number(history.epochs.back().val_loss.value())};
              },
          .state = [=] { return trainer->session().state(); },
          .set_state =
              [=](const NamedTensors& state) {
                trainer->reset();
                trainer->session().load_state(state);
              }};
}

Subject inference(const char* model) {
  auto session =
      std::make_shared<InferenceSession>(Model::from_text(model), EngineOptions{.threads = 1});
  return {.call = [=](std::int64_t rows) { return session->run({}, {rows_of(rows)[0]}); }};
}

std::shared_ptr<ForwardBackward> passes_of(const char* model) {
  ForwardBackwardOptions options;
  options.engine.threads = 1;
  return std::make_shared<ForwardBackward>(Model::from_text(model), options);
}

Subject passing(const char* model,
                const std::function<std::vector<Tensor>(ForwardBackward&, std::int64_t)>& call) {
  const auto passes = passes_of(model);
  return {.call = [=](std::int64_t rows) { return call(*passes, rows); },
          .state = [=] { return passes->weights(); },
          .set_state = [=](const NamedTensors& state) { passes->set_weights(state); }};
}

std::vector<Tensor> forward(ForwardBackward& passes, std::int64_t rows) {
  for (const auto& open : passes.contexts()) passes.discard(open);
  return passes.forward({rows_of(rows)[0]}, true).outputs;
}

std::vector<Tensor> values_of(const NamedTensors& tensors) {
  std::vector<Tensor> values;
  for (const NamedTensor& one : tensors) values.push_back(one.tensor);
  return values;
}

std::vector<Tensor> both_passes(ForwardBackward& passes, std::int64_t rows) {
  auto result = passes.run(std::vector{rows_of(rows)[0].tensor});
  train_test::stop_failing();
  std::vector<Tensor> all = values_of(result.gradients.weights);
  all.insert(all.end(), result.outputs.begin(), result.outputs.end());
  EXPECT_TRUE(passes.contexts().empty());
  return all;
}

TrainingOptions with_outputs() {
  TrainingOptions options;
  options.outputs = {"y", "w_grad", "gradient_norm"};
  return options;
}

TrainingOptions accumulating() {
  TrainingOptions options;
  options.update.accumulate = 2;
  return options;
}

TrainingOptions with_precision(Precision type) {
  TrainingOptions options;
  options.precision.type = type;
  return options;
}

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all{
      step_of("sgd", kLayers, Sgd{.learning_rate = 0.1}),
      step_of("adam_with_outputs", kLayers, Adam{}, with_outputs()),
      step_of("row_losses", kLayers, Adam{}, {},
              {.function = SquaredError{}, .reduction = Reduction::kNone}),
      step_of("accumulated", kLayers, Adam{}, accumulating()),
      step_of("lbfgs", kLayers, Lbfgs{.max_iterations = 3}),
      step_of("bf16", kLayers, Adam{}, with_precision(Precision::kBfloat16)),
      step_of("fp16", kLayers, Adam{}, with_precision(Precision::kFloat16)),
      step_of("statistics", kNormalized, Adam{}),
      step_of("dynamic", kDynamic, Adam{}, {.outputs = {"y"}}),
      step_of("looped", kLooped, Adam{}),
      {.name = "predict", .make = [] { return training(kDynamic, Adam{}, {}, predict); }},
      {.name = "evaluate", .make = [] { return training(kNormalized, Adam{}, {}, evaluate); }},
      {.name = "fit", .make = [] { return fitting(kLayers); }, .has_progress = true},
      {.name = "run", .make = [] { return inference(kLayers); }},
      {.name = "run_dynamic", .make = [] { return inference(kDynamic); }},
      {.name = "run_looped", .make = [] { return inference(kLooped); }},
      {.name = "forward", .make = [] { return passing(kStatistics, forward); }},
      {.name = "forward_dynamic", .make = [] { return passing(kDynamic, forward); }},
      {.name = "both_passes", .make = [] { return passing(kStatistics, both_passes); }},
  };
  return all;
}

class FailedAllocations : public testing::TestWithParam<Scenario> {
 protected:
  void SetUp() override {
    if (!train_test::counts_allocations()) GTEST_SKIP() << "a sanitizer has its own allocator";
  }
};

TEST_P(FailedAllocations, ChangeNothing) {
  test_scenario(GetParam(), /*all_after=*/false);
  if (!HasFatalFailure()) test_scenario(GetParam(), /*all_after=*/true);
}

INSTANTIATE_TEST_SUITE_P(Calls, FailedAllocations, testing::ValuesIn(scenarios()),
                         [](const auto& info) { return info.param.name; });

// A backward pass that throws can be done again.
TEST(FailedBackwardPass, IsStillOpen) {
  if (!train_test::counts_allocations()) GTEST_SKIP() << "a sanitizer has its own allocator";
  for (const char* model : {kNormalized, kDynamic}) {
    const auto gradients = [](ForwardBackward& passes, std::int64_t rows) {
      const Tensor ones =
          Tensor::from(std::vector<float>(static_cast<std::size_t>(2 * rows), 1), Dims{rows, 2});
      const NamedTensors weights = passes.backward(std::vector{ones}).weights;
      train_test::stop_failing();
      return values_of(weights);
    };
    const auto reference = passes_of(model);
    const auto tried = passes_of(model);
    for (std::int64_t number = 1;; number = next_number(number)) {
      const std::int64_t rows = kFewRows + number % 300;
      for (const auto& passes : {reference, tried}) passes->forward({rows_of(rows)[0]}, true);
      const std::vector<Tensor> expected = gradients(*reference, rows);
      const Outcome outcome =
          call_failing([&] { return gradients(*tried, rows); }, number, number % 2 == 0);
      const std::vector<Tensor> given =
          outcome.has_thrown ? gradients(*tried, rows) : outcome.results;
      ASSERT_TRUE(are_equal(given, expected)) << "allocation " << number;
      ASSERT_TRUE(tried->contexts().empty());
      if (!outcome.is_reached) break;
    }
  }
}

}  // namespace onnxgrad::failed_allocations_test

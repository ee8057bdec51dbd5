#include "train/optimizers/optimizers.h"

#include <gmock/gmock.h>

#include <cmath>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "onnxgrad/option_error.h"
#include "runtime/executor.h"
#include "train/testing/draft.h"

namespace onnxgrad::train::optimizers_test {

using nlohmann::json;
using train_test::dims_of;
using train_test::Draft;
using train_test::tensor_of;

Optimizer optimizer_of(const json& row) {
  const json& parameters = row["parameters"];
  const auto get = [&](const char* name, double fallback) {
    return parameters.value(name, fallback);
  };
  if (row["kind"] == "adam") {
    return Adam{.learning_rate = get("lr", 0),
                .beta1 = get("beta1", 0.9),
                .beta2 = get("beta2", 0.999),
                .epsilon = get("epsilon", 1e-8),
                .weight_decay = get("weight_decay", 0)};
  }
  return Sgd{.learning_rate = get("lr", 0),
             .momentum = get("momentum", 0),
             .dampening = get("dampening", 0),
             .nesterov = parameters.value("nesterov", false),
             .weight_decay = get("weight_decay", 0)};
}

// 50 steps over stored gradients, which come in as an input.
std::vector<double> train(const json& row, DataType dtype) {
  const json& table = train_test::training_values()["optimizers"];
  const Dims dims = dims_of(table["shape"]);
  const Optimizer optimizer = optimizer_of(row);
  Draft draft;
  ir::Graph& graph = *draft.model->graph;
  ir::Value* gradient = draft.input("gradient", dtype, *ir::Type::tensor(dtype, dims).shape);
  ir::Value* rate = draft.input("learning_rate", dtype, {});
  ir::Value* weight = draft.weight("w", tensor_of(table["start"], dtype, dims));
  weight->is_input = true;
  graph.inputs.push_back(weight);
  draft.model->state = write_optimizer(draft.g, optimizer,
                                       {.weights = std::span(&weight, 1),
                                        .gradients = std::span(&gradient, 1),
                                        .learning_rate = rate});
  for (const ir::StateBinding& binding : draft.model->state)
    graph.outputs.push_back(binding.output);
  runtime::Executor executor(draft.model, cpu_engine());
  const double learning_rate = row["parameters"]["lr"];
  for (const json& g : table["gradients"]) {
    executor.run(std::vector{tensor_of(g, dtype, dims), Tensor::scalar_of(dtype, learning_rate)});
  }
  EXPECT_EQ(executor.state().front().name, "w");
  return executor.read_state(0).to_doubles();
}

class Optimizers : public testing::TestWithParam<std::size_t> {
 protected:
  static const json& row() {
    return train_test::training_values()["optimizers"]["cases"].at(GetParam());
  }
};

TEST_P(Optimizers, EndWhereTheFormulasEnd) {
  SCOPED_TRACE(row()["name"]);
  const auto expected = row()["end"].get<std::vector<double>>();
  for (const DataType dtype : {DataType::kFloat64, DataType::kFloat32}) {
    const double tolerance = dtype == DataType::kFloat64 ? 1e-12 : 1e-5;
    const auto trained = train(row(), dtype);
    ASSERT_EQ(trained.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(trained[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Optimizers, testing::Range<std::size_t>(0, 10));

TEST(OptimizerTable, IsWhole) {
  EXPECT_EQ(train_test::training_values()["optimizers"]["cases"].size(), 10U);
}

// Two weights 'a' [2] and 'layer/b' [], fed with their gradients, the rate and the denominator.
class TwoWeights {
 public:
  TwoWeights(const Optimizer& optimizer, const UpdateOptions& options,
             std::unordered_set<std::string> own_counts = {}, bool with_denominator = true) {
    Draft draft;
    ir::Graph& graph = *draft.model->graph;
    std::vector<ir::Value*> gradients{
        draft.input("a_grad", DataType::kFloat64, {2}),
        draft.input("b_grad", DataType::kFloat64, {}),
    };
    ir::Value* rate = draft.input("learning_rate", DataType::kFloat64, {});
    ir::Value* denominator = draft.input("denominator", DataType::kFloat64, {});
    std::vector<ir::Value*> weights{
        draft.weight("a", Tensor::from(std::vector<double>{1, -2}, Dims{2})),
        draft.weight("layer/b", Tensor::scalar(0.5)),
    };
    for (ir::Value* weight : weights) {
      weight->is_input = true;
      graph.inputs.push_back(weight);
    }
    draft.model->state = write_optimizer(draft.g, optimizer,
                                         {.weights = weights,
                                          .gradients = gradients,
                                          .learning_rate = rate,
                                          .denominator = with_denominator ? denominator : nullptr,
                                          .with_own_count = std::move(own_counts)},
                                         options);
    for (const ir::StateBinding& binding : draft.model->state) {
      graph.outputs.push_back(binding.output);
    }
    executor_.emplace(draft.model, cpu_engine());
  }

  // The weights after a step, in one row.
  std::vector<double> step(std::vector<double> a, double b, double rate, double denominator = 1) {
    executor_->run(std::vector{Tensor::from(a, Dims{2}), Tensor::scalar(b), Tensor::scalar(rate),
                               Tensor::scalar(denominator)});
    std::vector<double> weights = state("a");
    weights.push_back(state("layer/b").front());
    return weights;
  }

  std::vector<double> state(const std::string& name) const {
    for (std::size_t i = 0; i < executor_->state().size(); ++i) {
      if (executor_->state()[i].name == name) return executor_->read_state(i).to_doubles();
    }
    throw InternalError("no state " + name);
  }

  std::vector<std::string> state_names() const {
    std::vector<std::string> names;
    for (const runtime::Port& port : executor_->state()) names.push_back(port.name);
    return names;
  }

 private:
  std::optional<runtime::Executor> executor_;
};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-14) << i;
}

TEST(ParameterGroups, FirstMatchGivesRateAndDecay) {
  TwoWeights model(Sgd{.weight_decay = 0.5},
                   {.groups = {{.patterns = {"*b"}, .rate_factor = 0.1, .weight_decay = 0.0},
                               {.patterns = {"*"}, .rate_factor = 2}}});
  // a -= 0.2 (g + 0.5 a); b -= 0.01 g
  expect_near(model.step({1, 3}, 4, 0.1), {1 - 0.2 * 1.5, -2 - 0.2 * 2, 0.5 - 0.04});
}

TEST(ParameterGroups, RateFactorReachesScalarsOfAdam) {
  TwoWeights model(Adam{.epsilon = 0}, {.groups = {{.patterns = {"a"}, .rate_factor = 3}}});
  // The first step of Adam has length lr.
  expect_near(model.step({5, -0.01}, 2, 0.1), {1 - 0.3, -2 + 0.3, 0.5 - 0.1});
}

TEST(ParameterGroups, PatternsMustMatch) {
  EXPECT_THROW(TwoWeights(Sgd{}, {.groups = {{.patterns = {"c*"}}}}), ModelError);
  EXPECT_THROW(check_update_options({.groups = {{}}}), OptionError);
  EXPECT_THROW(check_update_options({.groups = {{.patterns = {"*"}, .rate_factor = -1}}}),
               OptionError);
  EXPECT_THROW(check_update_options({.groups = {{.patterns = {"*"}, .weight_decay = -1}}}),
               OptionError);
}

TEST(Clipping, ByValueThenByNorm) {
  TwoWeights by_value(Sgd{}, {.clip_value = 1.5});
  expect_near(by_value.step({1, -3}, 7, 1), {0, -0.5, -1});
  const double norm = std::sqrt(1 + 4 + 4);
  TwoWeights by_norm(Sgd{}, {.clip_norm = 0.3});
  const double factor = 0.3 / (norm + 1e-6);
  expect_near(by_norm.step({1, -2}, 2, 1), {1 - factor, -2 + 2 * factor, 0.5 - 2 * factor});
  TwoWeights small(Sgd{}, {.clip_norm = 3.1});
  expect_near(small.step({1, -2}, 2, 1), {0, 0, -1.5});
  TwoWeights both(Sgd{}, {.clip_value = 1, .clip_norm = 1});
  const double both_factor = 1 / (std::sqrt(3.0) + 1e-6);
  expect_near(both.step({1, -2}, 2, 1), {1 - both_factor, -2 + both_factor, 0.5 - both_factor});
  EXPECT_THROW(check_update_options({.clip_value = 0}), OptionError);
  EXPECT_THROW(check_update_options({.clip_norm = -1}), OptionError);
}

TEST(Accumulation, WeighsBatchesByTheirDenominators) {
  TwoWeights model(Sgd{.momentum = 0.5}, {.accumulate = 3});
  expect_near(model.step({1, 1}, 1, 1, 2), {1, -2, 0.5});
  expect_near(model.step({2, 4}, 0, 1, 6), {1, -2, 0.5});
  const double a0 = (1 * 2 + 2 * 6 + 3 * 4) / 12.0;
  const double a1 = (1 * 2 + 4 * 6 + 3 * 4) / 12.0;
  const double b = (1 * 2 + 0 * 6 - 3 * 4) / 12.0;
  expect_near(model.step({3, 3}, -3, 1, 4), {1 - a0, -2 - a1, 0.5 - b});
  expect_near(model.state("momentum/a"), {a0, a1});
  expect_near(model.state("accumulated/a"), {0, 0});
  expect_near(model.state("accumulated_rows"), {0});
  expect_near(model.state("accumulated_batches"), {0});
  // The next round begins from zero.
  model.step({0, 0}, 0, 1, 1);
  model.step({0, 0}, 0, 1, 1);
  expect_near(model.step({3, 0}, 0, 1, 1),
              {1 - a0 - (1 + 0.5 * a0), -2 - a1 - 0.5 * a1, 0.5 - b - 0.5 * b});
}

TEST(Accumulation, OfSumsAddsUp) {
  TwoWeights model(Sgd{}, {.accumulate = 2}, {}, /*with_denominator=*/false);
  model.step({1, 2}, 3, 1);
  expect_near(model.step({10, 20}, 30, 1), {1 - 11, -2 - 22, 0.5 - 33});
}

TEST(Accumulation, RowsWithoutWeightMoveNothing) {
  TwoWeights model(Sgd{}, {.accumulate = 2});
  model.step({1, 2}, 3, 1, 0);
  expect_near(model.step({1, 2}, 3, 1, 0), {1, -2, 0.5});
}

TEST(Accumulation, CountsUpdatesNotSteps) {
  TwoWeights model(Adam{}, {.clip_norm = 1, .accumulate = 2});
  for (int i = 0; i < 5; ++i) model.step({1, 1}, 1, 0.1);
  expect_near(model.state("step_count"), {2});
  expect_near(model.state("accumulated_batches"), {1});
  EXPECT_THROW(check_update_options({.accumulate = 0}), OptionError);
}

TEST(OwnCounts, StandBesideTheSharedOne) {
  TwoWeights model(Adam{}, {}, {"layer/b"});
  EXPECT_THAT(model.state_names(), testing::UnorderedElementsAre(
                                       "a", "layer/b", "adam_m/a", "adam_v/a", "adam_m/layer/b",
                                       "adam_v/layer/b", "step_count", "step_count/layer/b"));
}

TEST(Lbfgs, HoldsWeightsAndRefusesOptions) {
  TwoWeights model(Lbfgs{}, {});
  expect_near(model.step({1, 1}, 1, 1), {1, -2, 0.5});
  EXPECT_THROW(TwoWeights(Lbfgs{}, {.clip_norm = 1}), ModelError);
  EXPECT_THROW(TwoWeights(Lbfgs{}, {.accumulate = 2}), ModelError);
}

TEST(OptimizerParameters, OutOfRangeAreRefused) {
  const std::vector<Optimizer> bad{
      Sgd{.learning_rate = -1},
      Sgd{.learning_rate = std::nan("")},
      Sgd{.nesterov = true},
      Sgd{.momentum = 0.9, .dampening = 0.1, .nesterov = true},
      Sgd{.weight_decay = -1},
      Sgd{.rate_in_velocity = true},
      Sgd{.momentum = 0.9, .dampening = 0.1, .rate_in_velocity = true},
      Adam{.beta1 = 1},
      Adam{.beta2 = -0.1},
      Adam{.epsilon = -1},
      AdamW{.beta1 = 1.5},
      AdamW{.weight_decay = -0.1},
      Lamb{.beta2 = 1},
      Lion{.beta1 = 1},
      Adagrad{.rate_decay = -1},
      Adagrad{.initial_accumulator = -1},
      RmsProp{.alpha = 1},
      RmsProp{.momentum = -1},
      Lbfgs{.max_iterations = 0},
      Lbfgs{.history = 0},
      Lbfgs{.gradient_tolerance = -1},
  };
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THROW(check_optimizer(bad[i]), OptionError) << "number " << i;
  }
  const std::vector<Optimizer> good{Sgd{},     Adam{}, AdamW{}, Adagrad{},
                                    RmsProp{}, Lion{}, Lamb{},  Lbfgs{}};
  for (const Optimizer& optimizer : good) EXPECT_NO_THROW(check_optimizer(optimizer));
}

}  // namespace onnxgrad::train::optimizers_test

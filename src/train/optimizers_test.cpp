#include "train/optimizers.h"

#include <gmock/gmock.h>

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
  draft.model->state =
      write_optimizer(draft.g, optimizer, std::span(&weight, 1), std::span(&gradient, 1), rate);
  for (const ir::StateBinding& binding : draft.model->state)
    graph.outputs.push_back(binding.output);
  runtime::Executor executor(draft.model, builtin_engine());
  const double learning_rate = row["parameters"]["lr"];
  for (const json& g : table["gradients"]) {
    executor.run(std::vector{tensor_of(g, dtype, dims), Tensor::scalar_of(dtype, learning_rate)});
  }
  EXPECT_EQ(executor.state().front().name, "w");
  return executor.state_view(0).to_doubles();
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

TEST(OptimizerParameters, OutOfRangeAreRefused) {
  EXPECT_THROW(check_optimizer(Sgd{.learning_rate = -1}), ModelError);
  EXPECT_THROW(check_optimizer(Sgd{.learning_rate = std::nan("")}), ModelError);
  EXPECT_THROW(check_optimizer(Sgd{.nesterov = true}), ModelError);
  EXPECT_THROW(check_optimizer(Sgd{.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
               ModelError);
  EXPECT_THROW(check_optimizer(Adam{.beta1 = 1}), ModelError);
  EXPECT_THROW(check_optimizer(Adam{.beta2 = -0.1}), ModelError);
  EXPECT_THROW(check_optimizer(Adam{.epsilon = -1}), ModelError);
  EXPECT_NO_THROW(check_optimizer(Sgd{}));
  EXPECT_NO_THROW(check_optimizer(Adam{}));
}

}  // namespace onnxgrad::train::optimizers_test

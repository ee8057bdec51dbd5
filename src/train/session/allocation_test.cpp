#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "train/fit/fit_loop.h"
#include "train/testing/draft.h"
#include "train/testing/malloc_counter.h"

// After the first epoch, which makes the plans, training takes no memory from the C library, nor do
// the libraries that it calls.

namespace onnxgrad::train::allocation_test {

using ir::Dim;
using ir::Value;
using train_test::Draft;

constexpr std::int64_t kClasses = 10;

Tensor random_tensor(Dims dims, double scale, std::uint32_t index) {
  base::PhiloxStream stream(3, base::RandomUse::kOperator, index);
  std::vector<float> values(static_cast<std::size_t>(dims.num_elements()));
  for (float& value : values) value = static_cast<float>(scale * stream.normal());
  return Tensor::from(values, std::move(dims));
}

/// Weights in a row; each has numbers of its own.
class Layers {
 public:
  Value* dense(Value* x, std::int64_t inputs, std::int64_t outputs) {
    return draft.g.op("Gemm", {x, weight({outputs, inputs}, inputs), bias(outputs)},
                      {{.name = "transB", .value = std::int64_t{1}}});
  }
  Value* conv(Value* x, std::int64_t inputs, std::int64_t outputs, std::int64_t kernel) {
    return draft.g.op(
        "Conv",
        {x, weight({outputs, inputs, kernel, kernel}, inputs * kernel * kernel), bias(outputs)},
        {{.name = "pads", .value = std::vector<std::int64_t>(4, kernel / 2)}});
  }
  Value* relu(Value* x) { return draft.g.op("Relu", {x}); }
  Value* max_pool(Value* x) {
    const std::vector<std::int64_t> two{2, 2};
    return draft.g.op("MaxPool", {x},
                      {{.name = "kernel_shape", .value = two}, {.name = "strides", .value = two}});
  }

  /// The last hidden states of a cell with `gates` rows of weights per unit, forwards and backwards
  /// over sequences of given lengths; x: [T, N, inputs], result: [N, 2 * units].
  Value* recurrent(const std::string& op_type, const std::vector<Value*>& x_and_lengths,
                   std::int64_t inputs, std::int64_t units, std::int64_t gates) {
    Value* w = weight({2, gates * units, inputs}, inputs);
    Value* r = weight({2, gates * units, units}, units);
    const std::vector<Value*> outputs =
        draft.g.ops(op_type, {x_and_lengths[0], w, r, nullptr, x_and_lengths[1]}, 2,
                    {{.name = "hidden_size", .value = units},
                     {.name = "direction", .value = std::string("bidirectional")}});
    return draft.g.op("Flatten", {draft.g.transpose(outputs[1], {1, 0, 2})});
  }

  Draft draft;

 private:
  Value* weight(Dims dims, std::int64_t fan_in) {
    const double scale = 1 / std::sqrt(static_cast<double>(fan_in));
    const std::uint32_t index = ++count_;
    return draft.weight("W" + std::to_string(index), random_tensor(std::move(dims), scale, index));
  }
  Value* bias(std::int64_t size) {
    return draft.weight(
        "b" + std::to_string(count_),
        Tensor::from(std::vector<float>(static_cast<std::size_t>(size)), Dims{size}));
  }

  std::uint32_t count_ = 0;
};

/// Three layers, large enough for products that are computed in blocks.
Draft perceptron() {
  Layers layers;
  Value* x = layers.draft.input("x", DataType::kFloat32, {Dim::named("N"), 200});
  Value* h = layers.relu(layers.dense(x, 200, 256));
  h = layers.relu(layers.dense(h, 256, 256));
  layers.draft.output(layers.dense(h, 256, kClasses), "scores");
  return std::move(layers.draft);
}

/// Two convolutions with pooling, one dense layer.
Draft convolutions() {
  Layers layers;
  Value* x = layers.draft.input("x", DataType::kFloat32, {Dim::named("N"), 1, 12, 12});
  Value* h = layers.max_pool(layers.relu(layers.conv(x, 1, 8, 5)));
  h = layers.max_pool(layers.relu(layers.conv(h, 8, 16, 3)));
  h = layers.draft.g.op("Flatten", {h});
  layers.draft.output(layers.dense(h, 16 * 3 * 3, kClasses), "scores");
  return std::move(layers.draft);
}

constexpr std::int64_t kTimeSteps = 6;

/// A recurrent layer in both directions over sequences of different lengths, one dense layer.
Draft recurrent(const std::string& op_type, std::int64_t gates) {
  constexpr std::int64_t kUnits = 48;
  Layers layers;
  Value* x = layers.draft.input("x", DataType::kFloat32, {Dim::named("N"), kTimeSteps, 8});
  Value* lengths = layers.draft.input("lengths", DataType::kInt32, {Dim::named("N")});
  Value* steps = layers.draft.g.transpose(x, {1, 0, 2});
  Value* h = layers.recurrent(op_type, {steps, lengths}, 8, kUnits, gates);
  layers.draft.output(layers.dense(h, 2 * kUnits, kClasses), "scores");
  return std::move(layers.draft);
}

Dataset random_rows(Dims dims) {
  const std::int64_t rows = dims[0];
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i * i % kClasses);
  return {.inputs = {{.name = "", .tensor = random_tensor(std::move(dims), 1, 0)}},
          .target = Tensor::from(labels, Dims{rows})};
}

/// Allocations of epochs 2 to 6; shuffled, validated, and with a smaller last batch.
std::int64_t count_allocations(const Draft& draft, const Dataset& data, const Optimizer& optimizer,
                               int threads) {
  Session session({.file = {}, .working = draft.model}, {.function = SoftmaxCrossEntropy{}},
                  optimizer, {.engine = {.threads = threads}});
  std::vector<std::int64_t> counts;
  counts.reserve(10);
  FitOptions options{.epochs = 6, .batch_size = 64, .validation_fraction = 0.2};
  options.on_epoch_end = [&](const EpochLog&) {
    counts.push_back(train_test::allocation_count());
    return false;
  };
  train::StopFlag stop;
  History history;
  FitLoop(session, data, options, stop, history).run();
  EXPECT_LT(history.epochs.back().train_loss, history.epochs.front().train_loss);
  return counts.at(5) - counts.at(0);
}

class Allocations : public testing::Test {
 protected:
  void SetUp() override {
    if (!train_test::counts_allocations())
      GTEST_SKIP() << "a sanitizer, or the simulated device's queue, allocates itself";
  }
};

TEST_F(Allocations, NoneForAPerceptron) {
  const Dataset data = random_rows({200, 200});
  for (const int threads : {1, 2}) {
    EXPECT_EQ(count_allocations(perceptron(), data, Adam{}, threads), 0) << threads;
  }
}

TEST_F(Allocations, NoneForConvolutions) {
  const Dataset data = random_rows({200, 1, 12, 12});
  const Optimizer momentum = Sgd{.learning_rate = 0.01, .momentum = 0.9};
  for (const int threads : {1, 2}) {
    EXPECT_EQ(count_allocations(convolutions(), data, Adam{}, threads), 0) << threads;
    EXPECT_EQ(count_allocations(convolutions(), data, momentum, threads), 0) << threads;
  }
}

TEST_F(Allocations, NoneForRecurrentLayers) {
  Dataset data = random_rows({200, kTimeSteps, 8});
  data.inputs[0].name = "x";
  std::vector<std::int32_t> lengths;
  for (std::int32_t i = 0; i < 200; ++i) lengths.push_back(i % (kTimeSteps + 1));
  data.inputs.push_back({.name = "lengths", .tensor = Tensor::from(lengths, Dims{200})});
  for (const auto& [op_type, gates] :
       {std::pair("LSTM", 4), std::pair("GRU", 3), std::pair("RNN", 1)}) {
    for (const int threads : {1, 2}) {
      EXPECT_EQ(count_allocations(recurrent(op_type, gates), data, Adam{}, threads), 0)
          << op_type << ", " << threads << " threads";
    }
  }
}

}  // namespace onnxgrad::train::allocation_test

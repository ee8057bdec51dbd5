#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"

// Errors in how plans are submitted, each of which a few steps of a training on the simulated
// device find. Errors in kernels and in the use of streams: device/testing/mutations_test.cpp.

namespace onnxgrad::runtime::mutations_test {
namespace {

using ir::Value;

/// Work that a mutation may change.
struct MutableWork {
  std::vector<device::KernelCall> calls;
  std::vector<device::CallPlace> places;
  std::vector<std::vector<device::Operand>> operands;
  std::vector<std::span<const device::Operand>> views;
};
using Mutate = std::function<void(MutableWork&)>;

/// The simulated device's stream, of work that has been changed.
class MutatedStream : public device::Stream {
 public:
  MutatedStream(std::unique_ptr<device::Stream> stream, const Mutate& mutate)
      : stream_(std::move(stream)), mutate_(mutate) {}

  void run(const device::Work& work, device::Address cells) override {
    auto own = std::make_unique<MutableWork>();
    own->calls.assign(work.calls.begin(), work.calls.end());
    own->places.assign(work.places.begin(), work.places.end());
    for (const auto& operands : work.operands)
      own->operands.emplace_back(operands.begin(), operands.end());
    mutate_(*own);
    for (const auto& operands : own->operands) own->views.emplace_back(operands);
    stream_->run({.calls = own->calls, .places = own->places, .operands = own->views}, cells);
    submitted_.push_back(std::move(own));
  }
  std::shared_ptr<device::Event> mark(bool is_timed) override { return stream_->mark(is_timed); }
  void wait_for(const device::Event& event) override { stream_->wait_for(event); }
  void copy_in(device::Address to, const std::byte* from, std::int64_t bytes) override {
    stream_->copy_in(to, from, bytes);
  }
  void copy_out(std::byte* to, device::Address from, std::int64_t bytes) override {
    stream_->copy_out(to, from, bytes);
  }
  void copy(device::Address to, device::Address from, std::int64_t bytes) override {
    stream_->copy(to, from, bytes);
  }
  void synchronize() override { stream_->synchronize(); }

 private:
  std::vector<std::unique_ptr<MutableWork>> submitted_;  // read until the work is done
  std::unique_ptr<device::Stream> stream_;
  const Mutate& mutate_;
};

class MutatedDevice : public device::Device {
 public:
  std::string name() const override { return device_.name(); }
  bool is_host() const override { return false; }
  std::int64_t alignment() const override { return device_.alignment(); }
  int num_compute_streams() const override { return device_.num_compute_streams(); }
  bool uses_host_threads() const override { return device_.uses_host_threads(); }
  std::unique_ptr<device::Stream> make_stream() override {
    return std::make_unique<MutatedStream>(device_.make_stream(), mutate);
  }

  Mutate mutate = [](MutableWork&) {};

 private:
  device::Buffer make_buffer(std::int64_t bytes) override { return device_.allocate(bytes); }

  device::Device& device_ = device::testing::simulated_device();
};

class Mutation : public testing::Test {
 protected:
  Mutation() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // y = exp(x a_0) b_0 + exp(x a_1) b_1 + exp(x a_2) b_2, by gradient descent on the mean of y y.
  static std::shared_ptr<ir::Model> make_model() {
    auto model = std::make_shared<ir::Model>();
    model->set_opset("", ir::kInternalOpset);
    const auto inferer = onnx_io::make_type_inferer(*model);
    ir::GraphBuilder g{*model, *model->graph, *inferer, builtin_engine().ops};
    Value* x =
        model->graph->add_input("x", ir::Type::tensor(DataType::kFloat32, Dims{kSize, kSize}));
    std::vector<Value*> weights;
    Value* y = nullptr;
    for (int i = 0; i < 6; ++i) {
      std::vector<float> numbers(kSize * kSize);
      for (std::size_t k = 0; k < numbers.size(); ++k) {
        numbers[k] = 0.1F * std::sin(static_cast<float>(k * (2 * static_cast<std::size_t>(i) + 3)));
      }
      const Tensor initial = Tensor::from(numbers, Dims{kSize, kSize});
      Value* w = model->graph->add_input("w" + std::to_string(i),
                                         ir::Type::tensor(initial.dtype(), initial.dims()));
      w->initializer = initial;
      model->graph->initializers.push_back(w);
      weights.push_back(w);
    }
    for (std::size_t i = 0; i < weights.size(); i += 2) {
      Value* part = g.matmul(g.exp(g.matmul(x, weights[i])), weights[i + 1]);
      y = y == nullptr ? part : g.add(y, part);
    }
    Value* loss = g.reduce_mean(g.mul(y, y), {}, false);
    const std::vector<Value*> outputs{loss};
    const std::vector<Value*> seeds{g.ones_like(loss)};
    const auto gradients = autodiff::add_vjp(g, builtin_engine().ops, outputs, seeds, weights);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      model->state.push_back({.input = weights[i], .output = g.sub(weights[i], gradients[i])});
    }
    model->graph->outputs = {loss};
    return model;
  }

  static Executor executor_on(device::Device& device) {
    const Engine& known = builtin_engine();
    const Engine engine{known.ops, known.kernels, known.make_inferer, device};
    return Executor(make_model(), engine, {});
  }

  static std::vector<Tensor> inputs() {
    std::vector<float> numbers(kSize * kSize);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::cos(static_cast<float>(i));
    return {Tensor::from(numbers, Dims{kSize, kSize})};
  }

  // The losses and weights of a few steps.
  static std::vector<double> train(Executor& executor) {
    std::vector<double> results;
    for (int i = 0; i < 3; ++i) results.push_back(executor.run(inputs())[0].to_doubles()[0]);
    for (std::size_t i = 0; i < executor.state().size(); ++i) {
      const std::vector<double> weights = executor.read_state(i).to_doubles();
      results.insert(results.end(), weights.begin(), weights.end());
    }
    return results;
  }
  std::vector<double> train_on(device::Device& device) const {
    Executor executor = executor_on(device);
    return train(executor);
  }

  // Whether a mutation changes the numbers for one of a few seeds.
  bool is_found(Mutate mutate) {
    device_.mutate = std::move(mutate);
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      device::testing::set_seed(device::testing::simulated_device(), seed);
      if (train_on(device_) != expected_) return true;
    }
    return false;
  }

  static constexpr std::int64_t kSize = 16;
  MutatedDevice device_;
  std::vector<double> expected_ = train_on(device::cpu());
};

TEST_F(Mutation, NoneIsFound) {
  EXPECT_FALSE(is_found([](MutableWork&) {}));
}

// Each wait of the plan in turn.
TEST_F(Mutation, MissingWait) {
  std::size_t num_waits = 0;
  std::size_t num_found = 0;
  for (std::size_t dropped = 0; dropped == 0 || dropped < num_waits; ++dropped) {
    const bool found = is_found([&](MutableWork& work) {
      std::size_t number = 0;
      for (device::CallPlace& place : work.places) {
        const std::size_t first = number;
        number += place.waits.size();
        if (dropped < first || dropped >= number) continue;
        place.waits.erase(place.waits.begin() + static_cast<std::ptrdiff_t>(dropped - first));
      }
      num_waits = std::max(num_waits, number);
    });
    if (found) ++num_found;
  }
  EXPECT_GT(num_waits, 4U);
  EXPECT_EQ(num_found, num_waits);
}

TEST_F(Mutation, StepsOnEachOthersStreams) {
  EXPECT_TRUE(is_found([](MutableWork& work) {
    for (device::CallPlace& place : work.places) place.stream = 1 - place.stream;
    if (work.places.size() > 8) std::swap(work.places[4].stream, work.places[5].stream);
    if (work.places.size() > 8) work.places[7].stream = 1 - work.places[7].stream;
  }));
}

TEST_F(Mutation, ShortenedOperand) {
  device_.mutate = [](MutableWork& work) {
    for (auto& operands : work.operands) {
      if (operands.size() > 1) operands[operands.size() - 2].bytes /= 2;
    }
  };
  EXPECT_DEATH(train_on(device_), "writes outside of argument");
}

TEST_F(Mutation, HostReadInAStep) {
  Executor executor = executor_on(device::testing::simulated_device());
  const std::vector<Tensor> values = inputs();
  Execution& step = executor.prepare({values[0].dims()});
  step.bind(0, values[0].raw());
  const device::testing::HostReads before = device::testing::host_reads();
  for (int i = 0; i < 5; ++i) step.run();
  EXPECT_EQ(device::testing::host_reads(), before);
  step.read_scalar(0);
  EXPECT_NE(device::testing::host_reads(), before);
}

}  // namespace
}  // namespace onnxgrad::runtime::mutations_test

// Operations of an executor on all of its states at once, which threads share as one block of
// memory.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime::state_test {
namespace {

// States of several types: `large` alone is enough memory for three threads, and the others lie
// before and after it. Each step adds one to `count`.
constexpr std::int64_t kLarge = std::int64_t{7} << 20;

Executor executor_with_states(int threads) {
  ir::Model model;
  model.set_opset("", ir::kInternalOpset);
  const auto inferer = onnx_io::make_type_inferer(model);
  ir::GraphBuilder g{model, *model.graph, *inferer, builtin_engine().ops};
  const auto add = [&](const char* name, const Tensor& initial) {
    ir::Value* value =
        model.graph->add_input(name, ir::Type::tensor(initial.dtype(), initial.dims()));
    value->initializer = initial;
    model.graph->initializers.push_back(value);
    return value;
  };
  const auto numbers = [](std::int64_t count, DataType dtype) {
    return Tensor::from(std::vector<double>(static_cast<std::size_t>(count), 0.5), Dims{count})
        .cast(dtype);
  };
  ir::Value* count = add("count", Tensor::scalar(std::int64_t{0}));
  for (ir::Value* kept :
       {add("half", numbers(3, DataType::kFloat16)), add("empty", numbers(0, DataType::kFloat32)),
        add("large", numbers(kLarge, DataType::kFloat32)),
        add("brain", numbers(33, DataType::kBfloat16)),
        add("double", numbers(5, DataType::kFloat64))}) {
    model.state.push_back({.input = kept, .output = g.identity(kept)});
  }
  ir::Value* next = g.add(count, g.constant(Tensor::scalar(std::int64_t{1})));
  model.state.push_back({.input = count, .output = next});
  model.graph->outputs = {next};
  return Executor(std::make_shared<ir::Model>(ir::clone(model)), builtin_engine(),
                  {.threads = threads});
}

class States : public testing::TestWithParam<int> {
 protected:
  std::size_t find(const char* name) const {
    for (std::size_t i = 0; i < executor_.state().size(); ++i) {
      if (executor_.state()[i].name == name) return i;
    }
    ADD_FAILURE() << name;
    return 0;
  }
  // Sets one element.
  void set(const char* name, std::int64_t at, double number) {
    Tensor changed = executor_.read_state(find(name)).clone();
    const Tensor element = Tensor::from(std::vector<double>{number}, Dims{1}).cast(changed.dtype());
    std::memcpy(changed.mutable_raw() + at * element.size_bytes(), element.raw(),
                static_cast<std::size_t>(element.size_bytes()));
    executor_.set_state(find(name), changed);
  }

  Executor executor_ = executor_with_states(GetParam());
};

TEST_P(States, AreFiniteUnlessOneElementIsNot) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(executor_.is_state_finite());
  struct Case {
    const char* name;
    std::int64_t at;
    double number;
  };
  // Parts of threads begin at multiples of 2 MiB: 1 << 19 elements of `large`, a little before.
  for (const auto& [name, at, number] :
       {Case{"half", 2, kInf}, Case{"large", 0, kNaN}, Case{"large", (1 << 21) - 48, -kInf},
        Case{"large", 5 << 19, kNaN}, Case{"large", kLarge - 1, kInf}, Case{"brain", 32, kNaN},
        Case{"double", 4, -kInf}}) {
    set(name, at, number);
    EXPECT_FALSE(executor_.is_state_finite()) << name << "[" << at << "]";
    set(name, at, 0.5);
    EXPECT_TRUE(executor_.is_state_finite()) << name;
  }
}

TEST_P(States, AreCopiedAndSetBack) {
  set("large", kLarge / 2, 3);
  set("double", 0, 4);
  std::vector<Tensor> copies;
  for (std::size_t i = 0; i < executor_.state().size(); ++i) {
    const ir::Type& type = executor_.state()[i].type;
    copies.push_back(Tensor::zeros(type.dtype, type.fixed_dims()));
  }
  executor_.copy_state(copies);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    EXPECT_TRUE(copies[i].equals(executor_.read_state(i))) << executor_.state()[i].name;
  }
  EXPECT_EQ(copies[find("large")].data<float>()[kLarge / 2], 3);
  EXPECT_EQ(copies[find("large")].data<float>()[kLarge / 2 - 1], 0.5F);
  EXPECT_EQ(copies[find("double")].data<double>()[0], 4);
}

TEST_P(States, ChangesAreCounted) {
  const std::uint64_t first = executor_.state_changes();
  EXPECT_TRUE(executor_.is_state_finite());
  executor_.prepare({});
  EXPECT_EQ(executor_.state_changes(), first);  // reading and preparing change nothing
  executor_.run({});
  EXPECT_EQ(executor_.read_state(find("count")).data<std::int64_t>()[0], 1);
  const std::uint64_t second = executor_.state_changes();
  EXPECT_GT(second, first);
  set("half", 0, 2);
  EXPECT_GT(executor_.state_changes(), second);
}

INSTANTIATE_TEST_SUITE_P(Threads, States, testing::Values(1, 2, 3));

}  // namespace
}  // namespace onnxgrad::runtime::state_test

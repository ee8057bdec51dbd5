#include "runtime/joint_steps.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "opdef/activation.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"
#include "runtime/testing/model_draft.h"

// Steps that run together, block by block, with the bits that they have apart. Timed steps run
// apart.

namespace onnxgrad::runtime::joint_steps_test {
namespace {

using ir::Value;

constexpr std::int64_t kRows = 320;

/// A model of matrices [kRows, n], whose numbers are between -1 and 1.
class Draft : public ModelDraft {
 public:
  explicit Draft(unsigned seed) : random_(seed) {}

  Tensor numbers(const Dims& dims) {
    std::vector<float> values(static_cast<std::size_t>(dims.num_elements()));
    for (float& value : values) value = static_cast<float>(random_() >> 8) * 0x1p-23F - 1;
    return Tensor::from(values, dims);
  }
  Value* constant(const Dims& dims) { return g.constant(numbers(dims)); }
  Value* matrix(std::int64_t columns) {
    feeds_.push_back(numbers({kRows, columns}));
    return input(("x" + std::to_string(feeds_.size())).c_str(), feeds_.back().dims(),
                 DataType::kFloat32);
  }
  static std::int64_t columns(const Value* x) { return x->type.fixed_dims()[1]; }

  /// x W + bias, or + `residual` if it has as many columns.
  Value* product(Value* x, std::int64_t columns, Value* residual = nullptr) {
    const bool adds = residual != nullptr && Draft::columns(residual) == columns;
    return g.op("Gemm",
                {x, constant({Draft::columns(x), columns}), adds ? residual : constant({columns})});
  }
  Value* normalisation(Value* x) {
    const Dims dims{columns(x)};
    return g.op("LayerNormalization", {x, constant(dims), constant(dims)},
                {{.name = "axis", .value = std::int64_t{-1}}});
  }
  /// GELU and its slope.
  std::vector<Value*> activation(Value* x) {
    ir::Node* node = model.graph->add_node(
        opdef::kActivation, {x}, 2, {{.name = "function", .value = std::int64_t{0}}},
        ir::kFusedDomain, "gelu" + std::to_string(model.graph->nodes.size()));
    for (Value* output : node->outputs) output->type = x->type;
    return node->outputs;
  }

  std::shared_ptr<const ir::Model> take(std::vector<Value*> outputs) {
    model.graph->outputs = std::move(outputs);
    return std::make_shared<const ir::Model>(std::move(model));
  }
  const std::vector<Tensor>& feeds() const { return feeds_; }
  unsigned below(std::size_t limit) { return static_cast<unsigned>(random_() % limit); }

 private:
  std::mt19937 random_;
  std::vector<Tensor> feeds_;
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Compares joint steps with steps apart; returns how many groups there were.
std::size_t compare(const std::shared_ptr<const ir::Model>& model, const std::vector<Tensor>& feeds,
                    int threads) {
  Executor executor(model, builtin_engine(), {.threads = threads});
  const std::vector<Tensor> joint = executor.run(feeds);
  executor.set_profiling(true);
  const std::vector<Tensor> apart = executor.run(feeds);
  std::vector<Dims> dims;
  for (const Tensor& feed : feeds) dims.push_back(feed.dims());
  const std::string text = executor.prepare(dims).to_text();
  std::vector<std::size_t> blocks;
  for (std::size_t i = 0; i < joint.size(); ++i) blocks.push_back(i);
  Executor keeping(model, builtin_engine(), {.threads = threads, .output_blocks = blocks});
  const std::vector<Tensor> kept = keeping.run_owning(feeds);
  for (std::size_t i = 0; i < joint.size(); ++i) {
    EXPECT_TRUE(joint[i].equals(apart[i])) << "output " << i << " of\n" << text;
    EXPECT_TRUE(kept[i].equals(apart[i])) << "output " << i << " of\n" << text;
  }
  return count(text, "(with ");
}

bool is_on_host() { return builtin_engine().device.is_host(); }

TEST(JointSteps, AProductAndWhatReadsItsBlocks) {
  if (!is_on_host()) GTEST_SKIP() << "joint steps are those of the CPU";
  for (const int threads : {2, 5}) {
    Draft draft(1);
    Value* x = draft.matrix(256);
    const auto gelu = draft.activation(draft.product(x, 384));
    Value* y = draft.normalisation(draft.product(gelu[0], 256, x));
    std::vector<Value*> outputs{gelu[1], y};  // beside large values, scratch takes little memory
    for (int i = 0; i < 4; ++i) outputs.push_back(draft.product(gelu[0], 2048));
    const auto model = draft.take(std::move(outputs));
    // Processors differ in whether a thread completes whole rows, which LayerNormalization needs.
    EXPECT_GE(compare(model, draft.feeds(), threads), 1U) << threads;
  }
}

// Steps that need other blocks, or another result of the group, wait.
TEST(JointSteps, OthersAreApart) {
  if (!is_on_host()) GTEST_SKIP() << "joint steps are those of the CPU";
  const auto groups_of = [](auto make) {
    Draft draft(2);
    Value* product = draft.product(draft.matrix(256), 768);
    std::vector<Value*> outputs = make(draft, product);
    const auto model = draft.take(std::move(outputs));
    return compare(model, draft.feeds(), 2);
  };
  EXPECT_EQ(groups_of([](Draft& draft, Value* x) {
              Value* turned = draft.g.op("Transpose", {x});
              return draft.activation(turned);
            }),
            0U);
  EXPECT_EQ(groups_of([](Draft& draft, Value* x) {  // the scale is a result
              Value* row = draft.g.op("ReduceSum", {x, draft.g.ints({0})},
                                      {{.name = "keepdims", .value = std::int64_t{0}}});
              return std::vector{draft.g.op("LayerNormalization", {x, row},
                                            {{.name = "axis", .value = std::int64_t{-1}}})};
            }),
            0U);
}

/// Trains a state [256, 256] for some steps, joint or apart; returns it and the plan.
std::pair<Tensor, std::string> trained(bool reads_all, bool is_timed) {
  Draft draft(3);
  const Tensor initial = draft.numbers({256, 256});
  Value* state = draft.state("state", initial);
  Value* x = draft.constant({256, 256});
  const auto operands = reads_all ? std::vector{x, state} : std::vector{x, x, state};
  Value* next = draft.activation(draft.g.op("Gemm", operands))[0];
  draft.model.state.push_back({.input = state, .output = next});
  std::vector<Value*> outputs{next};  // beside large values, one more takes little memory
  for (int i = 0; i < 4; ++i) outputs.push_back(draft.product(x, 2048));
  Executor executor(draft.take(std::move(outputs)), builtin_engine(), {.threads = 2});
  if (is_timed) executor.set_profiling(true);
  for (int step = 0; step < 3; ++step) executor.run({});
  return {executor.read_state(0).clone(), executor.prepare({}).to_text()};
}

// A state is overwritten in place if the product reads it block by block.
TEST(JointSteps, WriteStates) {
  if (!is_on_host()) GTEST_SKIP() << "joint steps are those of the CPU";
  for (const bool reads_all : {false, true}) {
    const auto [joint, text] = trained(reads_all, false);
    EXPECT_EQ(count(text, "(with "), 1U) << text;
    EXPECT_EQ(count(text, "commit "), reads_all ? 1U : 0U) << text;
    EXPECT_TRUE(joint.equals(trained(reads_all, true).first));
  }
}

// A chain whose values all die in it takes no more memory than its steps apart.
TEST(JointSteps, TakeLittleMemory) {
  if (!is_on_host()) GTEST_SKIP() << "joint steps are those of the CPU";
  Draft draft(4);
  Value* x = draft.product(draft.matrix(64), 384);
  for (int i = 0; i < 3; ++i) x = draft.normalisation(draft.activation(x)[0]);
  const auto model = draft.take({x});
  EXPECT_EQ(compare(model, draft.feeds(), 2), 1U);
  Executor executor(model, builtin_engine(), {.threads = 2});
  executor.run(draft.feeds());
  EXPECT_LT(executor.memory().arena, 4 * kRows * 384 * 4);  // seven values, and scratch
}

// Memory of operands that a group still reads is not given away: random graphs, whose values die at
// random places.
TEST(JointSteps, HaveTheBitsOfStepsApart) {
  if (!is_on_host()) GTEST_SKIP() << "joint steps are those of the CPU";
  std::size_t groups = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Draft draft(seed);
    std::vector<Value*> values{draft.matrix(64), draft.matrix(384), draft.matrix(768)};
    const auto any = [&] {  // mostly a new one
      const std::size_t back = draft.below(3) == 0 ? draft.below(values.size()) : 0;
      return values[values.size() - 1 - back];
    };
    for (int step = 0; step < 14; ++step) {
      constexpr std::int64_t kColumns[] = {64, 100, 384, 768};
      switch (draft.below(6)) {
        case 0:
        case 1:
          values.push_back(draft.product(any(), kColumns[draft.below(4)], any()));
          break;
        case 2:
          values.push_back(draft.normalisation(any()));
          break;
        case 3:
          values.push_back(draft.activation(any())[draft.below(2)]);
          break;
        case 4:
          values.push_back(draft.g.op("Tanh", {any()}));
          break;
        default: {
          Value* x = any();
          values.push_back(draft.g.op("Mul", {x, draft.g.op("Sigmoid", {x})}));
        }
      }
    }
    std::vector<Value*> outputs{values.back(), values[values.size() - 4]};
    const auto model = draft.take(std::move(outputs));
    groups += compare(model, draft.feeds(), 1 + static_cast<int>(seed % 4));
  }
  EXPECT_GT(groups, 15U);
}

}  // namespace
}  // namespace onnxgrad::runtime::joint_steps_test

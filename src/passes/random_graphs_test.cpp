// Every pass on random graphs whose outputs are any of their values: the graph stays well formed,
// its outputs keep their types, and a second run changes nothing. Values are compared with another
// runtime in tests/python/test_random_graphs.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "passes/passes.h"
#include "passes/testing/context.h"

namespace onnxgrad::passes {
namespace {

using ir::Value;

// Shapes that broadcast with each other: [4, 3], its rows, its columns, their sums.
class RandomGraph {
 public:
  explicit RandomGraph(std::uint32_t seed) : has_short_programs_(seed % 2 == 1), random_(seed) {
    for (const Dims& dims : {Dims{4, 3}, Dims{4, 3}, Dims{3}, Dims{4, 1}, Dims{}, Dims{3, 3}}) {
      values_.push_back(graph().add_input("x", ir::Type::tensor(DataType::kFloat32, dims)));
    }
    values_.push_back(graph().add_initializer("c", Tensor::scalar(0.5F)));
    for (std::size_t i = 4 + below(30); i > 0; --i) add_node();
    for (Value* value : values_) {
      if (below(4) == 0) graph().outputs.push_back(value);
    }
    if (graph().outputs.empty()) graph().outputs.push_back(values_.back());
  }

  ir::Graph& graph() { return bench_.graph(); }
  PassContext context() {
    PassContext result = bench_.context();
    result.next_states = {graph().outputs.begin(), graph().outputs.end()};
    if (has_short_programs_) {
      result.prefers = [](const ir::Node& node) {
        return !opdef::is_fused(&node, opdef::kElementwise) ||
               opdef::Elementwise::read(node).program.instructions.size() < 4;
      };
    }
    return result;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }

  // A late one rather than an early one.
  Value* pick() { return values_[std::max(below(values_.size()), below(values_.size()))]; }

  static bool broadcasts(const Value* a, const Value* b) {
    try {
      return broadcast_dims(a->type.fixed_dims(), b->type.fixed_dims()).num_elements() <= 36;
    } catch (const Error&) {
      return false;
    }
  }

  void add_node() {
    Value* x = pick();
    Value* y = pick();
    const std::size_t rank = x->type.fixed_dims().rank();
    switch (below(12)) {
      case 0:
        add(g_.op("Relu", {x}));
        break;
      case 1:
        add(g_.sqrt(x));
        break;
      case 2:
        if (rank > 0) add(g_.reduce_sum(x, {0}, below(2) == 0));
        break;
      case 3:
        if (rank > 1) add(g_.reduce_mean(x, {1}, below(2) == 0));
        break;
      case 4:
        add(g_.reduce_max(x, {}, false));
        break;
      case 5:
        if (rank == 2) add(g_.transpose_last(x));
        break;
      case 6:
        if (rank == 2 && y->type.fixed_dims().rank() == 2 &&
            x->type.fixed_dims()[1] == y->type.fixed_dims()[0]) {
          add(g_.matmul(x, y));
        }
        break;
      case 7:
        add(g_.reshape(x, {-1}));
        break;
      case 8:
        if (broadcasts(x, y)) add(g_.where(g_.greater(x, y), x, y));
        break;
      default:
        if (broadcasts(x, y)) add(g_.op(kBinary[below(4)], {x, y}));
    }
  }

  static constexpr const char* kBinary[] = {"Add", "Sub", "Mul", "Div"};

  void add(Value* value) { values_.push_back(value); }

  testing_support::Workbench bench_;
  ir::GraphBuilder& g_ = bench_.builder();
  bool has_short_programs_;  // all that the device prefers
  std::mt19937 random_;
  std::vector<Value*> values_;
};

std::vector<std::string> output_types(const ir::Graph& graph) {
  std::vector<std::string> types;
  for (const Value* output : graph.outputs) types.push_back(output->type.to_string());
  return types;
}

class RandomGraphs : public testing::TestWithParam<bool> {};

TEST_P(RandomGraphs, StayWellFormedAfterEachPass) {
  for (std::uint32_t seed = 0; seed < 1500; ++seed) {
    RandomGraph random(seed);
    ir::Graph& graph = random.graph();
    ASSERT_EQ(ir::find_fault(graph), "") << "seed " << seed;
    const std::vector<std::string> types = output_types(graph);
    const PassContext context = random.context();
    for (const Pass& pass : plan_passes(GetParam())) {
      const std::string before = ir::to_text(graph);
      pass.run(graph, context);
      ASSERT_EQ(ir::find_fault(graph), "") << "seed " << seed << ", " << pass.name << "\n"
                                           << before;
      ASSERT_EQ(output_types(graph), types) << "seed " << seed << ", " << pass.name;
      ASSERT_FALSE(pass.run(graph, context)) << "seed " << seed << ", " << pass.name << " twice";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, RandomGraphs, testing::Bool(),
                         [](const auto& info) { return info.param ? "fused" : "unfused"; });

}  // namespace
}  // namespace onnxgrad::passes

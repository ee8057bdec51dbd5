#include "train/training_mode.h"

#include <algorithm>

#include "ops/training_switch.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::StateBinding;
using ir::Value;

bool takes_part(const Node& node, const ops::TrainingSwitch& training,
                std::span<Value* const> trained, TrainingMode mode) {
  if (mode == TrainingMode::kOn || training.weights.empty()) return true;
  return std::ranges::any_of(training.weights, [&](std::size_t i) {
    return std::ranges::find(trained, node.input(i)) != trained.end();
  });
}

// A layer that is used twice goes on from what its first use left.
void add_statistic(const StateBinding& fresh, Node& node, std::vector<StateBinding>& statistics) {
  const auto known = std::ranges::find(statistics, fresh.input, &StateBinding::input);
  if (known == statistics.end()) {
    statistics.push_back(fresh);
    return;
  }
  std::ranges::replace(node.inputs, fresh.input, known->output);
  known->output = fresh.output;
}

}  // namespace

std::vector<StateBinding> switch_on_training(ir::GraphBuilder& g,
                                             const std::unordered_set<const Value*>& needed,
                                             std::span<Value* const> trained, TrainingMode mode) {
  std::vector<StateBinding> statistics;
  if (mode == TrainingMode::kOff) return statistics;
  for (Node* node : std::vector<Node*>(g.graph().nodes)) {
    const ops::TrainingSwitch* training = ops::find_training_switch(*node);
    const bool is_needed = std::ranges::any_of(
        node->outputs, [&](const Value* value) { return needed.contains(value); });
    if (training == nullptr || !is_needed || !takes_part(*node, *training, trained, mode)) continue;
    for (const StateBinding& fresh : training->switch_on(*node, g)) {
      add_statistic(fresh, *node, statistics);
    }
  }
  return statistics;
}

}  // namespace onnxgrad::train

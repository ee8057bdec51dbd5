#include "autodiff/activity.h"

#include <algorithm>

#include "opdef/gradient_type.h"

namespace onnxgrad::autodiff {

bool carries_gradient(const ir::Value* value) {
  return value != nullptr && opdef::can_have_gradient(value->type);
}

std::vector<ir::Value*> gradient_inputs(const ir::Node& node) {
  std::vector<ir::Value*> inputs = node.inputs;
  if (!node.subgraphs().empty()) {
    const std::vector<ir::Value*> captured = ir::captured_values(node);
    inputs.insert(inputs.end(), captured.begin(), captured.end());
  }
  return inputs;
}

bool Rules::can_flow_to(const ir::Node& node, std::size_t i) const {
  if (is_custom(node)) return custom->covers(node, i);
  const opdef::OpDef* def = registry.find(node);
  if (def == nullptr || i >= node.inputs.size()) return true;
  return !def->zero_gradient;
}

bool Rules::has_rule_for(const ir::Node& node, std::size_t i) const {
  if (is_custom(node)) return true;
  const opdef::OpDef* def = registry.find(node);
  if (def == nullptr || def->vjp == nullptr) return false;
  if (i >= node.inputs.size()) return true;  // captured by a subgraph
  const auto& listed = def->differentiable_inputs;
  if (listed.size() >= 2 && listed.back() == -1 &&
      static_cast<int>(i) >= listed[listed.size() - 2]) {
    return true;
  }
  return std::ranges::find(listed, static_cast<int>(i)) != listed.end();
}

Activity::Activity(const ir::Graph& graph, const Rules& rules, std::span<ir::Value* const> outputs,
                   std::span<ir::Value* const> wrt) {
  // For each node: where a gradient could come from and go to.
  std::vector<std::vector<ir::Value*>> flows(graph.nodes.size());
  std::unordered_set<const ir::Value*> from_wrt(wrt.begin(), wrt.end());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& node = *graph.nodes[n];
    const std::vector<ir::Value*> inputs = gradient_inputs(node);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (carries_gradient(inputs[i]) && rules.can_flow_to(node, i)) flows[n].push_back(inputs[i]);
    }
    const bool depends = std::ranges::any_of(
        flows[n], [&](const ir::Value* value) { return from_wrt.contains(value); });
    if (!depends) continue;
    for (const ir::Value* output : node.outputs) {
      if (carries_gradient(output)) from_wrt.insert(output);
    }
  }
  for (const ir::Value* output : outputs) {
    if (from_wrt.contains(output)) active_.insert(output);
  }
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    ir::Node& node = *graph.nodes[n];
    const bool is_needed = std::ranges::any_of(
        node.outputs, [&](const ir::Value* output) { return active_.contains(output); });
    if (!is_needed) continue;
    bool goes_on = false;
    for (const ir::Value* input : flows[n]) {
      if (!from_wrt.contains(input)) continue;
      active_.insert(input);
      goes_on = true;
    }
    if (goes_on) nodes_.push_back(&node);
  }
  std::ranges::reverse(nodes_);
}

}  // namespace onnxgrad::autodiff

#include "ir/uses.h"

namespace onnxgrad::ir {
namespace {

using UseMap = std::unordered_map<const Value*, std::vector<Use>>;

void collect_reads(const Graph& graph, UseMap& uses) {
  for (Node* node : graph.nodes) {
    for (std::size_t i = 0; i < node->inputs.size(); ++i) {
      if (node->inputs[i] == nullptr) continue;
      uses[node->inputs[i]].push_back({.node = node, .input = static_cast<int>(i)});
    }
    for (const Graph* subgraph : node->subgraphs()) collect_reads(*subgraph, uses);
  }
}

void collect_outputs(const Graph& graph, UseMap& uses) {
  for (const Value* output : graph.outputs) uses[output].push_back({});
  for (const Node* node : graph.nodes) {
    for (const Graph* subgraph : node->subgraphs()) collect_outputs(*subgraph, uses);
  }
}

}  // namespace

Uses::Uses(const Graph& graph) {
  uses_.reserve(2 * graph.nodes.size());
  collect_reads(graph, uses_);
  collect_outputs(graph, uses_);
}

std::span<const Use> Uses::of(const Value* value) const {
  const auto found = uses_.find(value);
  if (found == uses_.end()) return {};
  return found->second;
}

Node* Uses::first_reader(const Value* value) const {
  const auto uses = of(value);
  return uses.empty() ? nullptr : uses.front().node;
}

Node* Uses::only_reader(const Value* value) const {
  const auto uses = of(value);
  if (uses.size() != 1 || uses.front().node == nullptr) return nullptr;
  return uses.front().node->graph == value->graph ? uses.front().node : nullptr;
}

}  // namespace onnxgrad::ir

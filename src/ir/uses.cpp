#include "ir/uses.h"

#include <algorithm>
#include <iterator>
#include <utility>

// A snapshot is taken by every pass that looks for readers: one walk over the graph and three
// allocations, however many values there are.

namespace onnxgrad::ir {
namespace {

template <class Visit>
void visit_inputs(const Graph& graph, const Visit& visit) {
  for (Node* node : graph.nodes) {
    for (std::size_t i = 0; i < node->inputs.size(); ++i) {
      if (node->inputs[i] == nullptr) continue;
      visit(node->inputs[i], Use{.node = node, .input = static_cast<int>(i)});
    }
    for (const Graph* subgraph : node->subgraphs()) visit_inputs(*subgraph, visit);
  }
}

template <class Visit>
void visit_outputs(const Graph& graph, const Visit& visit) {
  for (const Value* output : graph.outputs) {
    if (output != nullptr) visit(output, Use{});
  }
  for (const Node* node : graph.nodes) {
    for (const Graph* subgraph : node->subgraphs()) visit_outputs(*subgraph, visit);
  }
}

template <class Visit>
void visit_all(const Graph& graph, const Visit& visit) {
  visit_inputs(graph, visit);
  visit_outputs(graph, visit);
}

// Approximate number of values of the graph itself, to reserve memory.
std::size_t count_values(const Graph& graph) {
  std::size_t count = graph.inputs.size() + graph.initializers.size();
  for (const Node* node : graph.nodes) count += node->outputs.size();
  return count;
}

}  // namespace

Uses::Uses(const Graph& graph) : rows_(count_values(graph)) {
  std::vector<std::pair<const Value*, Use>> all;
  all.reserve(3 * graph.nodes.size());
  visit_all(graph, [&](const Value* value, const Use& use) {
    ++rows_[value].count;
    all.emplace_back(value, use);
  });
  std::uint32_t begin = 0;
  rows_.for_each([&](const Value* /*value*/, Row& row) {
    row.begin = begin;
    begin += std::exchange(row.count, 0);
  });
  uses_.resize(all.size());
  for (const auto& [value, use] : all) {
    Row& row = *rows_.find(value);
    uses_[row.begin + row.count++] = use;
  }
}

std::span<const Use> Uses::of(const Value* value) const {
  const Row* row = rows_.find(value);
  if (row == nullptr) return {};
  return std::span(uses_).subspan(row->begin, row->count);
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

std::vector<Value*> values_read(const Node& node) {
  std::vector<Value*> values = node.inputs;
  std::erase(values, nullptr);
  if (node.subgraphs().empty()) return values;
  const std::vector<Value*> captured = captured_values(node);
  values.insert(values.end(), captured.begin(), captured.end());
  return values;
}

std::unordered_set<const Value*> ancestors_of(std::span<const Value* const> values) {
  std::unordered_set<const Value*> ancestors;
  std::vector<const Value*> open(values.begin(), values.end());
  while (!open.empty()) {
    const Value* next = open.back();
    open.pop_back();
    if (!ancestors.insert(next).second || next->producer == nullptr) continue;
    for (const Value* value : values_read(*next->producer)) open.push_back(value);
  }
  return ancestors;
}

std::vector<const Node*> nodes_for(const Graph& graph, std::span<const Value* const> values) {
  const std::unordered_set<const Value*> needed = ancestors_of(values);
  std::vector<const Node*> nodes;
  std::ranges::copy_if(graph.nodes, std::back_inserter(nodes), [&](const Node* node) {
    return std::ranges::any_of(node->outputs, [&](const Value* v) { return needed.contains(v); });
  });
  return nodes;
}

}  // namespace onnxgrad::ir

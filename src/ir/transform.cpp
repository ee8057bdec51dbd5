#include <algorithm>
#include <queue>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/kept_nodes.h"
#include "ir/pointer_map.h"
#include "onnxgrad/error.h"

// Queries and rewrites over whole graphs. Subgraph nesting is bounded on import, so recursion over
// subgraphs is; nothing recurses over the depth of a graph.

namespace onnxgrad::ir {
namespace {

template <class Visit>
void visit_reads(const Graph& graph, const Visit& visit) {
  for (Node* node : graph.nodes) {
    for (Value*& input : node->inputs) {
      if (input != nullptr) visit(input);
    }
    for (Graph* subgraph : node->subgraphs()) visit_reads(*subgraph, visit);
  }
}

void visit_outputs(Graph& graph, const std::function<void(Value*&)>& visit) {
  for (Value*& output : graph.outputs) visit(output);
  for (Node* node : graph.nodes) {
    for (Graph* subgraph : node->subgraphs()) visit_outputs(*subgraph, visit);
  }
}

// Visits inputs of `node` and values captured by its subgraphs, those that `graph` owns.
template <class Visit>
void visit_dependencies(const Node& node, const Graph& graph, const Visit& visit) {
  for (Value* input : node.inputs) {
    if (input != nullptr && input->graph == &graph) visit(input);
  }
  if (node.subgraphs().empty()) return;
  for (Value* value : captured_values(node)) {
    if (value->graph == &graph) visit(value);
  }
}

// Sorts the nodes of `graph`, or returns one that depends on itself and changes nothing.
const Node* sort_nodes(Graph& graph) {
  PointerMap<Node, std::size_t> position(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) position[graph.nodes[i]] = i;
  std::vector<std::vector<std::size_t>> readers(graph.nodes.size());
  std::vector<std::size_t> missing(graph.nodes.size(), 0);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    visit_dependencies(*graph.nodes[i], graph, [&](const Value* value) {
      const std::size_t* producer = position.find(value->producer);
      if (producer == nullptr) return;
      readers[*producer].push_back(i);
      ++missing[i];
    });
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] == 0) ready.push(i);
  }
  std::vector<Node*> sorted;
  sorted.reserve(graph.nodes.size());
  while (!ready.empty()) {
    const std::size_t i = ready.top();
    ready.pop();
    sorted.push_back(graph.nodes[i]);
    for (const std::size_t reader : readers[i]) {
      if (--missing[reader] == 0) ready.push(reader);
    }
  }
  if (sorted.size() != graph.nodes.size()) {
    const auto stuck = std::find_if(missing.begin(), missing.end(), [](auto n) { return n > 0; });
    return graph.nodes[static_cast<std::size_t>(stuck - missing.begin())];
  }
  graph.nodes = std::move(sorted);
  return nullptr;
}

}  // namespace

void replace_uses(Graph& graph, const std::unordered_map<const Value*, Value*>& map) {
  if (map.empty()) return;
  const auto replace = [&](Value*& value) {
    for (auto found = map.find(value); found != map.end(); found = map.find(value)) {
      value = found->second;
    }
  };
  visit_reads(graph, replace);
  visit_outputs(graph, replace);
}

void sort_topologically(Graph& graph) {
  const Node* stuck = sort_nodes(graph);
  if (stuck == nullptr) return;
  throw ModelError({.what = "the graph has a cycle through this node",
                    .where = {.graph = graph.name, .node = stuck->name, .op_type = stuck->op_type},
                    .hint = "Export the model again: an ONNX graph has no cycles."});
}

bool try_sort_topologically(Graph& graph) { return sort_nodes(graph) == nullptr; }

namespace {

std::vector<Value*> captured_by(const std::vector<Graph*>& graphs) {
  std::vector<Value*> captured;
  std::unordered_set<const Value*> seen;
  std::unordered_set<const Graph*> inside;
  std::vector<const Graph*> stack(graphs.begin(), graphs.end());
  while (!stack.empty()) {
    const Graph* graph = stack.back();
    stack.pop_back();
    inside.insert(graph);
    for (const Node* inner : graph->nodes) {
      for (const Graph* subgraph : inner->subgraphs()) stack.push_back(subgraph);
    }
  }
  const auto consider = [&](Value* value) {
    if (!inside.contains(value->graph) && seen.insert(value).second) captured.push_back(value);
  };
  for (Graph* graph : graphs) {
    visit_reads(*graph, [&](Value*& value) { consider(value); });
    visit_outputs(*graph, [&](Value*& value) {
      if (value != nullptr) consider(value);
    });
  }
  return captured;
}

}  // namespace

std::vector<Value*> captured_values(const Graph& graph) {
  return captured_by({const_cast<Graph*>(&graph)});  // NOLINT: only read
}

std::vector<Value*> captured_values(const Node& node) { return captured_by(node.subgraphs()); }

std::size_t eliminate_dead_nodes(Graph& graph, const NodeTest& keep) {
  PointerSet<Node> live(graph.nodes.size());
  PointerSet<Value> read(2 * graph.nodes.size());
  std::vector<const Node*> work;
  const auto need = [&](const Value* value) {
    if (!read.insert(value)) return;
    if (value->producer != nullptr && value->graph == &graph && live.insert(value->producer)) {
      work.push_back(value->producer);
    }
  };
  for (const Value* output : graph.outputs) need(output);
  for (const Node* node : graph.nodes) {
    const bool is_kept = runs_for_others(*node) || (keep && keep(*node));
    if (is_kept && live.insert(node)) work.push_back(node);
  }
  while (!work.empty()) {
    const Node* node = work.back();
    work.pop_back();
    visit_dependencies(*node, graph, need);
  }
  const std::size_t before = graph.nodes.size();
  std::erase_if(graph.nodes, [&](const Node* node) { return !live.contains(node); });
  std::erase_if(graph.initializers,
                [&](const Value* value) { return !value->is_input && !read.contains(value); });
  return before - graph.nodes.size();
}

void close_defaults(Graph& graph) {
  for (Value* value : graph.initializers) {
    if (!value->is_input) continue;
    value->is_input = false;
    value->type = Type::tensor(value->initializer.dtype(), value->initializer.dims());
  }
  std::erase_if(graph.inputs, [](const Value* value) { return !value->is_input; });
}

}  // namespace onnxgrad::ir

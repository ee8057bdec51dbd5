#include "ir/naming.h"

#include <algorithm>
#include <string>

namespace onnxgrad::ir {
namespace {

// A value of that name in a subgraph.
Value* find_below(const Graph& graph, std::string_view name) {
  for (const Node* node : graph.nodes) {
    for (const Graph* subgraph : node->subgraphs()) {
      Value* found = subgraph->find(name);
      if (found == nullptr) found = find_below(*subgraph, name);
      if (found != nullptr) return found;
    }
  }
  return nullptr;
}

bool keeps_its_name(const Graph& graph, const Value& value) {
  return value.is_input || value.is_initializer() ||
         std::ranges::find(graph.outputs, &value) != graph.outputs.end();
}

// "loss_1" from "loss".
bool is_numbered(std::string_view name, std::string_view wanted) {
  if (!name.starts_with(wanted) || name.size() < wanted.size() + 2) return false;
  const std::string_view rest = name.substr(wanted.size());
  return rest[0] == '_' && rest.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

}  // namespace

void give_name(Graph& graph, Value* value, std::string_view wanted) {
  if (value->name == wanted || wanted.empty()) return;
  Value* holder = graph.find(wanted);
  if (holder != nullptr && keeps_its_name(graph, *holder)) {
    if (!is_numbered(value->name, wanted)) graph.rename(value, graph.names().unique(wanted));
    return;
  }
  if (holder != nullptr) graph.rename(holder, graph.names().unique(wanted));
  if (graph.names().is_used(wanted)) {  // or an erased value had it
    while (Value* inner = find_below(graph, wanted)) {
      inner->graph->rename(inner, graph.names().unique(wanted));
    }
  }
  graph.rename(value, std::string(wanted));
}

}  // namespace onnxgrad::ir

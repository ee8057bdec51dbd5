#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/uses.h"
#include "train/adapters/insert.h"

namespace onnxgrad::train {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// Erases the nodes that compute with the adapters' own weights, whose results nothing else reads
// anymore, the nodes before them that are for them alone, and the initializers that only they read.
void erase_nodes_of(std::unordered_set<const Value*> own, std::span<Graph* const> graphs) {
  std::unordered_set<const Value*> read;  // by erased nodes
  for (bool any = true; any;) {
    any = false;
    const ir::Uses uses(*graphs.front());
    for (Graph* graph : graphs) {
      any |= std::erase_if(graph->nodes, [&](const Node* node) {
               const auto is_own = [&](const Value* value) { return own.contains(value); };
               const auto is_left_over = [&](const Value* value) {
                 return uses.count(value) == 0 && read.contains(value);
               };
               if (std::ranges::none_of(node->inputs, is_own) &&
                   !std::ranges::all_of(node->outputs, is_left_over)) {
                 return false;
               }
               own.insert(node->outputs.begin(), node->outputs.end());
               read.insert(node->inputs.begin(), node->inputs.end());
               return true;
             }) > 0;
    }
  }
  const ir::Uses uses(*graphs.front());
  std::erase_if(graphs.front()->initializers, [&](const Value* value) {
    return !value->is_input && uses.count(value) == 0 &&
           (own.contains(value) || read.contains(value));
  });
}

[[noreturn]] void refuse_removal(const std::string& name) {
  throw ModelError({.what = fmt::format("the adapters of the model cannot be removed: '{}' is not "
                                        "what their record says",
                                        base::printable(name)),
                    .where = {.value = name},
                    .hint = "Use the model as it was written: its graph or its metadata have been "
                            "changed since."});
}

}  // namespace

void remove_adapters(ir::Model& file) {
  Graph& graph = *file.graph;
  const std::vector<RecordedAdapter> record = read_adapters(file);
  std::unordered_map<std::string, Value*> values;
  std::vector<Graph*> graphs{&graph};
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    const auto add = [&](Value* value) {
      if (value != nullptr) values.emplace(value->name, value);
    };
    for (Value* input : graphs[i]->inputs) add(input);
    for (Value* initializer : graphs[i]->initializers) add(initializer);
    for (const Node* node : graphs[i]->nodes) {
      for (Value* output : node->outputs) add(output);
      for (Graph* body : node->subgraphs()) graphs.push_back(body);
    }
  }
  const auto find = [&](const std::string& name) {
    const auto found = values.find(name);
    if (found != values.end()) return found->second;
    refuse_removal(name);
  };
  std::unordered_set<const Value*> own;
  for (auto adapter = record.rbegin(); adapter != record.rend(); ++adapter) {
    for (const RecordedLayer& layer : adapter->layers) {
      for (const std::string& name : tensor_names(layer)) own.insert(find(name));
      for (const AdapterSite& site : layer.sites) {
        Value* const plain = find(site.plain);
        Value* const adapted = find(site.adapted);
        if (site.is_renamed && plain->producer == nullptr) refuse_removal(site.plain);
        if (!layer.magnitude.empty() && !site.bias.empty()) {
          plain->producer->inputs.push_back(find(site.bias));
        }
        ir::replace_uses(graph, {{adapted, plain}});
        if (!site.is_renamed) continue;
        if (plain->type.kind == ir::Type::Kind::kUnknown) plain->type = adapted->type;
        std::swap(adapted->doc_string, plain->doc_string);
        std::swap(adapted->metadata, plain->metadata);
        adapted->graph->rename(adapted, graph.names().unique(site.adapted + "_adapted"));
        plain->graph->rename(plain, site.adapted);
        values[site.adapted] = plain;
      }
    }
  }
  erase_nodes_of(own, graphs);
  write_adapters(file, {});
}

}  // namespace onnxgrad::train

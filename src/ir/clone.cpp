#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::ir {
namespace {

using ValueMap = std::unordered_map<const Value*, Value*>;

Value* mapped(const ValueMap& map, Value* value) {
  const auto found = map.find(value);
  return found == map.end() ? value : found->second;
}

void copy_details(const Value& from, Value& to) {
  to.type = from.type;
  to.is_input = from.is_input;
  to.initializer = from.initializer;
  to.has_value_info = from.has_value_info;
  to.doc_string = from.doc_string;
  to.metadata = from.metadata;
  to.origin = from.origin;
}

void clone_into(const Graph& from, Graph& to, ValueMap& map);

AttributeValue clone_attribute(const AttributeValue& value, Graph& parent, ValueMap& map) {
  const auto clone_graph = [&](const GraphPtr& graph) {
    auto copy = std::make_shared<Graph>(parent.names_ptr(), &parent);
    clone_into(*graph, *copy, map);
    return copy;
  };
  if (const auto* graph = std::get_if<GraphPtr>(&value)) return clone_graph(*graph);
  if (const auto* graphs = std::get_if<std::vector<GraphPtr>>(&value)) {
    std::vector<GraphPtr> copies;
    copies.reserve(graphs->size());
    for (const GraphPtr& graph : *graphs) copies.push_back(clone_graph(graph));
    return copies;
  }
  return value;
}

// The copy of `value` in `to`, made if `map` has none. `name_for` returns the names.
template <class NameFor>
Value* copy_value(const Value* value, Graph& to, ValueMap& map, const NameFor& name_for) {
  auto [entry, is_new] = map.try_emplace(value, nullptr);
  if (is_new) {
    entry->second = to.add_value(name_for(value->name));
    copy_details(*value, *entry->second);
  }
  return entry->second;
}

template <class NameFor>
void copy_initializers(const Graph& from, Graph& to, ValueMap& map, const NameFor& name_for) {
  for (const Value* value : from.initializers) {
    if (value->is_input || map.contains(value)) continue;
    to.initializers.push_back(copy_value(value, to, map, name_for));
  }
}

template <class NameFor>
void copy_nodes(std::span<const Node* const> nodes, Graph& to, ValueMap& map,
                const NameFor& name_for) {
  for (const Node* node : nodes) {
    Node* copy = to.add_bare_node();
    copy->name = node->name;
    copy->domain = node->domain;
    copy->op_type = node->op_type;
    copy->overload = node->overload;
    copy->doc_string = node->doc_string;
    copy->metadata = node->metadata;
    copy->opaque = node->opaque;
    copy->inputs.reserve(node->inputs.size());
    for (Value* input : node->inputs) copy->inputs.push_back(mapped(map, input));
    copy->outputs.resize(node->outputs.size(), nullptr);
    for (std::size_t i = 0; i < node->outputs.size(); ++i) {
      if (node->outputs[i] == nullptr) continue;
      Graph::set_output(copy, i, copy_value(node->outputs[i], to, map, name_for));
    }
    copy->attributes.reserve(node->attributes.size());
    for (const Attribute& attribute : node->attributes) {
      copy->attributes.push_back({.name = attribute.name,
                                  .value = clone_attribute(attribute.value, to, map),
                                  .doc_string = attribute.doc_string});
    }
  }
}

void clone_into(const Graph& from, Graph& to, ValueMap& map) {
  to.name = from.name;
  to.doc_string = from.doc_string;
  to.metadata = from.metadata;
  to.opaque = from.opaque;
  const auto same_name = [](const std::string& name) { return name; };
  for (const Value* input : from.inputs) {
    Value* copy = to.add_value(input->name);
    copy_details(*input, *copy);
    map[input] = copy;
    to.inputs.push_back(copy);
  }
  copy_initializers(from, to, map, same_name);
  copy_nodes(from.nodes, to, map, same_name);
  to.initializers.clear();
  for (const Value* value : from.initializers) to.initializers.push_back(map.at(value));
  for (Value* output : from.outputs) to.outputs.push_back(mapped(map, output));
}

void reserve_node_names(Graph& graph) {
  for (const Node* node : graph.nodes) {
    graph.names().reserve(node->name);
    for (Graph* body : node->subgraphs()) reserve_node_names(*body);
  }
}

}  // namespace

Model clone(const Model& model, ValueMap* map) {
  ValueMap own_map;
  ValueMap& values = map == nullptr ? own_map : *map;
  Model copy = model;
  copy.graph = std::make_shared<Graph>();
  // Names that only the original uses (of erased values) need not stay reserved.
  clone_into(*model.graph, *copy.graph, values);
  reserve_node_names(*copy.graph);
  for (StateBinding& binding : copy.state) {
    binding.input = mapped(values, binding.input);
    binding.output = mapped(values, binding.output);
  }
  for (Function& function : copy.functions) {
    auto body = std::make_shared<Graph>();
    ValueMap body_map;
    clone_into(*function.body, *body, body_map);
    function.body = std::move(body);
  }
  return copy;
}

std::shared_ptr<Model> writable(std::shared_ptr<const Model> model) {
  if (model.use_count() == 1) return std::const_pointer_cast<Model>(std::move(model));
  return std::make_shared<Model>(clone(*model));
}

void append_nodes(const Graph& from, Graph& to, ValueMap& map, std::string_view prefix) {
  copy_initializers(from, to, map, [&](const std::string& name) {
    return to.names().unique(std::string(prefix) + name);
  });
  append_nodes(from.nodes, to, map, prefix);
}

void append_nodes(std::span<const Node* const> nodes, Graph& to, ValueMap& map,
                  std::string_view prefix) {
  const std::size_t first_new = to.nodes.size();
  copy_nodes(nodes, to, map, [&](const std::string& name) {
    return to.names().unique(std::string(prefix) + name);
  });
  for (std::size_t i = first_new; i < to.nodes.size(); ++i) {
    to.nodes[i]->name = to.names().unique(std::string(prefix) + to.nodes[i]->name);
  }
}

}  // namespace onnxgrad::ir

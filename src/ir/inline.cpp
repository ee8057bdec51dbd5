#include "ir/inline.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::ir {
namespace {

const AttributeValue* bound_attribute(const Node& call, const Function& function,
                                      std::string_view name) {
  if (const AttributeValue* value = call.find_attribute(name)) return value;
  const auto found = std::ranges::find(function.attribute_defaults, name, &Attribute::name);
  return found == function.attribute_defaults.end() ? nullptr : &found->value;
}

using ValueMap = std::unordered_map<const Value*, Value*>;

// Copies of the body's nodes, owned by the graph but not in its list.
std::vector<Node*> take_copies(const Graph& body, Graph& graph, ValueMap& map,
                               std::string_view prefix) {
  const std::size_t first_new = graph.nodes.size();
  append_nodes(body, graph, map, prefix);
  const auto first = graph.nodes.begin() + static_cast<std::ptrdiff_t>(first_new);
  std::vector<Node*> copies(first, graph.nodes.end());
  graph.nodes.erase(first, graph.nodes.end());
  return copies;
}

// The node's outputs replace the body's; one that the body passes through needs a node.
void take_outputs(const Node& node, const Graph& body, ValueMap& map, std::vector<Node*>& inlined) {
  Graph& graph = *node.graph;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    Value* output = node.outputs[i];
    if (output == nullptr) continue;
    Value* inner = map.contains(body.outputs[i]) ? map.at(body.outputs[i]) : body.outputs[i];
    const bool is_taken = std::ranges::find(node.outputs, inner) != node.outputs.end();
    const bool is_fresh = inner != nullptr && inner->producer != nullptr && !is_taken &&
                          std::ranges::find(inlined, inner->producer) != inlined.end();
    if (is_fresh) {
      Node* producer = inner->producer;
      Graph::set_output(producer, static_cast<std::size_t>(inner->output_index), output);
      const std::unordered_map<const Value*, Value*> renamed{{inner, output}};
      for (Node* reader : inlined) {
        std::ranges::replace(reader->inputs, inner, output);
        for (Graph* subgraph : reader->subgraphs()) replace_uses(*subgraph, renamed);
      }
      map[body.outputs[i]] = output;
    } else {
      inlined.push_back(graph.make_node("Identity", {inner}, {output}, node.name + "/Identity"));
    }
  }
}

}  // namespace

void bind_attributes(Node& node, const Node& call, const Function& function) {
  std::vector<Attribute> bound;
  for (Attribute& attribute : node.attributes) {
    const auto* reference = std::get_if<AttributeRef>(&attribute.value);
    if (reference == nullptr) {
      bound.push_back(std::move(attribute));
    } else if (const AttributeValue* value = bound_attribute(call, function, reference->name)) {
      bound.push_back({.name = attribute.name, .value = *value});
    }
  }
  node.attributes = std::move(bound);
  for (Graph* subgraph : node.subgraphs()) {
    for (Node* inner : subgraph->nodes) bind_attributes(*inner, call, function);
  }
}

void trim_inputs(Node& node, std::size_t min_inputs) {
  while (node.inputs.size() > min_inputs && node.inputs.back() == nullptr) node.inputs.pop_back();
}

std::vector<Node*> expand_call(Node& node, const Function& function) {
  Graph& graph = *node.graph;
  const Graph& body = *function.body;
  if (node.inputs.size() > body.inputs.size() || node.outputs.size() > body.outputs.size()) {
    throw ModelError({.what = "calls function '" + function.name + "' with " +
                              std::to_string(node.inputs.size()) + " inputs and " +
                              std::to_string(node.outputs.size()) + " outputs, expected at most " +
                              std::to_string(body.inputs.size()) + " and " +
                              std::to_string(body.outputs.size()),
                      .where = {.graph = graph.name, .node = node.name, .op_type = node.op_type},
                      .hint = "Remove what the function does not have, or export it again."});
  }
  ValueMap map;
  for (std::size_t i = 0; i < body.inputs.size(); ++i) map[body.inputs[i]] = node.input(i);
  std::vector<Node*> inlined = take_copies(body, graph, map, node.name + "/");
  for (Node* inner : inlined) bind_attributes(*inner, node, function);
  take_outputs(node, body, map, inlined);
  return inlined;
}

std::vector<Node*> expand_body(Node& node, const Graph& body) {
  ValueMap map;
  std::vector<Node*> inlined = take_copies(body, *node.graph, map, "");
  take_outputs(node, body, map, inlined);
  return inlined;
}

void inline_call(Node& node, const Function& function, const TypeInferer& inferer) {
  const std::vector<Node*> inlined = expand_call(node, function);
  for (Node* inner : inlined) {
    trim_inputs(*inner);
    inferer.infer(*inner);
  }
  Graph& graph = *node.graph;
  const auto position = std::ranges::find(graph.nodes, &node);
  const auto next = graph.nodes.erase(position);
  graph.nodes.insert(next, inlined.begin(), inlined.end());
}

}  // namespace onnxgrad::ir

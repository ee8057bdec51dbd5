#include "train/graphs/stop_gradient.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "train/weights/adapter_record.h"

namespace onnxgrad::train {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr std::string_view kStop = "StopGradient";

bool is_stop(const Node& node) {
  return node.domain == ir::kFunctionDomain && opdef::base_name(node.domain, node.op_type) == kStop;
}

// The values and nodes of a graph and its subgraphs by the names that users know.
class Names {
 public:
  explicit Names(const Graph& graph) { collect(graph); }

  // Empty: there is nothing of that name.
  std::vector<Value*> find(const std::string& name) const {
    if (const auto value = values_.find(name); value != values_.end()) return {value->second};
    const auto node = nodes_.find(name);
    if (node == nodes_.end()) return {};
    std::vector<Value*> outputs = node->second->outputs;
    std::erase(outputs, nullptr);
    return outputs;
  }

  std::vector<std::string> all() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : values_) names.push_back(name);
    for (const auto& [name, node] : nodes_) names.push_back(name);
    std::ranges::sort(names);
    return names;
  }

 private:
  void collect(const Graph& graph) {
    for (Value* input : graph.inputs) values_.emplace(input->name, input);
    for (Value* initializer : graph.initializers) values_.emplace(initializer->name, initializer);
    for (const Node* node : graph.nodes) {
      if (!node->name.empty()) nodes_.emplace(node->name, node);
      for (Value* output : node->outputs) {
        if (output != nullptr) values_.emplace(output->name, output);
      }
      for (const Graph* body : node->subgraphs()) collect(*body);
    }
  }

  std::unordered_map<std::string, Value*> values_;
  std::unordered_map<std::string, const Node*> nodes_;
};

// A call of the function that reads `x`, in no list of nodes yet.
Node* make_stop(ir::GraphBuilder& g, Value* x) {
  Node* const node = g.call(kStop, {x}, 1).front()->producer;
  g.graph().nodes.pop_back();
  return node;
}

// Inserts a stop after the node of `value`; its result takes over the name and the readers. An
// input or initializer has no node to follow: its readers get the output of the stop.
void add_stop(ir::GraphBuilder& g, Value* value) {
  Graph& graph = g.graph();
  if (value->producer == nullptr) {
    Node* const stop = make_stop(g, value);
    std::vector<Value*> outputs = graph.outputs;
    const bool is_body = graph.parent() != nullptr;
    ir::replace_uses(graph, {{value, stop->outputs[0]}});
    if (!is_body) graph.outputs = std::move(outputs);  // a model's output keeps its name
    graph.nodes.insert(graph.nodes.begin(), stop);
    return;
  }
  Node* const producer = value->producer;
  const auto index = static_cast<std::size_t>(value->output_index);
  Value* const raw = graph.add_output(producer, index, value->type, value->name + "_unstopped");
  Node* const stop = make_stop(g, raw);
  Graph::set_output(stop, 0, value);
  const auto place = std::ranges::find(graph.nodes, producer);
  ONNXGRAD_ASSERT(place != graph.nodes.end());
  graph.nodes.insert(place + 1, stop);
}

void remove_stops_in(Graph& graph) {
  std::unordered_map<const Value*, Value*> replaced;
  std::vector<Node*> kept;
  for (Node* node : graph.nodes) {
    for (Graph* body : node->subgraphs()) remove_stops_in(*body);
    if (!is_stop(*node)) {
      kept.push_back(node);
      continue;
    }
    Value* const raw = node->inputs[0];
    Value* const output = node->outputs[0];
    if (raw->producer != nullptr && raw->graph == &graph && !replaced.contains(raw)) {
      Graph::set_output(raw->producer, static_cast<std::size_t>(raw->output_index), output);
      replaced.emplace(raw, output);
    } else {
      const auto same = replaced.find(raw);
      replaced.emplace(output, same == replaced.end() ? raw : same->second);
    }
  }
  graph.nodes = std::move(kept);
  if (!replaced.empty()) ir::replace_uses(graph, replaced);
}

}  // namespace

void stop_gradients(ir::Model& model, const opdef::OpRegistry& registry,
                    std::span<const std::string> names) {
  std::vector<std::string> all = stopped_names(model);
  all.insert(all.end(), names.begin(), names.end());
  if (all.empty()) return;
  const auto inferer = onnx_io::make_type_inferer(model);
  ir::GraphBuilder g(model, *model.graph, *inferer, registry);
  g.set_scope("stop_gradient");
  const Names known(*model.graph);
  std::unordered_set<const Value*> stopped;
  for (const std::string& name : all) {
    const std::vector<Value*> values = known.find(name);
    if (values.empty()) {
      throw ModelError({.what = "stop_gradient: there is no value and no node '" + name + "'",
                        .where = {.value = name},
                        .hint = base::nearest_or(
                            name, known.all(), "The names are those of the values in the file.")});
    }
    for (Value* value : values) {
      if (!stopped.insert(value).second) continue;
      ir::GraphBuilder inside = g.inside(*value->graph);
      add_stop(inside, value);
    }
  }
}

std::shared_ptr<const ir::Model> with_stops(std::shared_ptr<const ir::Model> working,
                                            const opdef::OpRegistry& registry,
                                            std::span<const std::string> names) {
  if (names.empty() && stopped_names(*working).empty()) return working;
  for (const Value* value : working->graph->initializers) {
    if (!is_floating(value->dtype()) || std::ranges::find(names, value->name) == names.end()) {
      continue;
    }
    throw ModelError({.what = "stop_gradient: '" + value->name + "' is a weight",
                      .where = {.value = value->name},
                      .hint = "Leave it as it is with frozen=."});
  }
  std::shared_ptr<ir::Model> stopped = ir::writable(std::move(working));
  stop_gradients(*stopped, registry, names);
  return stopped;
}

void remove_stops(ir::Model& model) {
  remove_stops_in(*model.graph);
  std::erase_if(model.functions, [](const ir::Function& function) {
    return function.domain == ir::kFunctionDomain &&
           opdef::base_name(function.domain, function.name) == kStop;
  });
  const bool calls_functions = std::ranges::any_of(
      model.functions,
      [](const ir::Function& function) { return function.domain == ir::kFunctionDomain; });
  if (calls_functions) return;
  std::erase_if(model.opset_imports,
                [](const auto& import) { return import.first == ir::kFunctionDomain; });
}

}  // namespace onnxgrad::train

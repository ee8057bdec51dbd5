#include <fmt/format.h>

#include <string>
#include <unordered_set>

#include "ir/graph.h"

namespace onnxgrad::ir {
namespace {

class Finder {
 public:
  // The first fault of `graph`; subgraphs see what is defined before their node.
  std::string find(const Graph& graph) {
    for (const Value* input : graph.inputs) available_.insert(input);
    for (const Value* constant : graph.initializers) available_.insert(constant);
    std::unordered_set<const Node*> seen;
    for (const Node* node : graph.nodes) {
      if (!seen.insert(node).second) return fmt::format("{} is listed twice", node->describe());
      if (std::string fault = find_in_node(*node, graph); !fault.empty()) return fault;
    }
    for (const Value* output : graph.outputs) {
      if (output == nullptr) return fmt::format("graph '{}' has an empty output", graph.name);
      if (!available_.contains(output)) {
        return fmt::format("output '{}' of graph '{}' is never computed", output->name, graph.name);
      }
    }
    return "";
  }

 private:
  std::string find_in_node(const Node& node, const Graph& graph) {
    if (node.graph != &graph) return node.describe() + " belongs to another graph";
    for (const Value* input : node.inputs) {
      if (input == nullptr || available_.contains(input)) continue;
      return fmt::format("{} reads '{}' before it is computed", node.describe(), input->name);
    }
    for (const Graph* subgraph : node.subgraphs()) {
      Finder inside = *this;
      if (std::string fault = inside.find(*subgraph); !fault.empty()) return fault;
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const Value* output = node.outputs[i];
      if (output == nullptr) continue;
      if (output->producer != &node || output->output_index != static_cast<int>(i)) {
        return fmt::format("output {} of {}, '{}', names another producer", i, node.describe(),
                           output->name);
      }
      if (output->graph != &graph) {
        return fmt::format("'{}' of {} belongs to another graph", output->name, node.describe());
      }
      if (!available_.insert(output).second) {
        return fmt::format("'{}' of {} already exists", output->name, node.describe());
      }
    }
    return "";
  }

  std::unordered_set<const Value*> available_;
};

}  // namespace

std::string find_fault(const Graph& graph) { return Finder().find(graph); }

}  // namespace onnxgrad::ir

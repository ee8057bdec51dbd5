#ifndef ONNXGRAD_PASSES_REWRITER_H_
#define ONNXGRAD_PASSES_REWRITER_H_

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "opdef/registry.h"

namespace onnxgrad::passes {

/// Whether a node calls one of our functions in any specialisation: "MaxPoolGrad". False
/// for nullptr.
inline bool is_function(const ir::Node* node, std::string_view base_name) {
  return node != nullptr && node->domain == ir::kFunctionDomain &&
         opdef::base_name(node->domain, node->op_type) == base_name;
}

/// True if a node of the graph satisfies `test`. A pass that finds none need not collect the
/// readers of all values.
template <class Test>
bool any_node(const ir::Graph& graph, const Test& test) {
  return std::ranges::any_of(graph.nodes, [&](const ir::Node* node) { return test(*node); });
}

/// Builds the new list of nodes of a graph, front to back: keep() or emit() for each of before(),
/// then finish(). The graph's own list changes meanwhile.
class Rewriter {
 public:
  explicit Rewriter(ir::Graph& graph) : graph_(graph), before_(graph.nodes) {
    nodes_.reserve(before_.size());
  }

  /// The nodes before the pass.
  const std::vector<ir::Node*>& before() const { return before_; }

  void keep(ir::Node* node) { nodes_.push_back(node); }

  /// Appends a new node with one output of the given type.
  ir::Value* emit(std::string_view domain, std::string_view op_type, std::vector<ir::Value*> inputs,
                  ir::Type type, std::vector<ir::Attribute> attributes = {},
                  std::string_view hint = "") {
    ir::Node* node = graph_.add_node(op_type, std::move(inputs), 1, std::move(attributes), domain,
                                     hint.empty() ? op_type : hint);
    graph_.nodes.pop_back();
    node->outputs[0]->type = std::move(type);
    nodes_.push_back(node);
    return node->outputs[0];
  }

  /// Replaces `from` by `to`, just emitted: readers keep their pointers.
  static void take_over(ir::Value* from, ir::Value* to) {
    ir::Node* node = to->producer;
    const auto index = static_cast<std::size_t>(to->output_index);
    to->producer = nullptr;
    ir::Graph::set_output(node, index, from);
  }

  void finish() { graph_.nodes = std::move(nodes_); }

 private:
  ir::Graph& graph_;
  std::vector<ir::Node*> before_;
  std::vector<ir::Node*> nodes_;
};

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_REWRITER_H_

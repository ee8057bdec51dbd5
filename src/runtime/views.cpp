#include "runtime/views.h"

namespace onnxgrad::runtime {
namespace {

bool is_view_node(const ir::Node& node, const opdef::OpRegistry& registry) {
  const opdef::OpDef* def = registry.find(node);
  return def != nullptr && def->is_view();
}

}  // namespace

const ir::Value* view_root(const ir::Value* value, const opdef::OpRegistry& registry) {
  while (value->producer != nullptr) {
    if (value->output_index != 0 || !is_view_node(*value->producer, registry)) break;
    value = value->producer->inputs[0];
  }
  return value;
}

ViewRoots::ViewRoots(const ir::Graph& graph, const opdef::OpRegistry& registry) {
  for (const ir::Node* node : graph.nodes) {
    if (!is_view_node(*node, registry)) continue;
    views_.insert(node);
    if (node->outputs[0] != nullptr) roots_[node->outputs[0]] = of(node->inputs[0]);
  }
}

}  // namespace onnxgrad::runtime

#include <unordered_map>
#include <vector>

#include "passes/passes.h"

namespace onnxgrad::passes {
namespace {

bool same_static_type(const ir::Value* a, const ir::Value* b) {
  const auto dims = a->type.static_dims();
  return dims && a->dtype() == b->dtype() && dims == b->type.static_dims();
}

// A view of equal shape, or a node that does nothing here according to its operator.
bool is_identity(const ir::Node& node, const opdef::OpDef& def) {
  if (node.input(0) == nullptr || node.output(0) == nullptr || node.outputs.size() != 1)
    return false;
  if (def.is_view() && same_static_type(node.inputs[0], node.outputs[0])) return true;
  return def.is_identity != nullptr && def.is_identity(node);
}

}  // namespace

bool eliminate_identities(ir::Graph& graph, const PassContext& context) {
  std::unordered_map<const ir::Value*, ir::Value*> replaced;  // by values that are not identities
  std::vector<ir::Node*> kept;
  for (ir::Node* node : graph.nodes) {
    const opdef::OpDef* def = context.ops.find(*node);
    if (def != nullptr && is_identity(*node, *def)) {
      const auto source = replaced.find(node->inputs[0]);
      replaced.emplace(node->outputs[0],
                       source == replaced.end() ? node->inputs[0] : source->second);
    } else {
      kept.push_back(node);
    }
  }
  graph.nodes = std::move(kept);
  ir::replace_uses(graph, replaced);
  return !replaced.empty();
}

}  // namespace onnxgrad::passes

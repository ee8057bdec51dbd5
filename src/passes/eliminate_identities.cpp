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

using Replaced = std::unordered_map<const ir::Value*, ir::Value*>;

ir::Value* resolve(ir::Value* value, const Replaced& replaced) {
  const auto found = replaced.find(value);
  return found == replaced.end() ? value : found->second;
}

bool is_cast(const ir::Node* node) {
  return node != nullptr && node->domain.empty() && node->op_type == "Cast" &&
         node->input(0) != nullptr;
}

// Returns the f16/bf16 value that a node rounds once more: Cast(Cast(f16 to float32) to f16).
ir::Value* rounded_before(const ir::Node& node, const Replaced& replaced) {
  if (!is_cast(&node) || !ir::holds_f16(node.outputs[0])) return nullptr;
  const ir::Value* wide = resolve(node.inputs[0], replaced);
  if (!is_cast(wide->producer) || wide->dtype() != DataType::kFloat32) return nullptr;
  ir::Value* half = resolve(wide->producer->inputs[0], replaced);
  return half->dtype() == node.outputs[0]->dtype() ? half : nullptr;
}

}  // namespace

bool eliminate_identities(ir::Graph& graph, const PassContext& context) {
  Replaced replaced;  // by values that are not identities
  std::vector<ir::Node*> kept;
  for (ir::Node* node : graph.nodes) {
    const opdef::OpDef* def = context.ops.find(*node);
    if (def != nullptr && is_identity(*node, *def)) {
      replaced.emplace(node->outputs[0], resolve(node->inputs[0], replaced));
    } else if (ir::Value* half = rounded_before(*node, replaced); half != nullptr) {
      replaced.emplace(node->outputs[0], half);
    } else {
      kept.push_back(node);
    }
  }
  graph.nodes = std::move(kept);
  ir::replace_uses(graph, replaced);
  return !replaced.empty();
}

}  // namespace onnxgrad::passes

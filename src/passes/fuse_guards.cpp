#include <string_view>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/fused.h"
#include "opdef/guarded_update.h"
#include "opdef/registry.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/step_patterns.h"

// Pattern: Where(is_done, result, operand) for every result of an onnxgrad.WeightUpdate, as a loss
// scale guards it. One kernel then updates in place, or leaves weight and slots as they are.

namespace onnxgrad::passes {
namespace {

using ir::Node;

}  // namespace

bool fuse_guards(ir::Graph& graph, const PassContext& context) {
  if (!context.has_kernel || !any_node(graph, is_weight_update) ||
      !any_node(graph, [](const Node& node) { return ir::is_op(&node, "Where"); })) {
    return false;
  }
  const ir::Uses uses(graph);
  std::unordered_set<const Node*> gone;
  for (Node* node : graph.nodes) {
    if (!is_weight_update(*node) || !node->outputs[0]->type.static_dims()) continue;
    const std::vector<Node*> guards = guards_of(*node, uses);
    if (guards.empty()) continue;
    const Node before = *node;
    node->domain = ir::kFusedDomain;
    node->op_type = opdef::kGuardedWeightUpdate;
    node->inputs.push_back(guards.front()->inputs[0]);
    if (!context.has_kernel(*node)) {
      node->domain = before.domain;
      node->op_type = before.op_type;
      node->inputs = before.inputs;
      continue;
    }
    for (std::size_t i = 0; i < guards.size(); ++i) {
      ir::Graph::set_output(node, i, guards[i]->outputs[0]);
      gone.insert(guards[i]);
    }
  }
  if (gone.empty()) return false;
  std::erase_if(graph.nodes, [&](const Node* node) { return gone.contains(node); });
  ir::sort_topologically(graph);  // an update now follows its condition
  return true;
}

}  // namespace onnxgrad::passes

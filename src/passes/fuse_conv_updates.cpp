#include <algorithm>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/uses.h"
#include "opdef/conv_update.h"
#include "opdef/fused.h"
#include "opdef/registry.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/step_patterns.h"

// Patterns: onnxgrad.WeightUpdate, and w - rate * gradient, where the gradient is
// onnxgrad.ConvWeightGrad(dy, x) and has no other reader. The convolution joins the update as
// onnxgrad.fused.ConvWeightUpdate or ConvDescent: the gradient is not stored. Where no kernel does
// that (depthwise convolutions, images of 16 bits without AMX), or a guard follows, both nodes
// remain.

namespace onnxgrad::passes {
namespace {

using ir::Node;

bool is_weight_gradient(const Node& node) { return is_function(&node, "ConvWeightGrad"); }

// True if all results are outputs. If a guard chose between results and old values, all results
// would be stored until the condition is known; without one they replace the old values.
bool are_outputs(const std::vector<ir::Value*>& results, const ir::Graph& graph) {
  return std::ranges::all_of(results, [&](const ir::Value* result) {
    return std::ranges::find(graph.outputs, result) != graph.outputs.end();
  });
}

}  // namespace

bool fuse_conv_updates(ir::Graph& graph, const PassContext& context) {
  if (!any_node(graph, is_weight_gradient)) return false;
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    const UpdateMatch match = match_weight_update(*node, uses);
    const Node* conv = match.gradient == nullptr ? nullptr : match.gradient->producer;
    if (conv == nullptr || !is_weight_gradient(*conv)) continue;
    if (!are_outputs(node->outputs, graph)) continue;
    Node fused = *node;
    fused.domain = ir::kFusedDomain;
    fused.op_type = match.is_descent ? opdef::kConvDescent : opdef::kConvWeightUpdate;
    fused.inputs = {conv->inputs[0], conv->inputs[1]};
    fused.inputs.insert(fused.inputs.end(), match.others.begin(), match.others.end());
    fused.attributes.insert(fused.attributes.end(), conv->attributes.begin(),
                            conv->attributes.end());
    if (!context.prefers(fused)) continue;
    *node = std::move(fused);
    changed = true;
  }
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes

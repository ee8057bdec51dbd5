#include <algorithm>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/fused.h"
#include "opdef/registry.h"
#include "opdef/scatter_update.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/step_patterns.h"

// Patterns: onnxgrad.WeightUpdate, and w - rate * gradient, where the gradient is
// ScatterND(zeros, indices, rows) with reduction "add" along the first axis, as Gather's rule
// writes it, and has no other reader. The rows join the update as
// onnxgrad.fused.ScatterWeightUpdate or ScatterDescent: no dense gradient is stored, and plain
// descent reads and writes only the rows of a step.

namespace onnxgrad::passes {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

bool is_zero_target(const Value* value) {
  if (is_op(value->producer, "Expand")) value = value->producer->inputs[0];
  if (!value->is_constant()) return false;
  const std::vector<double> numbers = value->initializer.to_doubles();
  return std::ranges::all_of(numbers, [](double x) { return x == 0; });
}

bool has_update_type(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

/// Whether `gradient` has the form above.
bool is_scatter(const Value* gradient) {
  const Node* node = gradient->producer;
  if (!is_op(node, "ScatterND")) return false;
  const auto dims = gradient->type.static_dims();
  const auto index_dims = node->inputs[1]->type.static_dims();
  if (!dims || !index_dims || dims->rank() < 1 || !has_update_type(gradient->dtype())) return false;
  const bool is_by_row = index_dims->rank() > 0 && (*index_dims)[index_dims->rank() - 1] == 1;
  const bool adds = node->string_attribute("reduction", "none") == "add";
  return is_by_row && adds && is_zero_target(node->inputs[0]);
}

}  // namespace

bool fuse_scatter_updates(ir::Graph& graph, const PassContext& context) {
  if (!any_node(graph, [](const Node& node) { return is_op(&node, "ScatterND"); })) return false;
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    const UpdateMatch match = match_weight_update(*node, uses);
    if (match.gradient == nullptr || !is_scatter(match.gradient)) continue;
    const Node* scatter = match.gradient->producer;
    Node fused = *node;
    fused.domain = ir::kFusedDomain;
    fused.op_type = match.is_descent ? opdef::kScatterDescent : opdef::kScatterWeightUpdate;
    fused.inputs = {scatter->inputs[1], scatter->inputs[2]};
    fused.inputs.insert(fused.inputs.end(), match.others.begin(), match.others.end());
    if (!context.prefers(fused)) continue;
    *node = std::move(fused);
    changed = true;
  }
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes

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

// Patterns: onnxgrad.WeightUpdate, and w - rate * gradient, where the gradient is
// ScatterND(zeros, indices, rows) with reduction "add" along the first axis, as Gather's rule
// writes it, and has no other reader. The rows join the update as
// onnxgrad.fused.ScatterWeightUpdate or ScatterDescent: no dense gradient is stored, and plain
// descent touches only the rows of a step.

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

/// The ScatterND that is `gradient`, if it has the form above.
const Node* find_scatter(const Value* gradient, const ir::Uses& uses) {
  const Node* node = gradient->producer;
  if (!is_op(node, "ScatterND") || uses.count(gradient) != 1) return nullptr;
  const auto dims = gradient->type.static_dims();
  const auto index_dims = node->inputs[1]->type.static_dims();
  if (!dims || !index_dims || dims->rank() < 1 || !has_update_type(gradient->dtype()))
    return nullptr;
  const bool is_by_row = index_dims->rank() > 0 && (*index_dims)[index_dims->rank() - 1] == 1;
  const bool adds = node->string_attribute("reduction", "none") == "add";
  return is_by_row && adds && is_zero_target(node->inputs[0]) ? node : nullptr;
}

bool is_single_number(const Value* value) {
  const auto dims = value->type.static_dims();
  return dims && dims->num_elements() == 1;
}

/// The operands of an update: where the gradient is, and what else there is.
struct ScatterMatch {
  const Node* scatter = nullptr;
  std::string_view op_type;
  std::vector<Value*> others = {};  // w, m, ... or w, rate
};

ScatterMatch match_scatter_update(const Node& node, const ir::Uses& uses) {
  if (node.domain != ir::kFunctionDomain ||
      opdef::base_name(node.domain, node.op_type) != opdef::kWeightUpdate) {
    return {};
  }
  const Node* scatter = find_scatter(node.inputs[0], uses);
  return {scatter, opdef::kScatterWeightUpdate, {node.inputs.begin() + 1, node.inputs.end()}};
}

// w - rate * gradient, where w is a leaf.
ScatterMatch match_scatter_descent(const Node& node, const ir::Uses& uses) {
  if (!is_op(&node, "Sub")) return {};
  Value* weight = node.inputs[0];
  const Node* scaled = node.inputs[1]->producer;
  if (weight->producer != nullptr || weight->is_constant() || !is_op(scaled, "Mul") ||
      uses.count(node.inputs[1]) != 1) {
    return {};
  }
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    Value* rate = scaled->inputs[1 - side];
    const Value* gradient = scaled->inputs[side];
    const Node* scatter = find_scatter(gradient, uses);
    const auto dims = gradient->type.static_dims();
    if (scatter == nullptr || !is_single_number(rate) || weight->type.static_dims() != dims ||
        node.outputs[0]->type.static_dims() != dims) {
      continue;
    }
    return {scatter, opdef::kScatterDescent, {weight, rate}};
  }
  return {};
}

}  // namespace

bool fuse_scatter_updates(ir::Graph& graph, const PassContext& context) {
  if (!context.has_kernel) return false;
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    ScatterMatch match = match_scatter_update(*node, uses);
    if (match.scatter == nullptr) match = match_scatter_descent(*node, uses);
    if (match.scatter == nullptr) continue;
    const Node before = *node;
    node->domain = ir::kFusedDomain;
    node->op_type = match.op_type;
    node->inputs = {match.scatter->inputs[1], match.scatter->inputs[2]};
    node->inputs.insert(node->inputs.end(), match.others.begin(), match.others.end());
    if (!context.has_kernel(*node)) {
      node->domain = before.domain;
      node->op_type = before.op_type;
      node->inputs = before.inputs;
      continue;
    }
    changed = true;
  }
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes

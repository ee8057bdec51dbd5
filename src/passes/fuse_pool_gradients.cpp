#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/fused.h"
#include "opdef/registry.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// The gradient of MaxPool has the number of a window at the place of its maximum, and zeros
// elsewhere. What follows from that:
//   - after a Relu, x > 0 ? MaxPoolGrad(dy) : 0 = MaxPoolGrad(y > 0 ? dy : 0), with y the maxima:
//     at the place of a maximum, x is y. Windows overlap only in positions, so overlaps do not
//     matter. A quarter of the numbers for windows of 2 x 2, and x is not kept for it.
//   - the sum of MaxPoolGrad(dy) over the spatial axes, as a bias before the pool needs it, is that
//     of dy.
// Of the pool's input the gradients of MaxPool and AveragePool need the shape alone, which a plan
// has: they become onnxgrad.fused.MaxPoolGrad and AveragePoolGrad, without it.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

bool is_pool_gradient(const Node& node) {
  return is_function(&node, opdef::kMaxPoolGrad) || is_function(&node, opdef::kAveragePoolGrad);
}

/// x > 0 ? gradient : 0, of the gradient of a MaxPool of x that nothing else reads.
struct Masked {
  Node* gradient = nullptr;  ///< nullptr: it is something else
  Value* maxima = nullptr;
};

Masked match_mask(const Node& where, const ir::Uses& uses) {
  if (!ir::is_op(&where, "Where") || !ir::is_number(where.inputs[2], 0)) return {};
  const Value* dx = where.inputs[1];
  Node* gradient = dx == nullptr ? nullptr : dx->producer;
  const Node* greater = where.inputs[0]->producer;
  if (!is_function(gradient, opdef::kMaxPoolGrad) || uses.only_reader(dx) != &where ||
      !ir::is_op(greater, "Greater") || !ir::is_number(greater->inputs[1], 0)) {
    return {};
  }
  const Value* x = greater->inputs[0];
  const Value* indices = gradient->inputs[1];
  const Node* pool = indices->producer;
  const bool is_of_x = ir::is_op(pool, "MaxPool") && indices->output_index == 1 &&
                       pool->inputs[0] == x && gradient->inputs[2] == x;
  return is_of_x ? Masked{gradient, pool->outputs[0]} : Masked{};
}

bool mask_before(ir::Graph& graph) {
  const ir::Uses uses(graph);
  Rewriter rewriter(graph);
  bool changed = false;
  for (Node* node : rewriter.before()) {
    const auto [gradient, y] = match_mask(*node, uses);
    if (gradient == nullptr || y == nullptr || y->type.shape != gradient->inputs[0]->type.shape) {
      rewriter.keep(node);
      continue;
    }
    ir::Type condition = y->type;
    condition.dtype = DataType::kBool;
    Value* zero = node->inputs[2];
    Value* is_positive =
        rewriter.emit("", "Greater", {y, node->inputs[0]->producer->inputs[1]}, condition);
    Value* dy = gradient->inputs[0];
    Value* masked = rewriter.emit("", "Where", {is_positive, dy, zero}, dy->type);
    Value* dx = rewriter.emit(gradient->domain, gradient->op_type,
                              {masked, gradient->inputs[1], gradient->inputs[2]},
                              node->outputs[0]->type, gradient->attributes);
    Rewriter::take_over(node->outputs[0], dx);
    changed = true;
  }
  rewriter.finish();
  return changed;
}

bool covers_spatial_axes(const Node& sum, std::size_t rank) {
  if (sum.input(1) == nullptr) return sum.int_attribute("noop_with_empty_axes", 0) == 0;
  std::vector<std::int64_t> axes = ir::constant_integers(sum.inputs[1]);
  for (std::int64_t& axis : axes) axis = normalize_axis(axis, rank);
  for (std::size_t spatial = 2; spatial < rank; ++spatial) {
    if (std::ranges::find(axes, static_cast<std::int64_t>(spatial)) == axes.end()) return false;
  }
  return true;
}

bool sum_before(const ir::Graph& graph) {
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (!ir::is_op(node, "ReduceSum")) continue;
    const Node* gradient = node->inputs[0]->producer;
    if (!is_function(gradient, opdef::kMaxPoolGrad)) continue;
    const auto dims = gradient->inputs[0]->type.static_dims();
    if (!dims || !covers_spatial_axes(*node, dims->rank())) continue;
    node->inputs[0] = gradient->inputs[0];
    changed = true;
  }
  return changed;
}

bool drop_input(const ir::Graph& graph, const PassContext& context) {
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (!is_pool_gradient(*node) || !node->outputs[0]->type.static_dims()) continue;
    Node fused = *node;
    fused.op_type = opdef::base_name(node->domain, node->op_type);
    fused.domain = ir::kFusedDomain;
    fused.inputs.pop_back();
    if (!context.prefers(fused)) continue;
    *node = std::move(fused);
    changed = true;
  }
  return changed;
}

}  // namespace

bool fuse_pool_gradients(ir::Graph& graph, const PassContext& context) {
  if (!any_node(graph, is_pool_gradient)) return false;
  bool changed = mask_before(graph);
  changed = sum_before(graph) || changed;
  changed = drop_input(graph, context) || changed;
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes

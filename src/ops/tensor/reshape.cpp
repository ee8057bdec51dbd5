#include "opdef/registry.h"
#include "ops/rules.h"

// Reshape, Flatten, Squeeze and Unsqueeze: the same elements with a different shape.

namespace onnxgrad::ops::reshape_op {
namespace {

// dx = dy in the shape of x.
std::vector<Value*> reshape_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.reshape(ctx.cotangent(0), shape_value(g, ctx.input(0)))};
}

// Returns the axes as a list: in onnxruntime, Unsqueeze also takes a scalar of rank 0, Squeeze does
// not.
Value* axes_list(VjpContext& ctx, GraphBuilder& g) {
  Value* axes = ctx.input(1);
  return known_rank(axes) == std::size_t{1} ? axes : g.reshape(axes, std::vector<std::int64_t>{-1});
}

// dx = dy with the axes restored.
std::vector<Value*> squeeze_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (ctx.input(1) == nullptr) return reshape_vjp(ctx, g);
  return {g.op("Unsqueeze", {ctx.cotangent(0), axes_list(ctx, g)})};
}

// dx = dy without the axes.
std::vector<Value*> unsqueeze_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.op("Squeeze", {ctx.cotangent(0), axes_list(ctx, g)})};
}

// Returns true if the shapes before and after are known to be equal.
bool keeps_shape(const Node& node) {
  const auto before = node.inputs[0]->type.static_dims();
  return before && before == node.outputs[0]->type.static_dims();
}

}  // namespace

void register_reshape(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Reshape",
                .since_version = 25,
                .differentiable_inputs = {0},
                .attributes = {flag_attribute("allowzero", false)},
                .vjp = reshape_vjp,
                .shape_inputs = {1},
                .passage = opdef::Passage::kReshaped,
                .is_identity = keeps_shape});
  registry.add({.op_type = "Flatten",
                .since_version = 25,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis", 1)},
                .vjp = reshape_vjp,
                .passage = opdef::Passage::kReshaped,
                .is_identity = keeps_shape});
  registry.add({.op_type = "Squeeze",
                .since_version = 25,
                .differentiable_inputs = {0},
                .vjp = squeeze_vjp,
                .shape_inputs = {1},
                .passage = opdef::Passage::kReshaped,
                .is_identity = keeps_shape});
  registry.add({.op_type = "Unsqueeze",
                .since_version = 25,
                .differentiable_inputs = {0},
                .vjp = unsqueeze_vjp,
                .shape_inputs = {1},
                .passage = opdef::Passage::kReshaped,
                .is_identity = keeps_shape});
}

}  // namespace onnxgrad::ops::reshape_op

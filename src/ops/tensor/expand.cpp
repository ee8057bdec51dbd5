#include "opdef/registry.h"
#include "ops/rules.h"

// Expand and Tile: repeated elements, whose gradients are summed.

namespace onnxgrad::ops::expand_op {
namespace {

// y = x broadcast;  dx = dy summed to the shape of x.
std::vector<Value*> expand_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.sum_to(ctx.cotangent(0), ctx.input(0))};
}

// Returns [r_0, d_0, r_1, d_1, ...]: the layout of the repetitions in the output.
Value* interleaved_shape(VjpContext& ctx, GraphBuilder& g) {
  const auto repeats = constant_ints(ctx.input(1));
  const auto dims = ctx.input(0)->type.static_dims();
  if (repeats && dims) {
    std::vector<std::int64_t> shape;
    for (std::size_t i = 0; i < dims->rank(); ++i) {
      shape.push_back((*repeats)[i]);
      shape.push_back((*dims)[i]);
    }
    return g.ints(shape);
  }
  Value* rows = g.unsqueeze(ctx.input(1), {1});
  Value* sizes = g.unsqueeze(shape_value(g, ctx.input(0)), {1});
  return g.reshape(g.concat({rows, sizes}, 1), {-1});
}

// y = x repeated r_a times along each axis a;  dx = dy summed over the repetitions.
std::vector<Value*> tile_vjp(VjpContext& ctx, GraphBuilder& g) {
  const auto rank = static_cast<std::int64_t>(required_rank(ctx, 0));
  if (rank == 0) return {ctx.cotangent(0), nullptr};
  std::vector<std::int64_t> repeat_axes;
  for (std::int64_t i = 0; i < rank; ++i) repeat_axes.push_back(2 * i);
  Value* repetitions = g.reshape(ctx.cotangent(0), interleaved_shape(ctx, g));
  return {g.reduce_sum(repetitions, repeat_axes, /*keepdims=*/false), nullptr};
}

bool keeps_shape(const Node& node) {
  const auto before = node.inputs[0]->type.static_dims();
  return before && before == node.outputs[0]->type.static_dims();
}

}  // namespace

void register_expand(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Expand",
                .since_version = 13,
                .differentiable_inputs = {0},
                .vjp = expand_vjp,
                .shape_inputs = {1},
                .passage = opdef::Passage::kRepeated,
                .is_identity = keeps_shape});
  registry.add({.op_type = "Tile",
                .since_version = 13,
                .differentiable_inputs = {0},
                .vjp = tile_vjp,
                .shape_inputs = {1},
                .passage = opdef::Passage::kRepeated,
                .is_identity = keeps_shape});
}

}  // namespace onnxgrad::ops::expand_op

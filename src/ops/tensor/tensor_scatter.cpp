#include "opdef/registry.h"
#include "ops/rules.h"

// TensorScatter: present = past with update[b, :, i, :] at position start_b + i of the axis, where
// start_b is write_indices[b], or 0; modulo the size of the axis if the mode is circular.

namespace onnxgrad::ops::tensor_scatter_op {
namespace {

// dpast = dpresent with zeros at the updated positions;
// dupdate[b, :, i, :] = dpresent[b, :, start_b + i, :].
std::vector<Value*> tensor_scatter_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  const bool is_circular = node.string_attribute("mode") == "circular";
  const auto rank = static_cast<std::int64_t>(required_rank(ctx, 0));
  const std::int64_t given = node.int_attribute("axis");
  const std::int64_t axis = given < 0 ? given + rank : given;
  Value* starts = ctx.num_inputs() > 2 ? ctx.input(2) : nullptr;
  Value* update = ctx.input(1);
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) {
    Value* zeros = zeros_of_shape(g, shape_value(g, update), ctx.cotangent(0));
    gradients[0] =
        g.op("TensorScatter", {ctx.cotangent(0), zeros, starts},
             {{"axis", given}, {"mode", std::string(is_circular ? "circular" : "linear")}});
  }
  if (ctx.needs(1)) {
    // Reshapes to [b, 1.., i, 1..] and expands to the shape of the update.
    const auto column = [&](Value* numbers, std::int64_t at) {
      std::vector<std::int64_t> shape(static_cast<std::size_t>(rank), 1);
      shape[static_cast<std::size_t>(at)] = -1;
      return g.reshape(numbers, shape);
    };
    Value* places = column(range_value(g, g.ints({0}), dim_value(g, update, axis)), axis);
    if (starts != nullptr) places = g.add(column(starts, 0), places);
    if (is_circular) places = g.op("Mod", {places, dim_value(g, ctx.input(0), axis)});
    places = g.expand(places, shape_value(g, update));
    gradients[1] = g.op("GatherElements", {ctx.cotangent(0), places}, {{"axis", axis}});
  }
  return gradients;
}

}  // namespace

void register_tensor_scatter(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "TensorScatter",
       .since_version = 24,
       .differentiable_inputs = {0, 1},
       .attributes = {axis_attribute("axis", -2), choice_attribute("mode", {"linear", "circular"})},
       .vjp = tensor_scatter_vjp});
}

}  // namespace onnxgrad::ops::tensor_scatter_op

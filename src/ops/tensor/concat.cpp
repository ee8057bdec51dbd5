#include <optional>

#include "opdef/registry.h"
#include "ops/rules.h"

// Concat and Split: each is the other's transpose.

namespace onnxgrad::ops::concat_op {
namespace {

// Returns the sizes of all inputs along the axis, if they are known.
std::optional<std::vector<std::int64_t>> known_sizes(VjpContext& ctx, std::int64_t axis) {
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < ctx.num_inputs(); ++i) {
    const auto size = known_dim(ctx.input(i), axis);
    if (!size) return std::nullopt;
    sizes.push_back(*size);
  }
  return sizes;
}

// y = [x_0, x_1, ...];  dx_i = its slice of dy: by Slice for few parts, by Split for many.
std::vector<Value*> concat_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t axis = ctx.node().int_attribute("axis");
  const std::size_t count = ctx.num_inputs();
  Value* dy = ctx.cotangent(0);
  if (count == 1) return {dy};
  const auto sizes = known_sizes(ctx, axis);
  std::size_t needed = 0;
  for (std::size_t i = 0; i < count; ++i) needed += ctx.needs(i) ? 1 : 0;
  if (sizes && 2 * needed <= count) {
    std::vector<Value*> gradients(count, nullptr);
    std::int64_t start = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t end = start + (*sizes)[i];
      if (ctx.needs(i)) gradients[i] = g.slice(dy, {start}, {end}, {axis});
      start = end;
    }
    return gradients;
  }
  std::vector<Value*> parts;
  if (!sizes) {
    for (std::size_t i = 0; i < count; ++i) parts.push_back(dim_value(g, ctx.input(i), axis));
  }
  Value* split = sizes ? g.ints(*sizes) : g.concat(parts, 0);
  return g.ops("Split", {dy, split}, count, {{"axis", axis}});
}

// [y_0, y_1, ...] = x;  dx = [dy_0, dy_1, ...], zeros for parts without a cotangent.
std::vector<Value*> split_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t axis = ctx.node().int_attribute("axis");
  std::vector<Value*> parts;
  for (std::size_t i = 0; i < ctx.node().outputs.size(); ++i) {
    Value* dy = ctx.cotangent(i);
    if (dy == nullptr) {
      Value* part = ctx.require_output(i);
      dy = zeros_of_shape(g, shape_value(g, part), part);
    }
    parts.push_back(dy);
  }
  return {parts.size() == 1 ? parts.front() : g.concat(parts, axis)};
}

}  // namespace

void register_concat(opdef::OpRegistry& registry) {
  AttributeSpec axis = axis_attribute("axis");
  axis.required = true;
  registry.add({.op_type = "Concat",
                .since_version = 13,
                .differentiable_inputs = {0, -1},
                .attributes = {axis},
                .vjp = concat_vjp,
                .is_identity = [](const Node& node) { return node.inputs.size() == 1; }});
  registry.add({.op_type = "Split",
                .since_version = 18,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis", 0),
                               {.name = "num_outputs",
                                .type = AttributeType::kInt,
                                .min = 1,
                                .max = std::int64_t{1} << 20}},
                .vjp = split_vjp,
                .planned_inputs = {1},
                .passage = opdef::Passage::kPartial,
                .is_identity = [](const Node& node) { return node.outputs.size() == 1; }});
}

}  // namespace onnxgrad::ops::concat_op

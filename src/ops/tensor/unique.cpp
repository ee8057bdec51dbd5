#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::unique_op {
namespace {

// y = x at `indices`, the first occurrences of distinct slices along the axis or of distinct
// elements of the flat x;  dx = dy at those positions, 0 elsewhere.
std::vector<Value*> unique_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* indices = ctx.require_output(1);
  Value* origin = ctx.node().find_attribute("axis") == nullptr
                      ? indices
                      : g.gather(position_numbers(g, x), indices, ctx.node().int_attribute("axis"));
  return {add_at_positions(g, origin, ctx.cotangent(0), x)};
}

}  // namespace

void register_unique(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Unique",
                .since_version = 11,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis"), flag_attribute("sorted", true)},
                .vjp = unique_vjp});
}

}  // namespace onnxgrad::ops::unique_op

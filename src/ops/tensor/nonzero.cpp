#include "opdef/registry.h"
#include "ops/rules.h"

// NonZero and Compress: the size of their results depends on the data.

namespace onnxgrad::ops::nonzero_op {
namespace {

// y = the slices of x along the axis (elements of the flat x without axis) whose condition is true;
// dx = dy put back there. The condition may be shorter than the axis.
std::vector<Value*> compress_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* taken = g.squeeze(g.op("NonZero", {ctx.input(1)}), {0});
  Value* numbers = position_numbers(g, x);
  Value* origin = ctx.node().find_attribute("axis") == nullptr
                      ? taken
                      : g.gather(numbers, taken, ctx.node().int_attribute("axis"));
  return {add_at_positions(g, origin, ctx.cotangent(0), x), nullptr};
}

}  // namespace

void register_nonzero(opdef::OpRegistry& registry) {
  registry.add({.op_type = "NonZero", .since_version = 13, .zero_gradient = true});
  registry.add({.op_type = "Compress",
                .since_version = 11,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis")},
                .vjp = compress_vjp});
}

}  // namespace onnxgrad::ops::nonzero_op

#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::topk_op {
namespace {

// values[j] = x[indices[j]] along the axis;  dx = dvalues scattered to the indices, which are
// distinct; 0 elsewhere.
std::vector<Value*> topk_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* zeros = zeros_of_shape(g, shape_value(g, ctx.input(0)), ctx.cotangent(0));
  Value* indices = ctx.require_output(1);
  return {g.op("ScatterElements", {zeros, indices, ctx.cotangent(0)},
               {{"axis", ctx.node().int_attribute("axis")}}),
          nullptr};
}

}  // namespace

void register_topk(opdef::OpRegistry& registry) {
  registry.add({.op_type = "TopK",
                .since_version = 24,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis", -1), flag_attribute("largest", true),
                               flag_attribute("sorted", true)},
                .vjp = topk_vjp,
                .planned_inputs = {1}});
}

}  // namespace onnxgrad::ops::topk_op

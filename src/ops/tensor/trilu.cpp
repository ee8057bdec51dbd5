#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::trilu_op {
namespace {

// y = x above (below) diagonal k, 0 elsewhere;  dx = the same part of dy.
std::vector<Value*> trilu_vjp(VjpContext& ctx, GraphBuilder& g) {
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  gradients[0] = g.op("Trilu", {ctx.cotangent(0), ctx.input(1)}, ctx.node().attributes);
  return gradients;
}

}  // namespace

void register_trilu(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Trilu",
                .since_version = 14,
                .differentiable_inputs = {0},
                .attributes = {flag_attribute("upper", true)},
                .vjp = trilu_vjp});
}

}  // namespace onnxgrad::ops::trilu_op

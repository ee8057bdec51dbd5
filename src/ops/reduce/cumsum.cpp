#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::cumsum_op {
namespace {

// y_i = sum_{j <= i} x_j (j < i if exclusive; from the other end if reverse);
// dx_j = sum_{i >= j} dy_i: a CumSum from the opposite end.
std::vector<Value*> cumsum_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  std::vector<Attribute> attributes;
  if (node.int_attribute("exclusive") != 0) attributes.push_back({"exclusive", std::int64_t{1}});
  if (node.int_attribute("reverse") == 0) attributes.push_back({"reverse", std::int64_t{1}});
  return {g.op("CumSum", {ctx.cotangent(0), ctx.input(1)}, std::move(attributes)), nullptr};
}

}  // namespace

void register_cumsum(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "CumSum",
       .since_version = 14,
       .differentiable_inputs = {0},
       .attributes = {flag_attribute("exclusive", false), flag_attribute("reverse", false)},
       .vjp = cumsum_vjp,
       .planned_inputs = {1}});
}

}  // namespace onnxgrad::ops::cumsum_op

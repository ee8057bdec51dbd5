#include <vector>

#include "opdef/registry.h"
#include "opdef/trip_count.h"
#include "ops/control/iteration.h"
#include "ops/rules.h"

// Loop: runs a body until its trip count is reached or its condition is false; states are carried
// from iteration to iteration, other results are stacked. The gradient is a Scan over the completed
// iterations, from the last one to the first: see iteration.h.

namespace onnxgrad::ops::loop_op {
namespace {

std::vector<Value*> loop_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  const ir::GraphPtr body = std::get<ir::GraphPtr>(*node.find_attribute("body"));
  IterationRoles roles{.body = body.get(),
                       .first_input = 2,
                       .first_formal = 2,
                       .first_result = 1,
                       .num_states = node.inputs.size() - 2,
                       .is_loop = true};
  roles.stacks_backward.resize(node.outputs.size() - roles.num_states, false);
  const auto count = opdef::fixed_trip_count(node);
  if (count) roles.length = ir::Dim(*count);
  roles.may_be_empty = !count || *count == 0;
  return iteration_vjp(ctx, g, roles);
}

}  // namespace

void register_loop(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Loop",
                .since_version = 25,
                .differentiable_inputs = {2, -1},
                .attributes = {{.name = "body", .type = AttributeType::kGraph, .required = true}},
                .vjp = loop_vjp,
                .shape_inputs = {0, 1}});
}

}  // namespace onnxgrad::ops::loop_op

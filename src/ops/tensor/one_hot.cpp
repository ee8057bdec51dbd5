#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::one_hot_op {
namespace {

// y = values[1] where the position along the new axis equals the index, else values[0]; dvalues =
// [sum of the other dy, sum of dy at the indices]. Indices and depth are discrete.
std::vector<Value*> one_hot_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (!ctx.needs(2)) return {};
  Value* dy = ctx.cotangent(0);
  Value* off_on = g.constant(Tensor::from(std::vector<double>{0, 1}, Dims{2}));
  // The new axis may have a known size even if the depth, which may be of any type, is not
  // constant.
  const std::int64_t axis = ctx.node().int_attribute("axis");
  const auto known = known_dim(dy, axis);
  Value* depth = known ? g.int_scalar(*known) : g.squeeze(dim_value(g, dy, axis), {0});
  Value* is_hot =
      g.op("OneHot", {ctx.input(0), depth, g.cast_like(off_on, dy)}, ctx.node().attributes);
  Value* is_cold = g.sub(g.scalar_like(dy, 1), is_hot);
  const auto sum = [&](Value* mask) {
    return g.unsqueeze(g.reduce_sum(g.mul(dy, mask), {}, /*keepdims=*/false), {0});
  };
  return {nullptr, nullptr, g.concat({sum(is_cold), sum(is_hot)}, 0)};
}

}  // namespace

void register_one_hot(opdef::OpRegistry& registry) {
  registry.add({.op_type = "OneHot",
                .since_version = 11,
                .differentiable_inputs = {0, 1, 2},
                .attributes = {axis_attribute("axis", -1)},
                .vjp = one_hot_vjp,
                .shape_inputs = {1}});
}

}  // namespace onnxgrad::ops::one_hot_op

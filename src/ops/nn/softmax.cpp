#include "opdef/registry.h"
#include "ops/rules.h"

// Softmax, LogSoftmax and Hardmax (ai.onnx 13). The softmax of a row of -inf (fully masked) is NaN;
// the rules return gradient 0 for such a row if nothing depends on it.

namespace onnxgrad::ops::softmax_op {

namespace {

// Returns x, with 0 for NaN elements whose cotangent `dy` is 0: elements that the loss does not
// depend on contribute nothing, whereas 0 times NaN would propagate. Every other NaN is kept.
Value* unused_nan_as_zero(GraphBuilder& g, Value* x, Value* dy) {
  Value* is_unused = g.equal(dy, g.scalar_like(dy, 0));
  return drop_where(g, g.op("And", {g.op("IsNaN", {x}), is_unused}), x);
}

// y = softmax(x) along axis;  dx = y * (dy - sum(y * dy, axis)).
std::vector<Value*> softmax_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t axis = ctx.node().int_attribute("axis");
  Value* dy = ctx.cotangent(0);
  Value* y = unused_nan_as_zero(g, ctx.output(0), dy);
  Value* dot = g.reduce_sum(g.mul(y, dy), {axis}, /*keepdims=*/true);
  return {g.mul(y, g.sub(dy, dot))};
}

// y = log(softmax(x)) along axis;  dx = dy - exp(y) * sum(dy, axis).
std::vector<Value*> log_softmax_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t axis = ctx.node().int_attribute("axis");
  Value* dy = ctx.cotangent(0);
  Value* sum = g.reduce_sum(dy, {axis}, /*keepdims=*/true);
  Value* probability = unused_nan_as_zero(g, g.exp(ctx.output(0)), dy);
  return {g.sub(dy, g.mul(probability, sum))};
}

}  // namespace

void register_softmax(opdef::OpRegistry& registry) {
  registry.add({
      .op_type = "Softmax",
      .since_version = 13,
      .differentiable_inputs = {0},
      .attributes = {axis_attribute("axis", -1)},
      .vjp = softmax_vjp,
  });
  registry.add({
      .op_type = "LogSoftmax",
      .since_version = 13,
      .differentiable_inputs = {0},
      .attributes = {axis_attribute("axis", -1)},
      .vjp = log_softmax_vjp,
  });
  // One at the first maximum, zero elsewhere: constant wherever it is differentiable.
  registry.add({.op_type = "Hardmax",
                .since_version = 13,
                .attributes = {axis_attribute("axis", -1)},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::softmax_op

#include "opdef/registry.h"
#include "ops/rules.h"

// Softmax, LogSoftmax and Hardmax (ai.onnx 13).

namespace onnxgrad::ops {

using opdef::VjpContext;

namespace {

// y = softmax(x) along axis;  dx = y * (dy - sum(y * dy, axis)).
std::vector<Value*> softmax_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t axis = ctx.node().int_attribute("axis", -1);
  Value* y = ctx.output(0);
  Value* dy = ctx.cotangent(0);
  Value* dot = g.reduce_sum(g.mul(y, dy), {axis}, /*keepdims=*/true);
  return {g.mul(y, g.sub(dy, dot))};
}

// y = log(softmax(x)) along axis;  dx = dy - exp(y) * sum(dy, axis).
std::vector<Value*> log_softmax_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t axis = ctx.node().int_attribute("axis", -1);
  Value* dy = ctx.cotangent(0);
  Value* sum = g.reduce_sum(dy, {axis}, /*keepdims=*/true);
  return {g.sub(dy, g.mul(g.exp(ctx.output(0)), sum))};
}

}  // namespace

void register_softmax(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Softmax",
                .since_version = 13,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis")},
                .vjp = softmax_vjp,
                .in_place = {{0, 0}}});
  registry.add({.op_type = "LogSoftmax",
                .since_version = 13,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis")},
                .vjp = log_softmax_vjp,
                .in_place = {{0, 0}}});
  // One at the first largest element, zero elsewhere: constant wherever it is differentiable.
  registry.add({.op_type = "Hardmax",
                .since_version = 13,
                .attributes = {axis_attribute("axis")},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops

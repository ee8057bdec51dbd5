#include <optional>

#include "opdef/registry.h"
#include "ops/rules.h"

// Dropout (ai.onnx 22): y = x * mask / (1 - ratio) in training mode, otherwise y = x and a mask of
// ones.

namespace onnxgrad::ops::dropout_op {

namespace {

constexpr double kDefaultRatio = 0.5;

// Returns the training mode if it is constant.
std::optional<bool> constant_mode(const Value* training_mode) {
  if (training_mode == nullptr) return false;
  if (!training_mode->is_constant()) return std::nullopt;
  const Tensor& tensor = training_mode->initializer;
  if (tensor.dtype() != DataType::kBool || tensor.num_elements() != 1) return std::nullopt;
  return tensor.to_int64s().front() != 0;
}

// Returns 1 / (1 - ratio) in y's dtype.
Value* scale_value(GraphBuilder& g, Value* ratio, Value* like) {
  if (ratio == nullptr) return g.scalar_like(like, 1 / (1 - kDefaultRatio));
  if (const auto number = constant_number(ratio)) return g.scalar_like(like, 1 / (1 - *number));
  return g.op("Reciprocal", {g.sub(g.scalar_like(like, 1), g.cast_like(ratio, like))});
}

// dratio = sum(dy * y) / (1 - ratio), since the mask is piecewise constant.
Value* ratio_gradient(VjpContext& ctx, GraphBuilder& g, Value* scale) {
  Value* along = g.reduce_sum(g.mul(ctx.cotangent(0), ctx.output(0)), {}, /*keepdims=*/false);
  Value* ratio = ctx.input(1);
  Value* slope = g.cast_like(g.mul(along, scale), ratio);
  return g.reshape(slope, shape_value(g, ratio));
}

// dx = dy * mask * scale, dratio as above; in inference mode dx = dy, dratio = 0.
std::vector<Value*> dropout_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);
  Value* training_mode = ctx.input(2);
  const std::optional<bool> mode = constant_mode(training_mode);
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (dy == nullptr) return grads;
  if (mode && !*mode) {
    grads[0] = dy;
    return grads;
  }
  Value* scale = scale_value(g, ctx.input(1), dy);
  if (ctx.needs(1)) {
    grads[1] = ratio_gradient(ctx, g, scale);
    if (!mode) grads[1] = keep_where(g, training_mode, grads[1]);
  }
  if (!ctx.needs(0)) return grads;
  if (!mode) scale = g.where(training_mode, scale, g.scalar_like(dy, 1));
  grads[0] = g.mul(dy, g.mul(g.cast_like(ctx.require_output(1), dy), scale));
  return grads;
}

std::vector<ir::StateBinding> switch_on_dropout(Node& node, GraphBuilder& g) {
  if (constant_mode(node.input(2)) != false) return {};
  node.inputs.resize(3, nullptr);
  node.inputs[2] = g.constant(Tensor::scalar(true), "training_mode");
  return {};
}

}  // namespace

void register_dropout(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Dropout",
                .since_version = 22,
                .differentiable_inputs = {0, 1},
                .attributes = {{.name = "seed", .type = AttributeType::kInt}},
                .vjp = dropout_vjp,
                .passage = opdef::Passage::kConverted,
                .is_random = true,
                .switch_on_training = switch_on_dropout});
}

}  // namespace onnxgrad::ops::dropout_op

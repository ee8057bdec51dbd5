#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/nn/window.h"
#include "ops/rules.h"

// BatchNormalization (ai.onnx 15) and InstanceNormalization (ai.onnx 22) with the functions of
// their gradients. Both are, with the channels on axis 1 and r = 1 / sqrt(variance + epsilon),
//   y = scale * h + bias,  h = (x - mean) * r;
// the statistics are taken over all axes except the channels' (BatchNormalization in training
// mode), over the spatial axes (InstanceNormalization), or given (BatchNormalization otherwise).

namespace onnxgrad::ops::batch_normalization_op {

namespace {

std::size_t rank_of(const Node& node, const Value* x) {
  const auto rank = known_rank(x);
  if (rank && *rank >= 2) return *rank;
  throw GradientError(
      problem_at(node, "the rank of the input is not known",
                 "The statistics are taken over all axes except the channels'.",
                 "Declare the shape of the input in the model; symbols are allowed."));
}

std::vector<std::int64_t> all_axes_but_channels(std::size_t rank) {
  std::vector<std::int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  axes.erase(axes.begin() + 1);
  return axes;
}

// Returns the axes to unsqueeze so that [C] broadcasts against [N, C, D...].
std::vector<std::int64_t> after_channels(std::size_t rank) {
  std::vector<std::int64_t> axes(rank - 2);
  std::iota(axes.begin(), axes.end(), 1);
  return axes;
}

// Computes (dx, dscale, dbias) from (dy, x, scale) with statistics over `axes` of x:
//   dh = dy * scale,  dx = r * (dh - mean(dh) - h * mean(dh * h)),
//   dscale = sum(dy * h), dbias = sum(dy) over all axes but the channels'.
// Ioffe and Szegedy, Batch Normalization, ICML 2015, section 3.
ir::Function normalization_grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                                     const std::vector<Attribute>& attributes,
                                     std::int64_t first_axis) {
  Node node;
  node.op_type = base_name;
  node.attributes = attributes;
  const std::size_t rank = rank_of(node, inputs.at(1));
  const float epsilon = node.float_attribute("epsilon");
  FunctionBody f(base_name,
                 fmt::format("rank{}_eps{:08x}", rank, std::bit_cast<std::uint32_t>(epsilon)),
                 attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  Value* scale = f.input("scale");
  std::vector<std::int64_t> axes = all_axes_but_channels(rank);
  const std::vector<std::int64_t> sum_axes = axes;
  if (first_axis > 0) axes.erase(axes.begin());
  const auto mean = [&](Value* value) { return f.op("ReduceMean", {value, f.ints(axes)}); };

  Value* centred = f.sub(x, mean(x));
  Value* variance = mean(f.mul(centred, centred));
  Value* deviation = f.op("Sqrt", {f.add(variance, f.scalar_like(x, epsilon))});
  Value* h = f.div(centred, deviation);
  Value* dscale = f.reduce_sum(f.mul(dy, h), sum_axes, /*keepdims=*/false);
  Value* dbias = f.reduce_sum(dy, sum_axes, /*keepdims=*/false);
  Value* wide_scale = rank > 2 ? f.unsqueeze(scale, after_channels(rank)) : scale;
  Value* dh = f.mul(dy, wide_scale);
  Value* inner = f.sub(f.sub(dh, mean(dh)), f.mul(h, mean(f.mul(dh, h))));
  return std::move(f).finish({f.div(inner, deviation), dscale, dbias});
}

ir::Function batch_grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                             const std::vector<Attribute>& attributes) {
  return normalization_grad_body(base_name, inputs, attributes, 0);
}

ir::Function instance_grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                                const std::vector<Attribute>& attributes) {
  return normalization_grad_body(base_name, inputs, attributes, 2);
}

Attribute epsilon_of(const Node& node) {
  return {.name = "epsilon", .value = node.float_attribute("epsilon")};
}

// Reshapes [C] to [C, 1, ...], in x's dtype.
Value* per_channel(GraphBuilder& g, Value* vector, Value* x, std::size_t rank) {
  return g.unsqueeze(g.cast_like(vector, x), after_channels(rank));
}

Tensor ones_of(DataType dtype, const Dims& dims) {
  Tensor ones = Tensor::zeros(DataType::kFloat32, dims);
  std::ranges::fill(ones.mutable_data<float>(), 1.0F);
  return ones.cast(dtype);
}

// Returns true if the per-channel inputs have static shapes and x's dtype.
bool is_plain(const Node& node) {
  const DataType dtype = node.inputs[0]->dtype();
  return known_dim(node.input(1), 0) && std::ranges::all_of(node.inputs, [&](const Value* input) {
           return input != nullptr && input->dtype() == dtype;
         });
}

// Inference: the normalisation is linear, so that its gradient is a normalisation too:
//   dx = normalisation(dy, scale, 0, 0, variance),
//   dscale = sum(dy * h), h = normalisation(x, 1, 0, mean, variance), dbias = sum(dy).
std::vector<Value*> plain_inference_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* dy = ctx.cotangent(0);
  const auto axes = all_axes_but_channels(rank_of(ctx.node(), x));
  const Dims channels = ctx.input(1)->type.fixed_dims();
  Value* zeros = g.constant(Tensor::zeros(x->dtype(), channels), "zeros");
  const auto normalise = [&](Value* image, Value* scale, Value* mean) {
    return g.op("BatchNormalization", {image, scale, zeros, mean, ctx.input(4)},
                {epsilon_of(ctx.node())});
  };
  std::vector<Value*> grads(5, nullptr);
  if (ctx.needs(0)) grads[0] = normalise(dy, ctx.input(1), zeros);
  if (ctx.needs(1)) {
    Value* ones = g.constant(ones_of(x->dtype(), channels), "ones");
    grads[1] = g.reduce_sum(g.mul(dy, normalise(x, ones, ctx.input(3))), axes, /*keepdims=*/false);
  }
  if (ctx.needs(2)) grads[2] = g.reduce_sum(dy, axes, /*keepdims=*/false);
  return grads;
}

// Inference with given statistics: y is linear in x, scale and bias.
//   dx = dy * scale * r, dscale = sum(dy * h), dbias = sum(dy),
//   dmean = -scale * r * dbias, dvariance = -scale * r^2 / 2 * dscale.
std::vector<Value*> inference_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (!ctx.needs(3) && !ctx.needs(4) && is_plain(ctx.node())) return plain_inference_vjp(ctx, g);
  const Node& node = ctx.node();
  Value* x = ctx.input(0);
  Value* dy = ctx.cotangent(0);
  const std::size_t rank = rank_of(node, x);
  const auto axes = all_axes_but_channels(rank);
  Value* scale = g.cast_like(ctx.input(1), x);
  Value* variance = g.cast_like(ctx.input(4), x);
  const double epsilon = node.float_attribute("epsilon");
  Value* deviation = g.sqrt(g.add(variance, g.scalar_like(x, epsilon)));  // 1 / r
  Value* slope = g.div(scale, deviation);
  std::vector<Value*> grads(5, nullptr);
  if (ctx.needs(0)) grads[0] = g.mul(dy, per_channel(g, slope, x, rank));
  Value* dbias = nullptr;
  if (ctx.needs(2) || ctx.needs(3)) dbias = g.reduce_sum(dy, axes, /*keepdims=*/false);
  Value* dscale = nullptr;
  if (ctx.needs(1) || ctx.needs(4)) {
    Value* centred = g.sub(x, per_channel(g, ctx.input(3), x, rank));
    dscale = g.div(g.reduce_sum(g.mul(dy, centred), axes, /*keepdims=*/false), deviation);
  }
  if (ctx.needs(1)) grads[1] = g.cast_like(dscale, ctx.input(1));
  if (ctx.needs(2)) grads[2] = g.cast_like(dbias, ctx.input(2));
  if (ctx.needs(3)) grads[3] = g.cast_like(g.neg(g.mul(slope, dbias)), ctx.input(3));
  if (ctx.needs(4)) {
    Value* per_variance = g.scale(g.div(slope, deviation), -0.5);
    grads[4] = g.cast_like(g.mul(per_variance, dscale), ctx.input(4));
  }
  return grads;
}

// running = old * momentum + batch * (1 - momentum), for the batch's mean and variance.
// Adds the contribution of the running statistics' cotangents to dx; sets the gradients of the old
// statistics.
void add_running_statistics(VjpContext& ctx, GraphBuilder& g, std::vector<Value*>& grads) {
  const double momentum = ctx.node().float_attribute("momentum");
  Value* x = ctx.input(0);
  const std::size_t rank = rank_of(ctx.node(), x);
  const auto axes = all_axes_but_channels(rank);
  Value* dx = nullptr;
  const auto add_to_dx = [&](Value* term) { dx = dx == nullptr ? term : g.add(dx, term); };
  Value* count = g.cast_like(g.div(g.size_of(x), g.squeeze(dim_value(g, x, 1), {0})), x);
  if (Value* v = ctx.cotangent(1)) {
    if (ctx.needs(3)) grads[3] = g.scale(v, momentum);
    add_to_dx(g.div(per_channel(g, g.scale(v, 1 - momentum), x, rank), count));
  }
  if (Value* v = ctx.cotangent(2)) {
    if (ctx.needs(4)) grads[4] = g.scale(v, momentum);
    Value* centred = g.sub(x, g.reduce_mean(x, axes, /*keepdims=*/true));
    Value* factor = g.div(per_channel(g, g.scale(v, 2 * (1 - momentum)), x, rank), count);
    add_to_dx(g.mul(factor, centred));
  }
  if (dx == nullptr || !ctx.needs(0)) return;
  grads[0] = grads[0] == nullptr ? g.expand(dx, shape_value(g, x)) : g.add(grads[0], dx);
}

std::vector<Value*> batch_normalization_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (ctx.node().int_attribute("training_mode") == 0) return inference_vjp(ctx, g);
  std::vector<Value*> grads(5, nullptr);
  if (Value* dy = ctx.cotangent(0)) {
    Value* x = ctx.input(0);
    const auto call = g.call("BatchNormalizationGrad", {dy, x, g.cast_like(ctx.input(1), x)}, 3,
                             {epsilon_of(ctx.node())});
    if (ctx.needs(0)) grads[0] = call[0];
    if (ctx.needs(1)) grads[1] = g.cast_like(call[1], ctx.input(1));
    if (ctx.needs(2)) grads[2] = g.cast_like(call[2], ctx.input(2));
  }
  if (ctx.cotangent(1) != nullptr || ctx.cotangent(2) != nullptr) {
    add_running_statistics(ctx, g, grads);
  }
  return grads;
}

std::vector<Value*> instance_normalization_vjp(VjpContext& ctx, GraphBuilder& g) {
  return g.call("InstanceNormalizationGrad", {ctx.cotangent(0), ctx.input(0), ctx.input(1)}, 3,
                {epsilon_of(ctx.node())});
}

AttributeSpec epsilon_spec() {
  return {.name = "epsilon",
          .type = AttributeType::kFloat,
          .min_float = 0,
          .max_float = 1e30,
          .default_value = 1e-5F};
}

// Switches a node to training mode: it uses the batch's mean and variance and updates the running
// ones.
std::vector<ir::StateBinding> switch_on_batch_normalization(Node& node, GraphBuilder& g) {
  Value* mean = node.input(3);
  Value* variance = node.input(4);
  const bool is_ready = mean != nullptr && variance != nullptr && mean != variance &&
                        mean->is_initializer() && variance->is_initializer();
  if (!is_ready || node.int_attribute("training_mode") != 0) return {};
  node.set_attribute("training_mode", std::int64_t{1});
  ir::Graph& graph = g.graph();
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const std::string hint = node.outputs[0]->name + (i == 1 ? "_running_mean" : "_running_var");
    ir::Graph::set_output(&node, i, graph.add_value(graph.names().unique(hint)));
  }
  g.inferer().infer(node);
  return {{.input = mean, .output = node.outputs[1]},
          {.input = variance, .output = node.outputs[2]}};
}

}  // namespace

void register_batch_normalization(opdef::OpRegistry& registry) {
  registry.add({.op_type = "BatchNormalization",
                .since_version = 15,
                .differentiable_inputs = {0, 1, 2, 3, 4},
                .attributes = {epsilon_spec(), float_attribute("momentum", 0.9F),
                               flag_attribute("training_mode", false)},
                .vjp = batch_normalization_vjp,
                .weight_inputs = {1, 2},
                .switch_on_training = switch_on_batch_normalization});
  registry.add({.op_type = "InstanceNormalization",
                .since_version = 22,
                .differentiable_inputs = {0, 1, 2},
                .attributes = {epsilon_spec()},
                .vjp = instance_normalization_vjp,
                .weight_inputs = {1, 2}});
  // The gradient functions have no rule: second derivatives go through their bodies.
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "BatchNormalizationGrad",
                .attributes = {epsilon_spec()},
                .function_body = batch_grad_body});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "InstanceNormalizationGrad",
                .attributes = {epsilon_spec()},
                .function_body = instance_grad_body});
}

}  // namespace onnxgrad::ops::batch_normalization_op

#include <fmt/format.h>

#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/nn/window.h"
#include "ops/rules.h"

// LayerNormalization (ai.onnx 17) and the function of its gradient:
//   y = scale * h + bias,  h = (x - mean) * r,  r = 1 / sqrt(variance + epsilon),
// with statistics over the axes from `axis` on. float64 is computed in float64 for any stash_type.

namespace onnxgrad::ops::layer_normalization_op {

namespace {

// Returns the axes from `axis` to the last one, as negative numbers.
std::vector<std::int64_t> normalized_axes(const Node& node, const Value* x) {
  std::int64_t axis = node.int_attribute("axis");
  if (axis >= 0) {
    const auto rank = known_rank(x);
    if (!rank || axis >= static_cast<std::int64_t>(*rank)) {
      throw GradientError(
          problem_at(node, "the rank of the input is not known",
                     "A positive axis does not determine the number of axes after it.",
                     "Declare the shape of the input in the model; symbols are allowed."));
    }
    axis -= static_cast<std::int64_t>(*rank);
  }
  std::vector<std::int64_t> axes(static_cast<std::size_t>(-axis));
  std::iota(axes.begin(), axes.end(), axis);
  return axes;
}

// Returns axes 0 to `axis` - 1, along which scale and bias broadcast.
std::vector<std::int64_t> leading_axes(std::size_t rank, std::size_t num_normalized) {
  std::vector<std::int64_t> axes(rank - num_normalized);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

// Computes (dx, dscale, dbias) from (dy, x, scale), scale having the shape of the normalised axes:
//   dh = dy * scale,  dx = r * (dh - mean(dh) - h * mean(dh * h)).
// Ba, Kiros and Hinton, Layer Normalization, 2016.
ir::Function grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                       const std::vector<Attribute>& attributes) {
  Node node;
  node.op_type = base_name;
  node.attributes = attributes;
  const float epsilon = node.float_attribute("epsilon");
  const Value* given = inputs.at(1);
  const std::vector<std::int64_t> axes = normalized_axes(node, given);
  const std::size_t rank = given->type.rank();
  FunctionBody f(base_name,
                 fmt::format("rank{}_axes{}_eps{:08x}", rank, axes.size(),
                             std::bit_cast<std::uint32_t>(epsilon)),
                 attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  Value* scale = f.input("scale");
  const auto mean = [&](Value* value) { return f.op("ReduceMean", {value, f.ints(axes)}); };
  Value* centred = f.sub(x, mean(x));
  Value* variance = mean(f.mul(centred, centred));
  Value* deviation = f.op("Sqrt", {f.add(variance, f.scalar_like(x, epsilon))});
  Value* h = f.div(centred, deviation);
  Value* dh = f.mul(dy, scale);
  Value* inner = f.sub(f.sub(dh, mean(dh)), f.mul(h, mean(f.mul(dh, h))));
  Value* dscale = f.mul(dy, h);
  Value* dbias = dy;
  const auto leading = leading_axes(rank, axes.size());
  if (!leading.empty()) {
    dscale = f.reduce_sum(dscale, leading, /*keepdims=*/false);
    dbias = f.reduce_sum(dbias, leading, /*keepdims=*/false);
  } else {
    dbias = f.op("Identity", {dbias});
  }
  return std::move(f).finish({f.div(inner, deviation), dscale, dbias});
}

bool has_normalized_shape(const Value* x, const Value* scale, std::size_t num_axes) {
  const auto x_rank = known_rank(x);
  const auto scale_rank = known_rank(scale);
  if (!x_rank || !scale_rank || *scale_rank != num_axes) return false;
  for (std::size_t i = 0; i < num_axes; ++i) {
    const ir::Dim& dim = (*x->type.shape)[*x_rank - num_axes + i];
    if (!dim.surely_equals((*scale->type.shape)[i])) return false;
  }
  return true;
}

// Intermediate values of a gradient written with standard operators.
struct Normalized {
  Value* centred = nullptr;
  Value* deviation = nullptr;  // 1 / r
  Value* h = nullptr;
};

Normalized normalize(GraphBuilder& g, Value* x, const std::vector<std::int64_t>& axes,
                     double epsilon) {
  Normalized n;
  n.centred = g.sub(x, g.reduce_mean(x, axes, /*keepdims=*/true));
  Value* variance = g.reduce_mean(g.mul(n.centred, n.centred), axes, /*keepdims=*/true);
  n.deviation = g.sqrt(g.add(variance, g.scalar_like(x, epsilon)));
  n.h = g.div(n.centred, n.deviation);
  return n;
}

// Gradient for scales and biases that broadcast other than along leading axes.
std::vector<Value*> broadcast_vjp(VjpContext& ctx, GraphBuilder& g, const Normalized& n,
                                  const std::vector<std::int64_t>& axes) {
  Value* dy = ctx.cotangent(0);
  Value* scale = ctx.input(1);
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) {
    Value* dh = g.mul(dy, scale);
    Value* mean = g.reduce_mean(dh, axes, /*keepdims=*/true);
    Value* dot = g.reduce_mean(g.mul(dh, n.h), axes, /*keepdims=*/true);
    grads[0] = g.div(g.sub(g.sub(dh, mean), g.mul(n.h, dot)), n.deviation);
  }
  if (ctx.needs(1)) grads[1] = g.sum_to(g.mul(dy, n.h), scale);
  if (ctx.num_inputs() > 2 && ctx.needs(2)) grads[2] = g.sum_to(dy, ctx.input(2));
  return grads;
}

// Contribution to dx of the cotangents of the second and third output, mean and r:
//   v_mean / count  and  -v_r * r^3 * (x - mean) / count.
Value* statistics_vjp(VjpContext& ctx, GraphBuilder& g, const Normalized& n,
                      const std::vector<std::int64_t>& axes) {
  Value* x = ctx.input(0);
  Value* count = g.ints({1});
  for (const std::int64_t axis : axes) count = g.mul(count, dim_value(g, x, axis));
  count = g.cast_like(count, x);
  Value* dx = nullptr;
  if (Value* v = ctx.cotangent(1)) {
    dx = g.expand(g.div(g.cast_like(v, x), count), shape_value(g, x));
  }
  if (Value* v = ctx.cotangent(2)) {
    Value* cube = g.mul(n.deviation, g.mul(n.deviation, n.deviation));
    Value* term = g.neg(g.mul(n.centred, g.div(g.cast_like(v, x), g.mul(cube, count))));
    dx = dx == nullptr ? term : g.add(dx, term);
  }
  return dx;
}

std::vector<Value*> layer_normalization_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  Value* x = ctx.input(0);
  const auto axes = normalized_axes(node, x);
  const double epsilon = node.float_attribute("epsilon");
  const bool has_statistics = ctx.cotangent(1) != nullptr || ctx.cotangent(2) != nullptr;
  const bool has_bias = ctx.num_inputs() > 2 && ctx.input(2) != nullptr;
  const bool is_plain = has_normalized_shape(x, ctx.input(1), axes.size()) &&
                        (!has_bias || has_normalized_shape(x, ctx.input(2), axes.size())) &&
                        x->type.has_rank();
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (Value* dy = ctx.cotangent(0)) {
    if (is_plain) {
      const std::vector<Attribute> call = {
          {.name = "axis", .value = node.int_attribute("axis")},
          {.name = "epsilon", .value = node.float_attribute("epsilon")}};
      grads = g.call("LayerNormalizationGrad", {dy, x, ctx.input(1)}, 3, call);
      grads.resize(ctx.num_inputs());
    } else {
      grads = broadcast_vjp(ctx, g, normalize(g, x, axes, epsilon), axes);
    }
  }
  if (has_statistics && ctx.needs(0)) {
    Value* dx = statistics_vjp(ctx, g, normalize(g, x, axes, epsilon), axes);
    grads[0] = grads[0] == nullptr ? dx : g.add(grads[0], dx);
  }
  return grads;
}

AttributeSpec epsilon_spec() {
  return {.name = "epsilon",
          .type = AttributeType::kFloat,
          .min_float = 0,
          .max_float = 1e30,
          .default_value = 1e-5F};
}

}  // namespace

void register_layer_normalization(opdef::OpRegistry& registry) {
  registry.add({.op_type = "LayerNormalization",
                .since_version = 17,
                .differentiable_inputs = {0, 1, 2},
                .attributes = {axis_attribute("axis", -1),
                               epsilon_spec(),
                               {.name = "stash_type",
                                .type = AttributeType::kInt,
                                .min = 1,
                                .max = 16,
                                .default_value = std::int64_t{1}}},
                .vjp = layer_normalization_vjp,
                .weight_inputs = {1, 2}});
  // The gradient function has no rule: second derivatives go through its body.
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "LayerNormalizationGrad",
                .attributes = {axis_attribute("axis", -1), epsilon_spec()},
                .function_body = grad_body});
}

}  // namespace onnxgrad::ops::layer_normalization_op

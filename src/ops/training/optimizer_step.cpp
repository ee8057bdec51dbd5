#include <fmt/format.h>

#include <array>
#include <utility>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Adagrad, Adam and Momentum (ai.onnx.preview.training 1): optimizer steps as operators. R is the
// learning rate and T the number of updates done, both scalars; then n tensors in each role: the
// weights (X), their gradients (G), then their slots. When a model is loaded, each node becomes
// element-wise operators, which are differentiated and exported like any others. The formulas are
// those of ONNX's Operators.md (domain ai.onnx.preview.training).

namespace onnxgrad::ops::optimizer_step_op {
namespace {

constexpr std::string_view kDomain = "ai.onnx.preview.training";
constexpr std::size_t kFirstTensor = 2;  // after R and T

// Tensors of one of the n steps, by role.
template <std::size_t kRoles>
using Tensors = std::array<Value*, kRoles>;

[[noreturn]] void refuse(const Node& node, std::string what, std::string detail) {
  throw ModelError({.what = std::move(what),
                    .where = {.node = node.name, .op_type = node.op_type},
                    .detail = std::move(detail),
                    .hint = "Give R, T, then all X, all gradients, and all of each slot, in the "
                            "same order and with the same shapes."});
}

// Returns the n groups of tensors of one step each; the node's inputs are grouped by role.
template <std::size_t kRoles>
std::vector<Tensors<kRoles>> group_tensors(const Node& node) {
  const std::size_t tensors = node.inputs.size() - kFirstTensor;
  const std::size_t count = tensors / kRoles;
  if (count == 0 || tensors % kRoles != 0) {
    refuse(node, fmt::format("{} tensors after R and T", tensors),
           fmt::format("Each step takes {} of them.", kRoles));
  }
  if (node.outputs.size() > count * (kRoles - 1)) {
    refuse(node, fmt::format("{} outputs", node.outputs.size()),
           fmt::format("{} steps have {} results each.", count, kRoles - 1));
  }
  std::vector<Tensors<kRoles>> groups(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t role = 0; role < kRoles; ++role) {
      Value* value = node.input(kFirstTensor + role * count + i);
      groups[i][role] = value;
      const Value* x = groups[i][0];
      const auto given = value->type.static_dims();
      const auto wanted = x->type.static_dims();
      const bool fits = value->dtype() == x->dtype() && (!given || !wanted || *given == *wanted);
      if (fits) continue;
      refuse(node,
             fmt::format("'{}' is {}, but '{}' is {}", value->name, value->type.to_string(),
                         x->name, x->type.to_string()),
             "A gradient and a slot have the type and shape of their tensor.");
    }
  }
  return groups;
}

// Reshapes R or T to a scalar, without the axes of size 1 that some exporters add.
Value* as_scalar(GraphBuilder& g, Value* x) {
  return x->type.has_rank() && x->type.rank() == 0 ? x : g.reshape(x, std::vector<std::int64_t>{});
}

// Returns norm_coefficient * x + gradient, the gradient with an L2 penalty.
Value* regularized(GraphBuilder& g, const Node& node, Value* x, Value* gradient) {
  const auto norm = static_cast<double>(node.float_attribute("norm_coefficient"));
  return norm == 0 ? gradient : g.add(g.scale(x, norm), gradient);
}

// Returns sqrt(h) for h >= 0, with gradient 0 instead of infinity at 0.
Value* safe_sqrt(GraphBuilder& g, Value* h) {
  Value* zero = g.scalar_like(h, 0);
  Value* is_positive = g.greater(h, zero);
  return g.where(is_positive, g.sqrt(g.where(is_positive, h, g.scalar_like(h, 1))), zero);
}

// Returns the results of all steps, grouped by role as the node's outputs are.
template <std::size_t kResults>
std::vector<Value*> outputs_of(const Node& node, const std::vector<Tensors<kResults>>& results) {
  std::vector<Value*> outputs;
  for (std::size_t role = 0; role < kResults; ++role) {
    for (const Tensors<kResults>& result : results) outputs.push_back(result[role]);
  }
  outputs.resize(node.outputs.size());
  return outputs;
}

// r = R / (1 + T decay_factor);  g = norm_coefficient X + G
// H' = H + g^2;  X' = X - r g / (sqrt(H') + epsilon)
std::optional<std::vector<Value*>> lower_adagrad(const Node& node, GraphBuilder& g) {
  const auto groups = group_tensors<3>(node);
  Value* rate = as_scalar(g, node.input(0));
  const auto decay = static_cast<double>(node.float_attribute("decay_factor"));
  if (decay != 0) {
    Value* steps = g.cast_like(as_scalar(g, node.input(1)), rate);
    rate = g.div(rate, g.add(g.scalar_like(rate, 1), g.scale(steps, decay)));
  }
  const auto epsilon = static_cast<double>(node.float_attribute("epsilon"));
  std::vector<Tensors<2>> results;
  for (const auto& [x, gradient, h] : groups) {
    Value* slope = regularized(g, node, x, gradient);
    Value* next_h = g.add(h, g.mul(slope, slope));
    Value* root = g.add(safe_sqrt(g, next_h), g.scalar_like(x, epsilon));
    Value* next_x = g.sub(x, g.div(g.mul(g.cast_like(rate, x), slope), root));
    results.push_back({next_x, next_h});
  }
  return outputs_of<2>(node, results);
}

// Returns R sqrt(1 - beta^T) / (1 - alpha^T) in float64, and R itself for T = 0.
Value* corrected_rate(GraphBuilder& g, const Node& node) {
  Value* rate = g.cast(as_scalar(g, node.input(0)), DataType::kFloat64);
  Value* steps = as_scalar(g, node.input(1));
  Value* is_later = g.greater(steps, g.int_scalar(0));
  // T = 0 is replaced by 1, so that neither branch of Where divides by zero.
  Value* t = g.cast(g.where(is_later, steps, g.int_scalar(1)), DataType::kFloat64);
  const auto rest = [&](const char* base) {  // 1 - base^T
    const auto number = static_cast<double>(node.float_attribute(base));
    return g.sub(g.scalar_like(t, 1), g.pow(g.scalar_like(t, number), t));
  };
  Value* corrected = g.div(g.mul(rate, g.sqrt(rest("beta"))), rest("alpha"));
  return g.where(is_later, corrected, rate);
}

// g = norm_coefficient X + G;  V' = alpha V + (1 - alpha) g;  H' = beta H + (1 - beta) g^2
// r = R sqrt(1 - beta^T) / (1 - alpha^T), or R for T = 0
// X' = (1 - norm_coefficient_post) (X - r V' / (sqrt(H') + epsilon))
std::optional<std::vector<Value*>> lower_adam(const Node& node, GraphBuilder& g) {
  const auto groups = group_tensors<4>(node);
  Value* rate = corrected_rate(g, node);
  const auto alpha = static_cast<double>(node.float_attribute("alpha"));
  const auto beta = static_cast<double>(node.float_attribute("beta"));
  const auto epsilon = static_cast<double>(node.float_attribute("epsilon"));
  const auto post = static_cast<double>(node.float_attribute("norm_coefficient_post"));
  std::vector<Tensors<3>> results;
  for (const auto& [x, gradient, v, h] : groups) {
    Value* slope = regularized(g, node, x, gradient);
    Value* next_v = g.add(g.scale(v, alpha), g.scale(slope, 1 - alpha));
    Value* next_h = g.add(g.scale(h, beta), g.scale(g.mul(slope, slope), 1 - beta));
    Value* root = g.add(safe_sqrt(g, next_h), g.scalar_like(x, epsilon));
    Value* next_x = g.sub(x, g.mul(g.cast_like(rate, x), g.div(next_v, root)));
    if (post != 0) next_x = g.scale(next_x, 1 - post);
    results.push_back({next_x, next_v, next_h});
  }
  return outputs_of<3>(node, results);
}

// g = norm_coefficient X + G;  V' = alpha V + b g, b = beta, or 1 for T = 0
// standard: X' = X - R V';  nesterov: X' = X - R (g + alpha V')
std::optional<std::vector<Value*>> lower_momentum(const Node& node, GraphBuilder& g) {
  const auto groups = group_tensors<3>(node);
  Value* rate = as_scalar(g, node.input(0));
  Value* is_later = g.greater(as_scalar(g, node.input(1)), g.int_scalar(0));
  const auto alpha = static_cast<double>(node.float_attribute("alpha"));
  const auto beta = static_cast<double>(node.float_attribute("beta"));
  const bool is_nesterov = node.string_attribute("mode") == "nesterov";
  std::vector<Tensors<2>> results;
  for (const auto& [x, gradient, v] : groups) {
    Value* slope = regularized(g, node, x, gradient);
    Value* weighted = slope;
    if (beta != 1) {
      weighted = g.mul(slope, g.where(is_later, g.scalar_like(x, beta), g.scalar_like(x, 1)));
    }
    Value* next_v = g.add(g.scale(v, alpha), weighted);
    Value* step = is_nesterov ? g.add(slope, g.scale(next_v, alpha)) : next_v;
    results.push_back({g.sub(x, g.mul(g.cast_like(rate, x), step)), next_v});
  }
  return outputs_of<2>(node, results);
}

AttributeSpec number(std::string_view name, std::optional<float> default_value = {}) {
  AttributeSpec spec{
      .name = name, .type = AttributeType::kFloat, .required = !default_value.has_value()};
  if (default_value) spec.default_value = *default_value;
  return spec;
}

}  // namespace

void register_optimizer_step(opdef::OpRegistry& registry) {
  registry.add({.domain = kDomain,
                .op_type = "Adagrad",
                .attributes = {number("decay_factor", 0.0F), number("epsilon", 1e-6F),
                               number("norm_coefficient", 0.0F)},
                .lower = lower_adagrad});
  registry.add(
      {.domain = kDomain,
       .op_type = "Adam",
       .attributes = {number("alpha", 0.9F), number("beta", 0.999F), number("epsilon", 1e-6F),
                      number("norm_coefficient", 0.0F), number("norm_coefficient_post", 0.0F)},
       .lower = lower_adam});
  registry.add({.domain = kDomain,
                .op_type = "Momentum",
                .attributes = {number("alpha"),
                               number("beta"),
                               number("norm_coefficient"),
                               {.name = "mode",
                                .type = AttributeType::kString,
                                .required = true,
                                .choices = {"standard", "nesterov"}}},
                .lower = lower_momentum});
}

}  // namespace onnxgrad::ops::optimizer_step_op

#include <numeric>
#include <vector>

#include "opdef/registry.h"
#include "ops/nn/window.h"
#include "ops/rules.h"

// LpPool and GlobalLpPool: y = (sum of |x|^p over each window)^(1/p).

namespace onnxgrad::ops::lp_pool_op {
namespace {

// Returns |x|^p.
Value* magnitudes(GraphBuilder& g, Value* x, std::int64_t p) {
  if (p == 1) return g.abs(x);
  if (p == 2) return g.mul(x, x);
  return g.pow(g.abs(x), g.scalar_like(x, static_cast<double>(p)));
}

// Returns sum^(1/p), with gradient 0 at 0.
Value* root(GraphBuilder& g, Value* sum, std::int64_t p) {
  if (p == 1) return sum;
  Value* zero = g.scalar_like(sum, 0);
  Value* is_zero = g.equal(sum, zero);
  Value* safe = g.where(is_zero, g.scalar_like(sum, 1), sum);
  Value* result =
      p == 2 ? g.sqrt(safe) : g.pow(safe, g.scalar_like(sum, 1 / static_cast<double>(p)));
  return g.where(is_zero, zero, result);
}

struct Pads {
  std::vector<Value*> begins;  // int64 [1] each
  std::vector<Value*> ends;
};

// Returns the pads with which the windows that ceil_mode adds fit the input exactly: the last one
// ends with it. A window that would start after the input is omitted.
Pads exact_pads(GraphBuilder& g, const WindowAttrs& attrs, Value* x) {
  Pads pads;
  const std::size_t rank = attrs.rank();
  Value* one = g.ints({1});
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t extent = (attrs.kernel[i] - 1) * attrs.dilations[i] + 1;
    Value* stride = g.ints({attrs.strides[i]});
    Value* size = dim_value(g, x, static_cast<std::int64_t>(i) + 2);
    Value* padded = g.add(size, g.ints({attrs.pads[i]}));
    Value* room = g.add(padded, g.ints({attrs.pads[rank + i] - extent}));
    // Number of windows after the first one.
    Value* more = g.div(g.add(room, g.ints({attrs.strides[i] - 1})), stride);
    Value* is_outside = g.op("GreaterOrEqual", {g.mul(more, stride), padded});
    more = g.where(is_outside, g.sub(more, one), more);
    pads.begins.push_back(g.ints({attrs.pads[i]}));
    pads.ends.push_back(g.sub(g.add(g.mul(more, stride), g.ints({extent})), padded));
  }
  return pads;
}

Value* padded_exactly(GraphBuilder& g, const WindowAttrs& attrs, Value* x, Value* powers) {
  const Pads pads = exact_pads(g, attrs, x);
  Value* none = g.ints({0, 0});
  std::vector<Value*> all = {none};
  all.insert(all.end(), pads.begins.begin(), pads.begins.end());
  all.push_back(none);
  all.insert(all.end(), pads.ends.begin(), pads.ends.end());
  return g.op("Pad", {powers, g.concat(all, 0)});
}

// The sums are averages, including the padding, times the size of a window.
std::optional<std::vector<Value*>> lower_lp_pool(const Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  const std::size_t rank = node.ints_attribute("kernel_shape").size();
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  if (const auto dims = x->type.static_dims(); dims && dims->rank() == rank + 2) {
    resolve_window(node, attrs, dims->values().subspan(2), attrs.kernel);
  }
  const std::int64_t p = node.int_attribute("p");
  Value* powers = magnitudes(g, x, p);
  std::vector<Attribute> attributes = {{"kernel_shape", attrs.kernel},
                                       {"strides", attrs.strides},
                                       {"dilations", attrs.dilations},
                                       {"count_include_pad", std::int64_t{1}}};
  if (attrs.ceil_mode && !attrs.is_same()) {
    powers = padded_exactly(g, attrs, x, powers);
  } else if (attrs.auto_pad != AutoPad::kNotset) {
    attributes.push_back({"auto_pad", node.string_attribute("auto_pad")});
  } else {
    attributes.push_back({"pads", attrs.pads});
  }
  Value* mean = g.op("AveragePool", {powers}, std::move(attributes));
  const auto size =
      std::accumulate(attrs.kernel.begin(), attrs.kernel.end(), 1.0, std::multiplies<>());
  return {{root(g, g.scale(mean, size), p)}};
}

std::optional<std::vector<Value*>> lower_global_lp_pool(const Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  const auto rank = known_rank(x);
  if (!rank || *rank < 2) return std::nullopt;
  std::vector<std::int64_t> axes(*rank - 2);
  std::iota(axes.begin(), axes.end(), 2);
  const std::int64_t p = node.int_attribute("p");
  Value* powers = magnitudes(g, x, p);
  Value* sum = axes.empty() ? powers : g.reduce_sum(powers, axes, /*keepdims=*/true);
  return {{root(g, sum, p)}};
}

AttributeSpec exponent() {
  return {.name = "p", .min = 1, .max = 1 << 20, .default_value = std::int64_t{2}};
}

}  // namespace

void register_lp_pool(opdef::OpRegistry& registry) {
  std::vector<AttributeSpec> attributes = window_attribute_specs(/*kernel_required=*/true);
  attributes.push_back(flag_attribute("ceil_mode", false));
  attributes.push_back(exponent());
  registry.add({.op_type = "LpPool",
                .since_version = 22,
                .attributes = std::move(attributes),
                .lower = lower_lp_pool});
  registry.add({.op_type = "GlobalLpPool",
                .since_version = 22,
                .attributes = {exponent()},
                .lower = lower_global_lp_pool});
}

}  // namespace onnxgrad::ops::lp_pool_op

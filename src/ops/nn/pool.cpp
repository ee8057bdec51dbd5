#include "ops/nn/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// MaxPool and AveragePool (ai.onnx 22) with the functions of their gradients; GlobalMaxPool and
// GlobalAveragePool (ai.onnx 22).

namespace onnxgrad::ops {

std::size_t pool_spatial_rank(const Node& node) {
  const std::vector<std::int64_t> kernel = node.ints_attribute("kernel_shape");
  if (kernel.empty())
    throw ModelError(problem_at(node, "attribute 'kernel_shape' is missing", {},
                                "Give the size of the window, one number per spatial axis."));
  return kernel.size();
}

std::int64_t count_taps(const WindowAxis& axis, std::int64_t window, bool include_pad) {
  const std::int64_t low = include_pad ? -axis.pad_begin : 0;
  const std::int64_t high = axis.input + (include_pad ? axis.pad_end : 0);
  return taps_below(axis, window, high) - taps_below(axis, window, low);
}

PoolShape pool_shape(const Node& node, const Dims& x) {
  const std::size_t rank = pool_spatial_rank(node);
  if (x.rank() != rank + 2) {
    throw ShapeError(problem_at(
        node, fmt::format("input {} has {} axes, expected {}", x.to_string(), x.rank(), rank + 2),
        "[N, C, and one axis per element of kernel_shape].",
        "Reshape the input, or give kernel_shape another length."));
  }
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  (void)Dims(attrs.kernel);  // throws if the number of elements overflows
  const auto axes = resolve_window(node, attrs, x.values().subspan(2), attrs.kernel);
  for (std::size_t i = 0; i < rank; ++i) {
    // Windows at the borders have the fewest taps.
    const WindowAxis& axis = axes[i];
    if (count_taps(axis, 0, false) > 0 && count_taps(axis, axis.output - 1, false) > 0) continue;
    throw ModelError(problem_at(
        node, fmt::format("a window along spatial axis {} is entirely in the padding", i),
        fmt::format("Input {}, kernel {}, dilation {}, pads {} + {}.", axis.input, axis.kernel,
                    axis.dilation, axis.pad_begin, axis.pad_end),
        "Use less padding."));
  }
  return {.planes = x.product(0, 2),
          .spatial_rank = rank,
          .axes = rank <= 3 ? three_axes(axes) : std::array<WindowAxis, 3>{}};
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::pool_op {
namespace {

Node call_node(std::string_view base_name, const std::vector<Attribute>& attributes) {
  Node node;
  node.op_type = base_name;
  node.attributes = attributes;
  return node;
}

// Returns true if the windows do not overlap.
bool are_apart(const WindowAttrs& attrs) {
  for (std::size_t i = 0; i < attrs.kernel.size(); ++i) {
    if (attrs.dilations[i] * (attrs.kernel[i] - 1) >= attrs.strides[i]) return false;
  }
  return true;
}

// y[o] = x[indices[o]], indices over all of x:  dx = zeros with dy added at the indices.
std::vector<Value*> max_pool_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);
  if (dy == nullptr) return {nullptr};  // indices are constant
  return {g.call("MaxPoolGrad", {dy, ctx.require_output(1), ctx.input(0)}, 1,
                 ctx.node().attributes)[0]};
}

// Converts column-major indices (storage_order 1: h + w * H within a plane) to row-major ones. x:
// [N, C, X...].
Value* to_row_major(FunctionBody& f, Value* indices, Value* x, std::size_t rank) {
  const auto size = [&](std::size_t i) {
    const auto axis = static_cast<std::int64_t>(i) + 2;
    return f.dims_of(x, axis, axis + 1);
  };
  Value* plane_size = size(0);
  for (std::size_t i = 1; i < rank; ++i) plane_size = f.mul(plane_size, size(i));
  Value* plane = f.div(indices, plane_size);
  Value* rest = f.sub(indices, f.mul(plane, plane_size));
  Value* within = nullptr;  // Horner's scheme over the coordinates, slowest axis first
  for (std::size_t i = 0; i < rank; ++i) {
    Value* quotient = f.div(rest, size(i));
    Value* coordinate = f.sub(rest, f.mul(quotient, size(i)));
    within = within == nullptr ? coordinate : f.add(f.mul(within, size(i)), coordinate);
    rest = quotient;
  }
  return f.add(f.mul(plane, plane_size), within);
}

// Start of the bodies of MaxPoolGrad: attributes, and inputs (dy, indices, x) with row-major
// indices; only the shape of x is read.
struct MaxPoolGradBody {
  MaxPoolGradBody(std::string_view base_name, const std::vector<Attribute>& attributes)
      : node(call_node(base_name, attributes)),
        attrs(WindowAttrs::read(node, pool_spatial_rank(node))),
        is_column_major(node.int_attribute("storage_order") == 1 && attrs.rank() > 1),
        // The key names the windows, which native kernels use.
        f(base_name,
          window_key(attrs) + (attrs.ceil_mode ? "_ceil" : "") +
              (is_column_major ? "_column_major" : ""),
          attributes),
        dy(f.input("dy")),
        indices(f.input("indices")),
        x(f.input("x")) {
    if (is_column_major) indices = to_row_major(f, indices, x, attrs.rank());
  }

  Node node;
  WindowAttrs attrs;
  bool is_column_major;
  FunctionBody f;
  Value* dy;
  Value* indices;
  Value* x;
};

ir::Function max_pool_grad_body(std::string_view base_name, const std::vector<Value*>&,
                                const std::vector<Attribute>& attributes) {
  MaxPoolGradBody body(base_name, attributes);
  FunctionBody& f = body.f;
  Value* flat = f.ints({-1});
  Value* zeros =
      f.op("Expand", {f.scalar_like(body.dy, 0), f.unsqueeze(f.op("Size", {body.x}), {0})});
  std::vector<Attribute> how = {{.name = "axis", .value = std::int64_t{0}}};
  if (!are_apart(body.attrs)) how.push_back({.name = "reduction", .value = std::string("add")});
  Value* sums =
      f.op("ScatterElements",
           {zeros, f.op("Reshape", {body.indices, flat}), f.op("Reshape", {body.dy, flat})},
           std::move(how));
  return std::move(f).finish({f.reshape(sums, f.shape_of(body.x))});
}

// Body of MaxPoolGrad without ScatterElements, by a ConvTranspose: its channels are the taps of a
// window, each with the dy of the windows whose maximum that tap is, and its kernel moves them to
// their positions.
ir::Function max_pool_grad_by_taps(std::string_view base_name, const std::vector<Value*>&,
                                   const std::vector<Attribute>& attributes) {
  MaxPoolGradBody body(base_name, attributes);
  FunctionBody& f = body.f;
  const WindowAttrs& attrs = body.attrs;
  const std::size_t rank = attrs.rank();
  const auto end = static_cast<std::int64_t>(rank) + 2;
  Value* x = body.x;
  Value* dy = body.dy;
  const auto size = [&](Value* value, std::size_t i) {
    const auto axis = static_cast<std::int64_t>(i) + 2;
    return f.dims_of(value, axis, axis + 1);
  };
  const auto pads = pad_values(f, attrs, x, dy, nullptr);
  Value* rest = body.indices;
  Value* tap = nullptr;
  std::int64_t taps = 1;
  for (std::size_t i = rank; i-- > 0;) {  // the last axis varies fastest
    Value* quotient = f.div(rest, size(x, i));
    Value* position = f.sub(rest, f.mul(quotient, size(x, i)));
    rest = quotient;
    Value* windows = f.op("Squeeze", {size(dy, i), f.ints({0})});
    Value* numbers = f.op("Range", {f.int_scalar(0), windows, f.int_scalar(1)});
    Value* first = f.sub(f.mul(numbers, f.ints({attrs.strides[i]})), pads[i].begin);
    std::vector<std::int64_t> trailing(rank - 1 - i);
    std::iota(trailing.begin(), trailing.end(), 1);
    if (!trailing.empty()) first = f.unsqueeze(first, trailing);
    Value* offset = f.div(f.sub(position, first), f.ints({attrs.dilations[i]}));
    offset = f.mul(offset, f.ints({taps}));
    tap = tap == nullptr ? offset : f.add(tap, offset);
    taps *= attrs.kernel[i];
  }
  Value* planes = f.mul(f.dims_of(x, 0, 1), f.dims_of(x, 1, 2));
  Value* shape = f.concat({planes, f.ints({1}), f.dims_of(dy, 2, end)}, 0);
  std::vector<std::int64_t> all(static_cast<std::size_t>(taps));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::int64_t> channel(rank + 2, 1);
  channel[1] = taps;
  Value* channels = f.op("Reshape", {f.ints(all), f.ints(channel)});
  Value* is_there = f.equal(f.reshape(tap, shape), channels);
  Value* spread = f.mul(f.op("CastLike", {is_there, dy}), f.reshape(dy, shape));
  std::vector<float> places(static_cast<std::size_t>(taps * taps), 0.0F);
  for (std::int64_t i = 0; i < taps; ++i) places[static_cast<std::size_t>(i * taps + i)] = 1;
  std::vector<std::int64_t> kernel_shape{taps, 1};
  kernel_shape.insert(kernel_shape.end(), attrs.kernel.begin(), attrs.kernel.end());
  Value* kernel =
      f.op("CastLike", {f.constant(Tensor::from(places, Dims(std::move(kernel_shape)))), dy});
  Value* dx = transposed_windows(f, attrs, 1, x, spread, kernel);
  return std::move(f).finish({f.reshape(dx, f.shape_of(x))});
}

// y = (sum of x over each window) / count:  dx = each dy / count spread over its window.
std::vector<Value*> average_pool_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.call("AveragePoolGrad", {ctx.cotangent(0), ctx.input(0)}, 1, ctx.node().attributes)[0]};
}

// Returns the number of taps that each window counts along one axis, [O] in dy's dtype: those at
// positions in [0, input), or in [-pad_begin, input + pad_end) with include_pad.
Value* tap_counts(FunctionBody& f, const WindowAttrs& attrs, std::size_t i, const PadValues& pad,
                  Value* x, Value* dy, bool include_pad) {
  const auto axis = static_cast<std::int64_t>(i) + 2;
  Value* zero = f.int_scalar(0);
  Value* one = f.int_scalar(1);
  Value* windows = f.op("Squeeze", {f.dims_of(dy, axis, axis + 1)});
  Value* first =
      f.sub(f.mul(f.op("Range", {zero, windows, one}), f.ints({attrs.strides[i]})), pad.begin);
  Value* offsets = f.mul(f.op("Range", {zero, f.int_scalar(attrs.kernel[i]), one}),
                         f.ints({attrs.dilations[i]}));
  Value* position = f.add(f.unsqueeze(first, {1}), offsets);  // [O, k]
  Value* input = f.dims_of(x, axis, axis + 1);
  Value* low = include_pad ? f.op("Neg", {pad.begin}) : zero;
  Value* high = include_pad ? f.add(input, pad.end) : input;
  Value* counts =
      f.op("And", {f.op("GreaterOrEqual", {position, low}), f.op("Less", {position, high})});
  return f.reduce_sum(f.op("CastLike", {counts, dy}), {1}, /*keepdims=*/false);
}

// Returns true if every window is inside the image and the last one ends where the image does.
bool covers_exactly(const WindowAttrs& attrs, const Value* x, const Value* dy) {
  if (attrs.is_same() || attrs.ceil_mode) return false;
  for (std::size_t i = 0; i < attrs.kernel.size(); ++i) {
    const auto axis = static_cast<std::int64_t>(i) + 2;
    const auto image = known_dim(x, axis);
    const auto windows = known_dim(dy, axis);
    if (!image || !windows || *windows == 0 || attrs.pads[i] != 0 ||
        attrs.pads[i + attrs.kernel.size()] != 0) {
      return false;
    }
    const std::int64_t end =
        (*windows - 1) * attrs.strides[i] + attrs.dilations[i] * (attrs.kernel[i] - 1) + 1;
    if (end != *image) return false;
  }
  return true;
}

// Body of AveragePoolGrad where covers_exactly(): planes are a batch of one channel, spread by a
// kernel of 1 / size.
ir::Function exact_average_pool_grad_body(std::string_view base_name, const WindowAttrs& attrs,
                                          const std::vector<Attribute>& attributes) {
  FunctionBody f(base_name, window_key(attrs) + "_exact", attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  std::vector<std::int64_t> planes(attrs.kernel.size() + 2, 0);  // 0: unchanged
  planes[0] = -1;
  planes[1] = 1;
  std::vector<std::int64_t> shape{1, 1};
  shape.insert(shape.end(), attrs.kernel.begin(), attrs.kernel.end());
  double size = 1;
  for (const std::int64_t taps : attrs.kernel) size *= static_cast<double>(taps);
  Value* share = f.op("Expand", {f.scalar_like(dy, 1 / size), f.ints(shape)});
  Value* spread = f.op("ConvTranspose", {f.op("Reshape", {dy, f.ints(planes)}), share},
                       {{.name = "strides", .value = attrs.strides},
                        {.name = "dilations", .value = attrs.dilations}});
  return std::move(f).finish({f.reshape(spread, f.shape_of(x))});
}

// Computes dx from (dy, x); only the shape of x is read.
ir::Function average_pool_grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                                    const std::vector<Attribute>& attributes) {
  const Node node = call_node(base_name, attributes);
  const std::size_t rank = pool_spatial_rank(node);
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  if (covers_exactly(attrs, inputs.at(1), inputs.at(0))) {
    return exact_average_pool_grad_body(base_name, attrs, attributes);
  }
  const bool include_pad = node.int_attribute("count_include_pad") != 0;
  const std::string key =
      window_key(attrs) + (attrs.ceil_mode ? "_ceil" : "") + (include_pad ? "_include_pad" : "");
  FunctionBody f(base_name, key, attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  const auto pads = pad_values(f, attrs, x, dy, nullptr);
  Value* shares = dy;
  for (std::size_t i = 0; i < rank; ++i) {
    Value* counts = tap_counts(f, attrs, i, pads[i], x, dy, include_pad);
    std::vector<std::int64_t> trailing(rank - 1 - i);
    std::iota(trailing.begin(), trailing.end(), 1);
    if (!trailing.empty()) counts = f.unsqueeze(counts, trailing);
    shares = f.div(shares, counts);
  }
  // Planes are a batch of one channel, spread by a kernel of ones.
  const auto end = static_cast<std::int64_t>(rank) + 2;
  Value* planes = f.mul(f.dims_of(x, 0, 1), f.dims_of(x, 1, 2));
  Value* one_channel = f.ints({1});
  Value* flat = f.reshape(shares, f.concat({planes, one_channel, f.dims_of(dy, 2, end)}, 0));
  std::vector<std::int64_t> ones_shape{1, 1};
  ones_shape.insert(ones_shape.end(), attrs.kernel.begin(), attrs.kernel.end());
  Value* ones = f.op("Expand", {f.scalar_like(dy, 1), f.ints(ones_shape)});
  Value* spread = transposed_windows(f, attrs, 1, x, flat, ones);
  return std::move(f).finish({f.reshape(spread, f.shape_of(x))});
}

std::vector<std::int64_t> spatial_axes(const Node& node, const Value* x) {
  const auto rank = known_rank(x);
  if (!rank || *rank < 2) {
    throw GradientError(
        problem_at(node, "the rank of the input is not known",
                   "Its spatial axes are all axes except the first two.",
                   "Declare the shape of the input in the model; symbols are allowed."));
  }
  std::vector<std::int64_t> axes(*rank - 2);
  std::iota(axes.begin(), axes.end(), 2);
  return axes;
}

// Returns the product of the spatial sizes, int64 [1].
Value* plane_size(GraphBuilder& g, const Node& node, Value* x) {
  Value* size = g.ints({1});
  std::int64_t known = 1;
  for (const std::int64_t axis : spatial_axes(node, x)) {
    const auto dim = known_dim(x, axis);
    if (dim)
      known *= *dim;
    else
      size = g.mul(size, dim_value(g, x, axis));
  }
  return size->is_constant() ? g.ints({known}) : g.mul(size, g.ints({known}));
}

// y = mean(x) over the spatial axes;  dx = dy / count everywhere.
std::vector<Value*> global_average_pool_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* dy = ctx.cotangent(0);
  Value* share = g.div(dy, g.cast_like(plane_size(g, ctx.node(), x), dy));
  return {g.expand(share, shape_value(g, x))};
}

// y = max(x) over the spatial axes;  dx = dy at the first maximum of each plane.
std::vector<Value*> global_max_pool_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* planes = g.concat({dim_value(g, x, 0), dim_value(g, x, 1)}, 0);
  Value* flat = g.reshape(x, g.concat({planes, plane_size(g, ctx.node(), x)}, 0));
  Value* index = g.op("ArgMax", {flat}, {{.name = "axis", .value = std::int64_t{2}}});
  Value* dy = g.reshape(ctx.cotangent(0), g.concat({planes, g.ints({1})}, 0));
  Value* dx = g.op("ScatterElements", {g.zeros_like(flat), index, dy},
                   {{.name = "axis", .value = std::int64_t{2}}});
  return {g.reshape(dx, shape_value(g, x))};
}

std::vector<AttributeSpec> pool_attribute_specs(std::string_view own_flag) {
  auto specs = window_attribute_specs(/*kernel_required=*/true);
  specs.push_back(flag_attribute("ceil_mode", false));
  specs.push_back(flag_attribute(own_flag, false));
  return specs;
}

}  // namespace

ir::Function max_pool_grad_before_16(std::string_view base_name, const std::vector<Value*>& inputs,
                                     const std::vector<Attribute>& attributes) {
  const Node node = call_node(base_name, attributes);
  const bool needs_no_sum = are_apart(WindowAttrs::read(node, pool_spatial_rank(node)));
  return needs_no_sum ? max_pool_grad_body(base_name, inputs, attributes)
                      : max_pool_grad_by_taps(base_name, inputs, attributes);
}

void register_pool(opdef::OpRegistry& registry) {
  registry.add({.op_type = "MaxPool",
                .since_version = 22,
                .differentiable_inputs = {0},
                .attributes = pool_attribute_specs("storage_order"),
                .vjp = max_pool_vjp});
  registry.add({.op_type = "AveragePool",
                .since_version = 22,
                .differentiable_inputs = {0},
                .attributes = pool_attribute_specs("count_include_pad"),
                .vjp = average_pool_vjp});
  // The gradient functions have no rule: second derivatives go through their bodies.
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "MaxPoolGrad",
                .differentiable_inputs = {0},
                .attributes = pool_attribute_specs("storage_order"),
                .function_body = max_pool_grad_body});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "AveragePoolGrad",
                .differentiable_inputs = {0},
                .attributes = pool_attribute_specs("count_include_pad"),
                .function_body = average_pool_grad_body});
  registry.add({.op_type = "GlobalAveragePool",
                .since_version = 22,
                .differentiable_inputs = {0},
                .vjp = global_average_pool_vjp});
  registry.add({.op_type = "GlobalMaxPool",
                .since_version = 22,
                .differentiable_inputs = {0},
                .vjp = global_max_pool_vjp});
}

}  // namespace onnxgrad::ops::pool_op

#include "ops/nn/conv/conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "opdef/registry.h"
#include "ops/rules.h"

// Conv (ai.onnx 22) and the functions ConvInputGrad and ConvWeightGrad.

namespace onnxgrad::ops {

double ConvShape::flops() const {
  return 2.0 * static_cast<double>(batch) * static_cast<double>(groups) *
         static_cast<double>(in_channels) * static_cast<double>(out_channels) *
         static_cast<double>(kernel_size()) * static_cast<double>(output_size());
}

std::size_t conv_spatial_rank(const Node& node, const Value* x, const Value* w) {
  const std::vector<std::int64_t> kernel = node.ints_attribute("kernel_shape");
  if (!kernel.empty()) return kernel.size();
  for (const Value* value : {w, x}) {
    if (value != nullptr && value->type.has_rank() && value->type.rank() > 2) {
      return value->type.rank() - 2;
    }
  }
  throw GradientError(problem_at(node, "the number of spatial axes is not known",
                                 "Neither input has a known rank and kernel_shape is absent.",
                                 "Declare the weight's shape, or give the node a kernel_shape."));
}

std::vector<Attribute> conv_call_attributes(const WindowAttrs& attrs, std::int64_t group) {
  std::vector<Attribute> call;
  if (!attrs.kernel.empty()) call.push_back({.name = "kernel_shape", .value = attrs.kernel});
  call.push_back({.name = "strides", .value = attrs.strides});
  call.push_back({.name = "dilations", .value = attrs.dilations});
  if (attrs.is_same()) {
    const bool is_upper = attrs.auto_pad == AutoPad::kSameUpper;
    call.push_back(
        {.name = "auto_pad", .value = std::string(is_upper ? "SAME_UPPER" : "SAME_LOWER")});
  } else {
    call.push_back({.name = "pads", .value = attrs.pads});
  }
  call.push_back({.name = "group", .value = group});
  return call;
}

ConvShape conv_shape(const Node& node, const Dims& x, const Dims& w) {
  const std::int64_t groups = node.int_attribute("group");
  if (x.rank() < 3 || x.rank() != w.rank()) {
    throw ShapeError(problem_at(
        node, fmt::format("input {} and weight {} do not match", x.to_string(), w.to_string()),
        "Both must have the same rank, at least 3: [N, C, X...], [M, C, k...].",
        "Reshape the input to these axes."));
  }
  if (w[0] % groups != 0 || x[1] % groups != 0 || x[1] / groups != w[1]) {
    throw ShapeError(problem_at(
        node,
        fmt::format("{} input channels and a weight {} with group = {}", x[1], w.to_string(),
                    groups),
        fmt::format("The input needs {} channels for each group (weight dimension 1), and the "
                    "weight's first dimension a multiple of group.",
                    w[1]),
        "Change the input, the weight or group so that they match."));
  }
  const WindowAttrs attrs = WindowAttrs::read(node, x.rank() - 2);
  const auto axes = resolve_window(node, attrs, x.values().subspan(2), w.values().subspan(2));
  return {.batch = x[0],
          .groups = groups,
          .in_channels = w[1],
          .out_channels = w[0] / groups,
          .spatial_rank = axes.size(),
          .axes = axes.size() <= 3 ? three_axes(axes) : std::array<WindowAxis, 3>{}};
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::conv_op {
namespace {

std::int64_t count_groups(const Node& node) { return node.int_attribute("group"); }

// Returns the node's windows, with the kernel sizes from the weight if its shape is known.
WindowAttrs read_windows(const Node& node, const Value* x, const Value* w) {
  const std::size_t rank = conv_spatial_rank(node, x, w);
  WindowAttrs attrs = WindowAttrs::read(node, rank);
  if (attrs.kernel.empty() && w->type.has_rank()) {
    for (std::size_t i = 2; i < w->type.rank(); ++i) {
      const ir::Dim& dim = (*w->type.shape)[i];
      if (dim.is_static()) attrs.kernel.push_back(dim.value());
    }
    if (attrs.kernel.size() != rank) attrs.kernel.clear();
  }
  return attrs;
}

std::optional<std::vector<std::int64_t>> static_spatial_dims(const Value* x, std::size_t rank) {
  if (!x->type.has_rank() || x->type.rank() != rank + 2) return std::nullopt;
  std::vector<std::int64_t> dims;
  for (std::size_t i = 2; i < rank + 2; ++i) {
    const ir::Dim& dim = (*x->type.shape)[i];
    if (!dim.is_static()) return std::nullopt;
    dims.push_back(dim.value());
  }
  return dims;
}

// Computes dx by a plain ConvTranspose if its output padding is known: without strides it is zero.
Value* input_grad_by_conv_transpose(const Node& node, const WindowAttrs& attrs, std::int64_t group,
                                    Value* x, Value* w, Value* dy, GraphBuilder& g) {
  std::vector<std::int64_t> pads = attrs.pads;
  std::vector<std::int64_t> output_padding(attrs.rank(), 0);
  const bool has_strides = std::ranges::any_of(attrs.strides, [](auto s) { return s != 1; });
  if (has_strides || attrs.is_same()) {
    const auto input = static_spatial_dims(x, attrs.rank());
    if (!input || attrs.kernel.empty()) return nullptr;
    const auto axes = resolve_window(node, attrs, *input, attrs.kernel);
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const WindowAxis& axis = axes[i];
      pads[i] = axis.pad_begin;
      pads[axes.size() + i] = axis.pad_end;
      output_padding[i] = axis.input + axis.pad_begin + axis.pad_end -
                          ((axis.output - 1) * axis.stride + axis.extent());
    }
  }
  std::vector<Attribute> call = {{.name = "strides", .value = attrs.strides},
                                 {.name = "dilations", .value = attrs.dilations},
                                 {.name = "pads", .value = pads},
                                 {.name = "group", .value = group}};
  if (std::ranges::any_of(output_padding, [](auto p) { return p != 0; })) {
    call.push_back({.name = "output_padding", .value = output_padding});
  }
  return g.op("ConvTranspose", {dy, w}, std::move(call));
}

// y = conv(x, w) + b
// dx = conv_transpose(dy, w), dw = sum over batch and windows of dy * x, db = sum of dy per
// channel.
std::vector<Value*> conv_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  Value* x = ctx.input(0);
  Value* w = ctx.input(1);
  Value* dy = ctx.cotangent(0);
  const WindowAttrs attrs = read_windows(node, x, w);
  const std::int64_t group = count_groups(node);
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) {
    grads[0] = input_grad_by_conv_transpose(node, attrs, group, x, w, dy, g);
    if (grads[0] == nullptr) {
      grads[0] = g.call("ConvInputGrad", {dy, w, x}, 1, conv_call_attributes(attrs, group))[0];
    }
  }
  if (ctx.needs(1)) {
    std::vector<Value*> inputs{dy, x};
    if (attrs.kernel.empty()) inputs.push_back(w);  // only its shape is read
    grads[1] =
        g.call("ConvWeightGrad", std::move(inputs), 1, conv_call_attributes(attrs, group))[0];
  }
  if (ctx.num_inputs() > 2 && ctx.needs(2)) {
    std::vector<std::int64_t> axes(attrs.rank() + 2);
    std::iota(axes.begin(), axes.end(), 0);
    axes.erase(axes.begin() + 1);
    grads[2] = g.reduce_sum(dy, axes, /*keepdims=*/false);
  }
  return grads;
}

Node call_node(std::string_view base_name, const std::vector<Attribute>& attributes) {
  Node node;
  node.op_type = base_name;
  node.attributes = attributes;
  return node;
}

std::string conv_key(const WindowAttrs& attrs, std::int64_t group) {
  return window_key(attrs) + "_g" + std::to_string(group);
}

// Computes dx: [N, C, X...] from (dy, w, x); only the shape of x is read.
ir::Function conv_input_grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                                  const std::vector<Attribute>& attributes) {
  const Node node = call_node(base_name, attributes);
  const std::size_t rank = conv_spatial_rank(node, inputs.at(2), inputs.at(1));
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  const std::int64_t group = count_groups(node);
  FunctionBody f(base_name, conv_key(attrs, group), attributes);
  Value* dy = f.input("dy");
  Value* w = f.input("w");
  Value* x = f.input("x");
  Value* dx = transposed_windows(f, attrs, group, x, dy, w);
  return std::move(f).finish({dx});
}

// Transposes [N, G * C, X...] to [C, G * N, X...]: the batch becomes the channels that group g of a
// convolution sums over. If it `is_depthwise`, C is 1.
Value* batch_as_channels(FunctionBody& f, Value* x, std::int64_t group, std::size_t rank,
                         bool is_depthwise) {
  std::vector<std::int64_t> perm(rank + 2);
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[0], perm[1]);
  if (group == 1) return f.transpose(x, perm);
  if (is_depthwise) {
    std::vector<std::int64_t> dims(rank + 2, 0);  // 0: unchanged
    dims[0] = 1;
    dims[1] = -1;
    return f.op("Reshape", {f.transpose(x, perm), f.ints(dims)});
  }
  const auto end = static_cast<std::int64_t>(rank) + 2;
  Value* batch = f.dims_of(x, 0, 1);
  Value* groups = f.ints({group});
  Value* channels = f.div(f.dims_of(x, 1, 2), groups);
  Value* spatial = f.dims_of(x, 2, end);
  Value* split = f.reshape(x, f.concat({batch, groups, channels, spatial}, 0));
  std::vector<std::int64_t> split_perm(rank + 3);
  std::iota(split_perm.begin(), split_perm.end(), 0);
  std::swap(split_perm[0], split_perm[2]);
  return f.reshape(f.transpose(split, split_perm),
                   f.concat({channels, f.mul(groups, batch), spatial}, 0));
}

// Pads x as SAME does, with pads in Pad's format: [0, 0, begins..., 0, 0, ends...].
Value* pad_same(FunctionBody& f, const WindowAttrs& attrs, Value* padded, Value* x, Value* dy,
                Value* w) {
  Value* none = f.ints({0, 0});
  std::vector<Value*> begins{none};
  std::vector<Value*> ends{none};
  for (const PadValues& pad : pad_values(f, attrs, x, dy, w)) {
    begins.push_back(pad.begin);
    ends.push_back(pad.end);
  }
  begins.insert(begins.end(), ends.begin(), ends.end());
  return f.op("Pad", {padded, f.concat(begins, 0)});
}

// Computes dw: [M, C / G, k...] from (dy, x) or (dy, x, w); only the shape of w is read. With batch
// and channels swapped, x convolved with dy is dw: taps and windows swap roles, so strides and
// dilations are swapped too. Positions that no window reads, which exist only with strides, yield
// extra rows, which are dropped.
ir::Function conv_weight_grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                                   const std::vector<Attribute>& attributes) {
  const Node node = call_node(base_name, attributes);
  const Value* weight = inputs.size() > 2 ? inputs[2] : nullptr;
  const std::size_t rank = conv_spatial_rank(node, inputs.at(1), weight);
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  const std::int64_t group = count_groups(node);
  // Every dimension after the channels must be nonzero for Reshape to infer the first two.
  const auto spatial_sizes = static_spatial_dims(inputs.at(1), rank);
  const bool is_depthwise =
      spatial_sizes && known_dim(inputs.at(1), 1) == group &&
      std::ranges::none_of(*spatial_sizes, [](std::int64_t size) { return size == 0; });
  FunctionBody f(base_name, conv_key(attrs, group) + (is_depthwise ? "_depthwise" : ""),
                 attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  Value* w = weight == nullptr ? nullptr : f.input("w");
  std::vector<std::int64_t> swap(rank + 2);
  std::iota(swap.begin(), swap.end(), 0);
  std::swap(swap[0], swap[1]);

  Value* image = batch_as_channels(f, x, group, rank, is_depthwise);
  if (attrs.is_same()) image = pad_same(f, attrs, image, x, dy, w);
  Value* full = f.op("Conv", {image, f.transpose(dy, swap)},
                     {{.name = "strides", .value = attrs.dilations},
                      {.name = "dilations", .value = attrs.strides},
                      {.name = "pads", .value = attrs.pads},
                      {.name = "group", .value = group}});
  const bool is_exact =
      std::ranges::all_of(attrs.strides, [](std::int64_t stride) { return stride == 1; });
  if (is_exact) return std::move(f).finish({f.transpose(full, swap)});
  std::vector<std::int64_t> spatial(rank);
  std::iota(spatial.begin(), spatial.end(), 2);
  Value* cut = f.op("Slice", {full, f.ints(std::vector<std::int64_t>(rank, 0)),
                              kernel_dims(f, attrs, w), f.ints(spatial)});
  return std::move(f).finish({f.transpose(cut, swap)});
}

std::vector<AttributeSpec> conv_attribute_specs() {
  auto specs = window_attribute_specs(/*kernel_required=*/false);
  specs.push_back({.name = "group",
                   .type = AttributeType::kInt,
                   .min = 1,
                   .max = std::int64_t{1} << 31,
                   .default_value = std::int64_t{1}});
  return specs;
}

// dL/dw = ConvWeightGrad(dy, x) is linear in both: its gradients are convolutions again.
// d(dy) = conv(x, v), dx = the input gradient with w = v, where v is the cotangent.
std::vector<Value*> conv_weight_grad_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  Value* v = ctx.cotangent(0);
  const std::size_t rank = conv_spatial_rank(node, ctx.input(1), ctx.input(2));
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  std::vector<Attribute> call = conv_call_attributes(attrs, count_groups(node));
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) grads[0] = g.op("Conv", {ctx.input(1), v}, call);
  if (ctx.needs(1)) grads[1] = g.call("ConvInputGrad", {ctx.input(0), v, ctx.input(1)}, 1, call)[0];
  return grads;
}

// dx = ConvInputGrad(dy, w): d(dy) = conv(v, w), dw = ConvWeightGrad(dy, v).
std::vector<Value*> conv_input_grad_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  Value* v = ctx.cotangent(0);
  const std::size_t rank = conv_spatial_rank(node, ctx.input(2), ctx.input(1));
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  std::vector<Attribute> call = conv_call_attributes(attrs, count_groups(node));
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) grads[0] = g.op("Conv", {v, ctx.input(1)}, call);
  if (ctx.needs(1)) {
    std::vector<Value*> inputs{ctx.input(0), v};
    if (attrs.kernel.empty()) inputs.push_back(ctx.input(1));
    grads[1] = g.call("ConvWeightGrad", std::move(inputs), 1, call)[0];
  }
  return grads;
}

}  // namespace

void register_conv(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Conv",
                .since_version = 22,
                .differentiable_inputs = {0, 1, 2},
                .attributes = conv_attribute_specs(),
                .vjp = conv_vjp,
                .weight_inputs = {1, 2}});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "ConvInputGrad",
                .differentiable_inputs = {0, 1, 2},
                .attributes = conv_attribute_specs(),
                .vjp = conv_input_grad_vjp,
                .function_body = conv_input_grad_body});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "ConvWeightGrad",
                .differentiable_inputs = {0, 1, 2},
                .attributes = conv_attribute_specs(),
                .vjp = conv_weight_grad_vjp,
                .function_body = conv_weight_grad_body});
}

}  // namespace onnxgrad::ops::conv_op

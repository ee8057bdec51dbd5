#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "opdef/registry.h"
#include "ops/nn/conv/conv.h"

// ConvTranspose (ai.onnx 22).

namespace onnxgrad::ops {

using ir::Attribute;
using ir::Value;
using opdef::VjpContext;

namespace {

struct TransposeAttrs {
  WindowAttrs windows;
  std::vector<std::int64_t> output_padding;  // one per axis
  std::vector<std::int64_t> output_shape;    // empty or one per axis

  static TransposeAttrs read(const ir::Node& node, std::size_t rank);
};

TransposeAttrs TransposeAttrs::read(const ir::Node& node, std::size_t rank) {
  TransposeAttrs attrs;
  attrs.windows = WindowAttrs::read(node, rank);
  attrs.output_padding = node.ints_attribute("output_padding");
  if (attrs.output_padding.empty()) attrs.output_padding.assign(rank, 0);
  attrs.output_shape = node.ints_attribute("output_shape");
  for (const auto& [name, list] : {std::pair("output_padding", &attrs.output_padding),
                                   std::pair("output_shape", &attrs.output_shape)}) {
    if (list->empty() || list->size() == rank) continue;
    throw ModelError(problem_at(
        node, fmt::format("attribute '{}' has {} elements, expected {}", name, list->size(), rank),
        "It has one number per spatial axis of the input.", "Give it this many, or omit it."));
  }
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t limit = std::max(attrs.windows.strides[i], attrs.windows.dilations[i]);
    if (attrs.output_padding[i] < limit) continue;
    throw ModelError(problem_at(
        node,
        fmt::format("output_padding {} of spatial axis {}, expected less than its stride {} or its "
                    "dilation {}",
                    attrs.output_padding[i], i, attrs.windows.strides[i],
                    attrs.windows.dilations[i]),
        {}, "Give a smaller output_padding, or output_shape."));
  }
  return attrs;
}

struct Pads {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Pads split_pads(std::int64_t total, AutoPad auto_pad) {
  const std::int64_t half = total / 2;
  if (auto_pad == AutoPad::kSameUpper) return {.begin = half, .end = total - half};
  return {.begin = total - half, .end = half};
}

// Returns how much the full length (input - 1) * stride + output padding + extent of an axis is
// cropped.
Pads transpose_pads(const TransposeAttrs& attrs, std::size_t i, std::int64_t input,
                    std::int64_t kernel) {
  const WindowAttrs& windows = attrs.windows;
  const std::int64_t extent = (kernel - 1) * windows.dilations[i] + 1;
  if (!attrs.output_shape.empty()) {
    const std::int64_t full = (input - 1) * windows.strides[i] + attrs.output_padding[i] + extent;
    return split_pads(std::max<std::int64_t>(full - attrs.output_shape[i], 0), windows.auto_pad);
  }
  if (windows.is_same()) {
    return split_pads(std::max<std::int64_t>(extent - windows.strides[i], 0), windows.auto_pad);
  }
  return {.begin = windows.pads[i], .end = windows.pads[windows.rank() + i]};
}

std::int64_t static_dim(const Value* value, std::size_t axis) {
  if (!value->type.has_rank() || axis >= value->type.rank()) return -1;
  return (*value->type.shape)[axis].value();
}

// Returns the windows of the convolution whose transpose is y = conv_transpose(x, w): its input is
// y. Its pads are known unless output_shape is combined with unknown sizes of x.
WindowAttrs transposed_attrs(const ir::Node& node, const Value* x, const Value* w) {
  const std::size_t rank = conv_spatial_rank(node, x, w);
  const TransposeAttrs attrs = TransposeAttrs::read(node, rank);
  WindowAttrs conv = attrs.windows;
  conv.auto_pad = AutoPad::kNotset;
  conv.pads.assign(2 * rank, 0);
  std::vector<std::int64_t> kernel;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t input = static_dim(x, i + 2);
    kernel.push_back(conv.kernel.empty() ? static_dim(w, i + 2) : conv.kernel[i]);
    const bool needs_kernel = !attrs.output_shape.empty() || attrs.windows.is_same();
    if ((needs_kernel && kernel[i] < 0) || (!attrs.output_shape.empty() && input < 0)) {
      throw GradientError(problem_at(
          node, fmt::format("spatial axis {} of the input or the weight has no known size", i),
          "The pads implied by output_shape or auto_pad depend on it.",
          "Give the model input fixed spatial dimensions, or the node explicit pads."));
    }
    const Pads pads = transpose_pads(attrs, i, input, kernel[i]);
    conv.pads[i] = pads.begin;
    conv.pads[rank + i] = pads.end;
  }
  if (std::ranges::find(kernel, -1) == kernel.end()) conv.kernel = std::move(kernel);
  return conv;
}

// Returns true if the convolution of y may have windows beyond x's last one: y was extended by a
// stride.
bool may_have_more_windows(const ir::Node& node, const WindowAttrs& conv) {
  const TransposeAttrs attrs = TransposeAttrs::read(node, conv.rank());
  if (!attrs.output_shape.empty()) return true;
  for (std::size_t i = 0; i < conv.rank(); ++i) {
    if (attrs.output_padding[i] >= conv.strides[i]) return true;
  }
  return false;
}

// y = conv_transpose(x, w) + b
// dx = conv(dy, w), dw = ConvWeightGrad with the roles of x and y swapped, db = sum of dy per
// channel.
std::vector<Value*> conv_transpose_vjp(VjpContext& ctx, ir::GraphBuilder& g) {
  const ir::Node& node = ctx.node();
  Value* x = ctx.input(0);
  Value* w = ctx.input(1);
  Value* dy = ctx.cotangent(0);
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  std::vector<std::int64_t> axes(conv_spatial_rank(node, x, w) + 2);
  std::iota(axes.begin(), axes.end(), 0);
  if (ctx.num_inputs() > 2 && ctx.needs(2)) {
    std::vector<std::int64_t> all_but_channels = axes;
    all_but_channels.erase(all_but_channels.begin() + 1);
    grads[2] = g.reduce_sum(dy, all_but_channels, /*keepdims=*/false);
  }
  if (!ctx.needs(0) && !ctx.needs(1)) return grads;

  const WindowAttrs conv = transposed_attrs(node, x, w);
  const std::vector<Attribute> call = conv_call_attributes(conv, node.int_attribute("group"));
  if (ctx.needs(0)) {
    grads[0] = g.op("Conv", {dy, w}, call);
    if (may_have_more_windows(node, conv)) {
      Value* starts = g.ints(std::vector<std::int64_t>(conv.rank(), 0));
      Value* ends = g.op("Shape", {x}, {{.name = "start", .value = std::int64_t{2}}});
      const std::vector<std::int64_t> spatial(axes.begin() + 2, axes.end());
      grads[0] = g.op("Slice", {grads[0], starts, ends, g.ints(spatial)});
    }
  }
  if (ctx.needs(1)) {
    std::vector<Value*> inputs{x, dy};
    if (conv.kernel.empty()) inputs.push_back(w);
    grads[1] = g.call("ConvWeightGrad", std::move(inputs), 1, call)[0];
  }
  return grads;
}

void check_transpose_operands(const ir::Node& node, const Dims& y, const Dims& w,
                              std::int64_t groups) {
  if (y.rank() < 3 || y.rank() != w.rank()) {
    throw ShapeError(problem_at(
        node, fmt::format("input {} and weight {} do not match", y.to_string(), w.to_string()),
        "Both must have the same rank, at least 3: [N, C, X...], [C, M, k...].",
        "Reshape the input to these axes."));
  }
  if (w[0] != y[1] || w[0] % groups != 0) {
    throw ShapeError(problem_at(
        node,
        fmt::format("{} input channels and a weight {} with group = {}", y[1], w.to_string(),
                    groups),
        "The weight's first dimension is the number of input channels, a multiple of group.",
        "Change the input, the weight or group so that they match."));
  }
}

}  // namespace

ConvShape conv_transpose_shape(const ir::Node& node, const Dims& y, const Dims& w) {
  const std::int64_t groups = node.int_attribute("group");
  check_transpose_operands(node, y, w, groups);
  const std::size_t rank = y.rank() - 2;
  const TransposeAttrs attrs = TransposeAttrs::read(node, rank);
  std::vector<WindowAxis> axes(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t input = y[i + 2];
    const std::int64_t kernel = w[i + 2];
    constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;  // no product below overflows
    if (input <= 0 || kernel <= 0 || input > kMaxSize || kernel > kMaxSize) {
      throw ShapeError(
          problem_at(node, fmt::format("spatial axis {}: input {} and kernel {}", i, input, kernel),
                     "Both must be positive and below 2^31.", "Give a non-empty input."));
    }
    if (!attrs.windows.kernel.empty() && attrs.windows.kernel[i] != kernel) {
      throw ShapeError(problem_at(
          node,
          fmt::format("attribute 'kernel_shape' is {} for spatial axis {}, the weight's size is {}",
                      attrs.windows.kernel[i], i, kernel),
          {}, "Omit kernel_shape, or give it the weight's sizes."));
    }
    const WindowAttrs& windows = attrs.windows;
    const Pads pads = transpose_pads(attrs, i, input, kernel);
    WindowAxis& axis = axes[i];
    axis = {.output = input,
            .kernel = kernel,
            .stride = windows.strides[i],
            .dilation = windows.dilations[i],
            .pad_begin = pads.begin,
            .pad_end = pads.end};
    const std::int64_t full = (input - 1) * axis.stride + attrs.output_padding[i] + axis.extent();
    const std::int64_t largest = (input - 1) * axis.stride + axis.extent() + axis.stride - 1;
    if (!attrs.output_shape.empty() && attrs.output_shape[i] > largest) {
      throw ShapeError(problem_at(
          node,
          fmt::format("output_shape {} of spatial axis {}, which has {} elements at most",
                      attrs.output_shape[i], i, largest),
          fmt::format("Input {}, kernel {}, stride {}.", input, kernel, axis.stride),
          "Give a smaller output_shape, or a larger input."));
    }
    axis.input = attrs.output_shape.empty() ? full - pads.begin - pads.end : attrs.output_shape[i];
    if (axis.input <= 0) {
      throw ShapeError(problem_at(node,
                                  fmt::format("spatial axis {} would have size {}", i, axis.input),
                                  fmt::format("Input {}, kernel {}, stride {}, pads {} + {}.",
                                              input, kernel, axis.stride, pads.begin, pads.end),
                                  "Use less padding, or a larger input."));
    }
  }
  return {.batch = y[0],
          .groups = groups,
          .in_channels = w[1],
          .out_channels = w[0] / groups,
          .spatial_rank = rank,
          .axes = rank <= 3 ? three_axes(axes) : std::array<WindowAxis, 3>{}};
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::conv_transpose_op {

void register_conv_transpose(opdef::OpRegistry& registry) {
  auto attributes = window_attribute_specs(/*kernel_required=*/false);
  constexpr std::int64_t kMax = std::int64_t{1} << 31;
  attributes.push_back({.name = "group",
                        .type = opdef::AttributeType::kInt,
                        .min = 1,
                        .max = kMax,
                        .default_value = std::int64_t{1}});
  attributes.push_back({.name = "output_padding",
                        .type = opdef::AttributeType::kInts,
                        .min = 0,
                        .max = kMax,
                        .max_count = Dims::kMaxRank - 2});
  attributes.push_back({.name = "output_shape",
                        .type = opdef::AttributeType::kInts,
                        .min = 1,
                        .max = kMax,
                        .max_count = Dims::kMaxRank - 2});
  registry.add({.op_type = "ConvTranspose",
                .since_version = 22,
                .differentiable_inputs = {0, 1, 2},
                .attributes = std::move(attributes),
                .vjp = conv_transpose_vjp,
                .weight_inputs = {1, 2}});
}

}  // namespace onnxgrad::ops::conv_transpose_op

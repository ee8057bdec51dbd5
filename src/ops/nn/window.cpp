#include "ops/nn/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rounding.h"
#include "onnxgrad/error.h"

namespace onnxgrad::ops {

using ir::Value;
using opdef::FunctionBody;

namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;  // largest size along one axis

std::vector<std::int64_t> list_attribute(const ir::Node& node, std::string_view name,
                                         std::size_t count, std::int64_t fallback) {
  std::vector<std::int64_t> list = node.ints_attribute(name);
  if (list.empty()) return std::vector<std::int64_t>(count, fallback);
  if (list.size() != count) {
    throw ModelError(problem_at(
        node, fmt::format("attribute '{}' has {} elements, expected {}", name, list.size(), count),
        "It has one number per spatial axis of the input (pads: two).",
        "Give it this many, or omit it."));
  }
  return list;
}

AutoPad read_auto_pad(const ir::Node& node) {
  // Calls of gradient functions only have pads, no auto_pad.
  const std::string text = node.string_attribute("auto_pad", "");
  if (text == "SAME_UPPER") return AutoPad::kSameUpper;
  if (text == "SAME_LOWER") return AutoPad::kSameLower;
  return text == "VALID" ? AutoPad::kValid : AutoPad::kNotset;
}

// Returns the number of windows along one axis, as ONNX's convPoolShapeInference does.
std::int64_t count_windows(const WindowAxis& axis, bool ceil_mode) {
  // With ceil_mode the last window, even if it is the only one, may extend beyond the padding.
  const std::int64_t room = axis.input + axis.pad_begin + axis.pad_end - axis.extent() +
                            (ceil_mode ? axis.stride - 1 : 0);
  if (room < 0) return 0;
  std::int64_t count = room / axis.stride + 1;
  // A window that would start in the padding after the input is omitted.
  if (ceil_mode && (count - 1) * axis.stride >= axis.input + axis.pad_begin) --count;
  return count;
}

void set_same_pads(WindowAxis& axis, AutoPad auto_pad) {
  const std::int64_t windows = base::ceil_div(axis.input, axis.stride);
  const std::int64_t total =
      std::max<std::int64_t>((windows - 1) * axis.stride + axis.extent() - axis.input, 0);
  axis.pad_begin = auto_pad == AutoPad::kSameUpper ? total / 2 : total - total / 2;
  axis.pad_end = total - axis.pad_begin;
}

void check_size(const ir::Node& node, std::size_t axis, std::string_view name, std::int64_t value) {
  if (value >= 0 && value <= kMaxSize) return;
  throw ShapeError(
      problem_at(node, fmt::format("{} {} of spatial axis {} is out of range", name, value, axis),
                 {}, "Give a non-negative number below 2^31."));
}

}  // namespace

Problem problem_at(const ir::Node& node, std::string what, std::string detail, Hint hint) {
  return {.what = std::move(what),
          .where = {.node = node.name, .op_type = node.op_type},
          .detail = std::move(detail),
          .hint = std::move(hint)};
}

WindowAttrs WindowAttrs::read(const ir::Node& node, std::size_t spatial_rank) {
  WindowAttrs attrs;
  attrs.auto_pad = read_auto_pad(node);
  attrs.kernel = node.ints_attribute("kernel_shape");
  if (!attrs.kernel.empty()) {
    attrs.kernel = list_attribute(node, "kernel_shape", spatial_rank, 1);
  }
  attrs.strides = list_attribute(node, "strides", spatial_rank, 1);
  attrs.dilations = list_attribute(node, "dilations", spatial_rank, 1);
  attrs.pads = list_attribute(node, "pads", 2 * spatial_rank, 0);
  attrs.ceil_mode = node.int_attribute("ceil_mode", 0) != 0;  // pools only
  if (attrs.auto_pad != AutoPad::kNotset && node.find_attribute("pads") != nullptr) {
    throw ModelError(
        problem_at(node, "attribute 'pads' is given together with 'auto_pad'",
                   "ONNX allows only one of them; runtimes disagree on which one applies.",
                   "Remove one of the two."));
  }
  return attrs;
}

std::vector<WindowAxis> resolve_window(const ir::Node& node, const WindowAttrs& attrs,
                                       std::span<const std::int64_t> input,
                                       std::span<const std::int64_t> kernel) {
  const std::size_t rank = attrs.rank();
  ONNXGRAD_ASSERT(input.size() == rank);
  if (!attrs.kernel.empty() && !std::ranges::equal(attrs.kernel, kernel)) {
    throw ShapeError(
        problem_at(node,
                   fmt::format("attribute 'kernel_shape' is [{}], the weight's kernel is [{}]",
                               fmt::join(attrs.kernel, ", "), fmt::join(kernel, ", ")),
                   {}, "Omit kernel_shape, or give it the weight's sizes."));
  }
  std::vector<WindowAxis> axes(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    WindowAxis& axis = axes[i];
    axis = {.input = input[i],
            .kernel = kernel[i],
            .stride = attrs.strides[i],
            .dilation = attrs.dilations[i],
            .pad_begin = attrs.pads[i],
            .pad_end = attrs.pads[rank + i]};
    check_size(node, i, "input size", axis.input);
    check_size(node, i, "kernel size", axis.kernel - 1);
    check_size(node, i, "stride", axis.stride - 1);
    check_size(node, i, "dilation", axis.dilation - 1);
    check_size(node, i, "padding", axis.pad_begin);
    check_size(node, i, "padding", axis.pad_end);
    if (attrs.is_same()) set_same_pads(axis, attrs.auto_pad);
    axis.output = count_windows(axis, attrs.ceil_mode && !attrs.is_same());
    if (axis.output <= 0) {
      throw ShapeError(problem_at(
          node,
          fmt::format("no window fits spatial axis {}: input {}, padding {} + {}, window {}", i,
                      axis.input, axis.pad_begin, axis.pad_end, axis.extent()),
          "A window is (kernel - 1) * dilation + 1 long.",
          "Use larger inputs, more padding or a smaller kernel."));
    }
  }
  return axes;
}

std::array<WindowAxis, 3> three_axes(std::span<const WindowAxis> axes) {
  ONNXGRAD_ASSERT(axes.size() <= 3);
  std::array<WindowAxis, 3> three;
  std::ranges::copy(axes, three.begin() + static_cast<std::ptrdiff_t>(3 - axes.size()));
  return three;
}

std::vector<opdef::AttributeSpec> window_attribute_specs(bool kernel_required) {
  using opdef::AttributeType;
  constexpr std::size_t kMaxAxes = Dims::kMaxRank - 2;
  return {
      {.name = "kernel_shape",
       .type = AttributeType::kInts,
       .required = kernel_required,
       .min = 1,
       .max = kMaxSize,
       .min_count = 1,
       .max_count = kMaxAxes},
      {.name = "strides",
       .type = AttributeType::kInts,
       .min = 1,
       .max = kMaxSize,
       .min_count = 1,
       .max_count = kMaxAxes},
      {.name = "dilations",
       .type = AttributeType::kInts,
       .min = 1,
       .max = kMaxSize,
       .min_count = 1,
       .max_count = kMaxAxes},
      {.name = "pads",
       .type = AttributeType::kInts,
       .min = 0,
       .max = kMaxSize,
       .min_count = 2,
       .max_count = 2 * kMaxAxes},
      {.name = "auto_pad",
       .type = AttributeType::kString,
       .choices = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"},
       .default_value = std::string("NOTSET")},
  };
}

std::string window_key(const WindowAttrs& attrs) {
  using opdef::key_of;
  std::string key = attrs.kernel.empty() ? "k" : "k" + key_of(attrs.kernel);
  key += "_s" + key_of(attrs.strides) + "_d" + key_of(attrs.dilations);
  switch (attrs.auto_pad) {
    case AutoPad::kSameUpper:
      return key + "_same_upper";
    case AutoPad::kSameLower:
      return key + "_same_lower";
    case AutoPad::kValid:
    case AutoPad::kNotset:
      break;
  }
  return key + "_p" + key_of(attrs.pads);
}

Value* kernel_dims(FunctionBody& f, const WindowAttrs& attrs, Value* w) {
  if (!attrs.kernel.empty()) return f.ints(attrs.kernel);
  return f.dims_of(w, 2, static_cast<std::int64_t>(attrs.rank()) + 2);
}

std::vector<PadValues> pad_values(FunctionBody& f, const WindowAttrs& attrs, Value* x, Value* y,
                                  Value* w) {
  std::vector<PadValues> pads;
  for (std::size_t i = 0; i < attrs.rank(); ++i) {
    if (!attrs.is_same()) {
      pads.push_back(
          {.begin = f.ints({attrs.pads[i]}), .end = f.ints({attrs.pads[attrs.rank() + i]})});
      continue;
    }
    // total = max((windows - 1) * stride + extent - input, 0), as in set_same_pads.
    const auto axis = static_cast<std::int64_t>(i) + 2;
    Value* kernel = attrs.kernel.empty() ? f.dims_of(w, axis, axis + 1) : f.ints({attrs.kernel[i]});
    Value* before_last = f.mul(f.dims_of(y, axis, axis + 1), f.ints({attrs.strides[i]}));
    Value* taps = f.mul(kernel, f.ints({attrs.dilations[i]}));
    Value* covered =
        f.add(f.add(before_last, taps), f.ints({1 - attrs.strides[i] - attrs.dilations[i]}));
    Value* total = f.op("Max", {f.sub(covered, f.dims_of(x, axis, axis + 1)), f.ints({0})});
    Value* half = f.div(total, f.ints({2}));
    Value* rest = f.sub(total, half);
    const bool is_upper = attrs.auto_pad == AutoPad::kSameUpper;
    pads.push_back({.begin = is_upper ? half : rest, .end = is_upper ? rest : half});
  }
  return pads;
}

Value* transposed_windows(FunctionBody& f, const WindowAttrs& attrs, std::int64_t group, Value* x,
                          Value* y, Value* w) {
  // Windows cover input + pads except for up to stride - 1 positions at the end: with that much
  // output padding, the slice is never out of bounds.
  std::vector<std::int64_t> output_padding;
  std::vector<std::int64_t> axes;
  for (std::size_t i = 0; i < attrs.rank(); ++i) {
    output_padding.push_back(attrs.strides[i] - 1);
    axes.push_back(static_cast<std::int64_t>(i) + 2);
  }
  Value* full = f.op("ConvTranspose", {y, w},
                     {{.name = "strides", .value = attrs.strides},
                      {.name = "dilations", .value = attrs.dilations},
                      {.name = "output_padding", .value = output_padding},
                      {.name = "group", .value = group}});
  std::vector<Value*> begins;
  for (const PadValues& pad : pad_values(f, attrs, x, y, w)) begins.push_back(pad.begin);
  Value* starts = f.concat(begins, 0);
  Value* ends = f.add(starts, f.dims_of(x, 2, static_cast<std::int64_t>(attrs.rank()) + 2));
  return f.op("Slice", {full, starts, ends, f.ints(axes)});
}

}  // namespace onnxgrad::ops

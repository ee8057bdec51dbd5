#include "ops/image/resize_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::ops {
namespace {

// Rounds coordinates that are almost whole or half numbers: scales are float32, which limits their
// accuracy (element 5 of 3 / 0.6 is at 4.9999998).
double snapped(double x) {
  const double halves = std::round(2 * x);
  const double tolerance = std::ldexp(std::max(1.0, std::abs(x)), -22);
  return std::abs(x - halves / 2) <= tolerance ? halves / 2 : x;
}

// Returns the input coordinate of output element `o`; see ONNX's attribute
// coordinate_transformation_mode. The output length is a fraction if it follows from a scale.
double source_coordinate(const std::string& mode, const ResizeAxis& axis, double o) {
  const double width = axis.scale * static_cast<double>(axis.input);
  const double last = static_cast<double>(axis.input) - 1;
  if (mode == "asymmetric") return o / axis.scale;
  if (mode == "tf_half_pixel_for_nn") {  // Resize-11 only; a scale of 1 changes nothing
    return axis.scale == 1 ? o : (o + 0.5) / axis.scale;
  }
  if (mode == "align_corners") return width == 1 ? 0 : o * last / (width - 1);
  if (mode == "tf_crop_and_resize") {
    const double extent = (axis.roi_end - axis.roi_start) * last;
    return axis.roi_start * last + (width == 1 ? extent / 2 : o * extent / (width - 1));
  }
  const double centre = (o + 0.5) / axis.scale - 0.5;
  if (mode == "pytorch_half_pixel") return axis.output > 1 ? centre : 0;
  if (mode == "half_pixel_symmetric") {
    const double adjustment = static_cast<double>(axis.output) / width;
    return static_cast<double>(axis.input) / 2 * (1 - adjustment) + centre;
  }
  return centre;  // half_pixel
}

double nearest(const std::string& mode, double x) {
  if (mode == "floor") return std::floor(x);
  if (mode == "ceil") return std::ceil(x);
  if (mode == "round_prefer_ceil") return std::floor(x + 0.5);
  return std::ceil(x - 0.5);  // round_prefer_floor
}

// Keys, Cubic convolution interpolation for digital image processing, 1981.
double cubic_weight(double a, double distance) {
  const double d = std::abs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

class TableBuilder {
 public:
  TableBuilder(const ResizeAttrs& attrs, const ResizeAxis& axis) : attrs_(attrs), axis_(axis) {
    table_.input = axis.input;
    table_.output = axis.output;
    table_.starts.push_back(0);
  }

  ResizeTable build() && {
    for (std::int64_t o = 0; o < axis_.output; ++o) {
      add(source_coordinate(attrs_.coordinates, axis_, static_cast<double>(o)));
      table_.starts.push_back(static_cast<std::int32_t>(table_.indices.size()));
    }
    return std::move(table_);
  }

 private:
  void add(double x) {
    const double last = static_cast<double>(axis_.input) - 1;
    const bool is_crop = attrs_.coordinates == "tf_crop_and_resize";
    if (is_crop && !(snapped(x) >= 0 && snapped(x) <= last)) return;
    if (attrs_.mode == "nearest") return push(nearest(attrs_.nearest_mode, snapped(x)), 1);
    // Antialiasing stretches the filter by 1 / scale, so that it covers all input elements.
    const double stretch = attrs_.antialias ? std::min(axis_.scale, 1.0) : 1.0;
    const double radius = (attrs_.mode == "cubic" ? 2 : 1) / stretch;
    const double first = std::floor(x - radius) + 1;
    const double end = std::ceil(x + radius);
    const auto weight = [&](double i) {
      const double distance = (i - x) * stretch;
      return attrs_.mode == "cubic" ? cubic_weight(attrs_.cubic_a, distance)
                                    : std::max(0.0, 1 - std::abs(distance));
    };
    const auto counts = [&](double i) { return !attrs_.exclude_outside || (i >= 0 && i <= last); };
    double total = 0;
    // NOLINTNEXTLINE(bugprone-float-loop-counter): whole numbers
    for (double i = first; i < end; ++i) total += counts(i) ? weight(i) : 0;
    const bool is_scaled = (attrs_.antialias || attrs_.exclude_outside) && total != 0;
    // NOLINTNEXTLINE(bugprone-float-loop-counter)
    for (double i = first; i < end; ++i) {
      if (counts(i)) push(i, is_scaled ? weight(i) / total : weight(i));
    }
    if (table_.starts.back() != static_cast<std::int32_t>(table_.indices.size())) return;
    table_.indices.push_back(0);  // all weights are 0: a sum of 0
    table_.weights.push_back(0);
  }

  // Adds an entry; indices outside are clamped to the border.
  void push(double index, double weight) {
    const double last = static_cast<double>(axis_.input) - 1;
    constexpr auto kMostEntries =
        static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
    if (table_.indices.size() == kMostEntries) {
      throw ShapeError({.what = "an axis of " + std::to_string(axis_.output) +
                                " elements, which are sums of more than 2^31 others",
                        .hint = "Resize to a smaller size, or without antialias."});
    }
    const auto i = static_cast<std::int32_t>(std::clamp(index, 0.0, last));
    const auto first = static_cast<std::size_t>(table_.starts.back());
    if (table_.indices.size() > first && table_.indices.back() == i) {
      table_.weights.back() += weight;
      return;
    }
    if (weight == 0 && attrs_.mode != "nearest") return;
    table_.indices.push_back(i);
    table_.weights.push_back(weight);
  }

  const ResizeAttrs& attrs_;
  const ResizeAxis& axis_;
  ResizeTable table_;
};

[[noreturn]] void refuse(const ir::Node& node, std::string what, Hint hint) {
  throw ShapeError({.what = std::move(what),
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = std::move(hint)});
}

// Returns the axes that the node names, in the order of its lists.
std::vector<std::size_t> named_axes(const ir::Node& node, std::size_t rank) {
  std::vector<std::size_t> axes;
  for (const std::int64_t axis : node.ints_attribute("axes")) {
    axes.push_back(static_cast<std::size_t>(normalize_axis(axis, rank)));
  }
  if (axes.empty()) {
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), std::size_t{0});
  }
  return axes;
}

void expect_count(const ir::Node& node, const char* name, std::size_t count, std::size_t expected) {
  if (count == expected) return;
  refuse(node, fmt::format("{} has {} elements, expected {}", name, count, expected),
         "Give one number per axis, or per element of the attribute 'axes' (roi: two).");
}

// Returns the one scale for all axes that keeps the aspect ratio.
double common_scale(const std::vector<ResizeAxis>& axes, const std::vector<std::size_t>& named,
                    const std::vector<std::int64_t>& sizes, bool is_smallest) {
  double scale = is_smallest ? std::numeric_limits<double>::infinity() : 0;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const double ratio = static_cast<double>(sizes[i]) / static_cast<double>(axes[named[i]].input);
    scale = is_smallest ? std::min(scale, ratio) : std::max(scale, ratio);
  }
  return scale;
}

void check_axis(const ir::Node& node, std::size_t i, const ResizeAxis& axis) {
  if (axis.output > 0 && axis.input == 0) {
    refuse(node, fmt::format("axis {} is empty and cannot be resized to {}", i, axis.output),
           "Resize inputs that are not empty.");
  }
  constexpr std::int64_t kMax = std::int64_t{1} << 30;
  if (axis.input > kMax || axis.output > kMax) {
    refuse(node, fmt::format("axis {} has more than 2^30 elements", i), "Use smaller images.");
  }
  if (axis.output > 0 && !(axis.scale > 0 && std::isfinite(axis.scale))) {
    refuse(node,
           fmt::format("the scale of axis {} is {}, expected a positive number", i, axis.scale),
           "Give positive scales, or the sizes of the output.");
  }
}

}  // namespace

bool ResizeTable::is_selection() const {
  for (std::int64_t o = 0; o < output; ++o) {
    const std::int32_t first = starts[static_cast<std::size_t>(o)];
    const std::int32_t count = starts[static_cast<std::size_t>(o) + 1] - first;
    if (count > 1 || (count == 1 && weights[static_cast<std::size_t>(first)] != 1)) return false;
  }
  return true;
}

bool ResizeTable::is_identity() const {
  if (input != output || static_cast<std::int64_t>(indices.size()) != output) return false;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (starts[i] != static_cast<std::int32_t>(i) || indices[i] != static_cast<std::int32_t>(i) ||
        weights[i] != 1) {
      return false;
    }
  }
  return true;
}

ResizeTable ResizeTable::transposed() const {
  ResizeTable result{.input = output, .output = input};
  result.starts.assign(static_cast<std::size_t>(input) + 1, 0);
  for (const std::int32_t i : indices) ++result.starts[static_cast<std::size_t>(i) + 1];
  std::partial_sum(result.starts.begin(), result.starts.end(), result.starts.begin());
  result.indices.resize(indices.size());
  result.weights.resize(indices.size());
  std::vector<std::int32_t> next(result.starts.begin(), result.starts.end() - 1);
  for (std::int64_t o = 0; o < output; ++o) {
    const auto end = static_cast<std::size_t>(starts[static_cast<std::size_t>(o) + 1]);
    for (auto t = static_cast<std::size_t>(starts[static_cast<std::size_t>(o)]); t < end; ++t) {
      const auto place = static_cast<std::size_t>(next[static_cast<std::size_t>(indices[t])]++);
      result.indices[place] = static_cast<std::int32_t>(o);
      result.weights[place] = weights[t];
    }
  }
  return result;
}

ResizeAttrs ResizeAttrs::read(const ir::Node& node) {
  ResizeAttrs attrs{.mode = node.string_attribute("mode"),
                    .coordinates = node.string_attribute("coordinate_transformation_mode"),
                    .nearest_mode = node.string_attribute("nearest_mode"),
                    .cubic_a = node.float_attribute("cubic_coeff_a"),
                    .antialias = node.int_attribute("antialias") != 0,
                    .exclude_outside = node.int_attribute("exclude_outside") != 0};
  if (attrs.antialias && attrs.mode == "nearest") {
    throw ModelError({.what = "attribute 'antialias' is 1 with mode nearest",
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Use mode linear or cubic, or antialias 0."});
  }
  return attrs;
}

ResizeTable make_resize_table(const ResizeAttrs& attrs, const ResizeAxis& axis) {
  return TableBuilder(attrs, axis).build();
}

std::vector<ResizeAxis> resolve_resize(const ir::Node& node, const Dims& x, const Dims& y,
                                       const ResizeInputs& inputs) {
  if (inputs.scales.has_value() == inputs.sizes.has_value()) {
    throw ModelError({.what = inputs.scales ? "both scales and sizes are given"
                                            : "neither scales nor sizes are given",
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Give one of the two."});
  }
  const std::vector<std::size_t> named = named_axes(node, x.rank());
  std::vector<ResizeAxis> axes(x.rank());
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = {.input = x[i], .output = y[i]};
  if (inputs.scales) {
    expect_count(node, "scales", inputs.scales->size(), named.size());
    for (std::size_t i = 0; i < named.size(); ++i) axes[named[i]].scale = (*inputs.scales)[i];
  } else {
    expect_count(node, "sizes", inputs.sizes->size(), named.size());
    const std::string policy = node.string_attribute("keep_aspect_ratio_policy");
    const double common = common_scale(axes, named, *inputs.sizes, policy == "not_larger");
    for (const std::size_t i : named) {
      const double ratio = static_cast<double>(y[i]) / static_cast<double>(x[i]);
      axes[i].scale = policy == "stretch" ? ratio : common;
    }
  }
  if (node.string_attribute("coordinate_transformation_mode") == "tf_crop_and_resize") {
    if (!inputs.roi) {
      throw ModelError({.what = "tf_crop_and_resize without a region of interest",
                        .where = {.node = node.name, .op_type = node.op_type, .value = "roi"},
                        .hint = "Give input roi: the starts of all axes, then the ends."});
    }
    expect_count(node, "roi", inputs.roi->size(), 2 * named.size());
    for (std::size_t i = 0; i < named.size(); ++i) {
      axes[named[i]].roi_start = (*inputs.roi)[i];
      axes[named[i]].roi_end = (*inputs.roi)[named.size() + i];
    }
  }
  for (std::size_t i = 0; i < axes.size(); ++i) check_axis(node, i, axes[i]);
  return axes;
}

namespace {

ResizeInputs read_inputs(const opdef::KernelRequest& request, std::size_t roi, std::size_t scales,
                         std::size_t sizes) {
  ResizeInputs inputs;
  const auto value = [&](std::size_t i) -> const Tensor* {
    if (i >= request.constants.size() || request.constants[i] == nullptr) return nullptr;
    return request.constants[i]->num_elements() == 0 ? nullptr : request.constants[i];
  };
  if (const Tensor* given = value(roi)) inputs.roi = given->to_doubles();
  if (const Tensor* given = value(scales)) inputs.scales = given->to_doubles();
  if (const Tensor* given = value(sizes)) inputs.sizes = given->to_int64s();
  return inputs;
}

}  // namespace

ResizeInputs resize_inputs(const opdef::KernelRequest& request) {
  return read_inputs(request, 1, 2, 3);
}

ResizeInputs resize_grad_inputs(const opdef::KernelRequest& request) {
  const bool by_sizes = request.node.string_attribute("given") == "sizes";
  constexpr std::size_t kAbsent = 9;
  return read_inputs(request, 3, by_sizes ? kAbsent : 2, by_sizes ? 2 : kAbsent);
}

}  // namespace onnxgrad::ops

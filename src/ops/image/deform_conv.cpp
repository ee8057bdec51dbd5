#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "opdef/registry.h"
#include "ops/nn/window.h"
#include "ops/rules.h"

// DeformConv: a convolution whose taps are moved by offsets and weighted by a mask: GridSample
// gathers the values of x, and a matrix product with W follows, as after im2col. Both have
// gradients.

namespace onnxgrad::ops::deform_conv_op {
namespace {

// Sizes of the node that the lowering reads, int64 [1].
struct Layout {
  Value* batch = nullptr;
  Value* channels = nullptr;
  Value* kernel[2] = {nullptr, nullptr};
  Value* output[2] = {nullptr, nullptr};
  Value* taps = nullptr;
  std::int64_t groups = 1;
  std::int64_t offset_groups = 1;
};

Layout read_layout(const Node& node, GraphBuilder& g) {
  Layout layout{.batch = dim_value(g, node.inputs[0], 0),
                .channels = dim_value(g, node.inputs[0], 1),
                .groups = node.int_attribute("group"),
                .offset_groups = node.int_attribute("offset_group")};
  const std::vector<std::int64_t> kernel = node.ints_attribute("kernel_shape");
  for (std::int64_t a = 0; a < 2; ++a) {
    layout.kernel[a] = kernel.empty() ? dim_value(g, node.inputs[1], a + 2)
                                      : g.ints({kernel[static_cast<std::size_t>(a)]});
    layout.output[a] = dim_value(g, node.inputs[2], a + 2);
  }
  layout.taps = g.mul(layout.kernel[0], layout.kernel[1]);
  return layout;
}

// Returns the smallest power of two that is at least size - 1, int64 [1]. In an image with that
// number of pixels plus one, whole pixels lie at whole multiples of a power of two of the grid: an
// offset of 0 then reads exactly one pixel, and has the slope to the right.
Value* even_extent(GraphBuilder& g, Value* size) {
  if (const auto known = constant_ints(size)) {
    const auto extent = static_cast<std::uint64_t>(std::max<std::int64_t>(known->front() - 1, 1));
    return g.ints({static_cast<std::int64_t>(std::bit_ceil(extent))});
  }
  Value* extent = g.op("Max", {g.sub(size, g.ints({1})), g.ints({1})});
  Value* two = g.constant(Tensor::from(std::vector<double>{2}, Dims{1}), "two");
  Value* logarithm = g.div(g.log(g.cast(extent, DataType::kFloat64)), g.log(two));
  return g.cast(g.pow(two, g.op("Ceil", {logarithm})), DataType::kInt64);
}

// Positions of the window taps along axis `a` without offsets: [k, 1, O] of like's dtype.
Value* tap_positions(GraphBuilder& g, const WindowAttrs& attrs, const Layout& layout, std::size_t a,
                     Value* like) {
  Value* zero = g.ints({0});
  Value* windows = g.mul(range_value(g, zero, layout.output[a]), g.ints({attrs.strides[a]}));
  Value* taps = g.mul(range_value(g, zero, layout.kernel[a]), g.ints({attrs.dilations[a]}));
  Value* first = g.sub(windows, g.ints({attrs.pads[a]}));
  return g.cast_like(g.add(g.unsqueeze(taps, {1, 2}), first), like);
}

// Builds the sampling grid [N groups, kH kW oH, oW, 2]. offset: [N, groups kH kW 2, oH, oW].
Value* sample_grid(GraphBuilder& g, const WindowAttrs& attrs, const Layout& layout, Value* offset,
                   Value* const extents[2]) {
  Value* images = g.mul(layout.batch, g.ints({layout.offset_groups}));
  Value* offsets = g.reshape(offset, g.concat({images, layout.kernel[0], layout.kernel[1],
                                               g.ints({2}), layout.output[0], layout.output[1]},
                                              0));
  std::vector<Value*> columns;  // the innermost axis comes first
  for (const std::size_t a : {std::size_t{1}, std::size_t{0}}) {
    const auto part = static_cast<std::int64_t>(a);
    Value* own = g.squeeze(g.slice(offsets, {part}, {part + 1}, {3}), {3});  // [., kH, kW, oH, oW]
    Value* base = tap_positions(g, attrs, layout, a, offset);                // [k, 1, O]
    base = a == 0 ? g.unsqueeze(g.transpose(base, {0, 2, 1}), {1}) : base;   // [kH, 1, oH, 1]
    Value* factor = g.div(g.scalar_like(offset, 2), g.cast_like(extents[a], offset));
    Value* scaled = g.sub(g.mul(g.add(own, base), factor), g.scalar_like(offset, 1));
    columns.push_back(g.unsqueeze(scaled, {5}));
  }
  Value* rows = g.mul(layout.taps, layout.output[0]);
  return g.reshape(g.concat(columns, 5),
                   g.concat({images, rows, layout.output[1], g.ints({2})}, 0));
}

std::optional<std::vector<Value*>> lower_deform_conv(const Node& node, GraphBuilder& g) {
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    if (known_rank(node.input(i)) != 4) return std::nullopt;
  }
  const WindowAttrs attrs = WindowAttrs::read(node, 2);
  const Layout layout = read_layout(node, g);
  Value* x = node.inputs[0];
  Value* offset = node.inputs[2];
  Value* extents[2] = {even_extent(g, dim_value(g, x, 2)), even_extent(g, dim_value(g, x, 3))};
  Value* one = g.ints({1});
  Value* more[2];
  for (std::int64_t a = 0; a < 2; ++a) {
    more[a] = g.sub(g.add(extents[a], one), dim_value(g, x, a + 2));
  }
  Value* padded = g.op("Pad", {x, g.concat({g.ints({0, 0, 0, 0, 0, 0}), more[0], more[1]}, 0)});
  Value* images = g.mul(layout.batch, g.ints({layout.offset_groups}));
  Value* depth = g.div(layout.channels, g.ints({layout.offset_groups}));
  Value* parts = g.reshape(
      padded, g.concat({images, depth, g.add(extents[0], one), g.add(extents[1], one)}, 0));
  Value* sampled = g.op("GridSample", {parts, sample_grid(g, attrs, layout, offset, extents)},
                        {{"align_corners", std::int64_t{1}}});
  if (Value* mask = node.input(4)) {
    Value* rows = g.mul(layout.taps, layout.output[0]);
    sampled = g.mul(sampled, g.reshape(mask, g.concat({images, one, rows, layout.output[1]}, 0)));
  }
  // Reshapes to [N, groups, C / groups kH kW, oH oW] for the product with W as [groups, M / groups,
  // C / groups kH kW].
  Value* groups = g.ints({layout.groups});
  Value* inner = g.mul(g.div(layout.channels, groups), layout.taps);
  Value* outer = g.div(dim_value(g, node.inputs[1], 0), groups);
  Value* pixels = g.mul(layout.output[0], layout.output[1]);
  Value* columns = g.reshape(sampled, g.concat({layout.batch, groups, inner, pixels}, 0));
  Value* weights = g.reshape(node.inputs[1], g.concat({groups, outer, inner}, 0));
  Value* y = g.reshape(
      g.matmul(weights, columns),
      g.concat({layout.batch, dim_value(g, node.inputs[1], 0), layout.output[0], layout.output[1]},
               0));
  if (Value* bias = node.input(3)) y = g.add(y, g.unsqueeze(bias, {1, 2}));
  return {{y}};
}

AttributeSpec count_attribute(std::string_view name) {
  return {.name = name, .min = 1, .max = 1 << 30, .default_value = std::int64_t{1}};
}

}  // namespace

void register_deform_conv(opdef::OpRegistry& registry) {
  std::vector<AttributeSpec> attributes = window_attribute_specs(/*kernel_required=*/false);
  std::erase_if(attributes, [](const AttributeSpec& spec) { return spec.name == "auto_pad"; });
  attributes.push_back(count_attribute("group"));
  attributes.push_back(count_attribute("offset_group"));
  registry.add({.op_type = "DeformConv",
                .since_version = 22,
                .attributes = std::move(attributes),
                .lower = lower_deform_conv,
                .weight_inputs = {1, 3}});
}

}  // namespace onnxgrad::ops::deform_conv_op

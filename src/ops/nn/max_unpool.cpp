#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/nn/window.h"
#include "ops/rules.h"

namespace onnxgrad::ops::max_unpool_op {
namespace {

// Checks that a known output_shape has room for at least `least` elements along the axis, the size
// of the tensor whose pool x is.
void check_room(const Node& node, std::size_t axis, std::int64_t least) {
  const auto sizes = constant_ints(node.input(2));
  if (!sizes || sizes->size() <= axis || (*sizes)[axis] >= least) return;
  throw ShapeError({.what = "output_shape has " + std::to_string((*sizes)[axis]) +
                            " elements along axis " + std::to_string(axis) + ", expected " +
                            std::to_string(least) + " or more",
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = "Give the shape of the tensor that was pooled."});
}

// y = zeros with x at the indices, which refer to the tensor that was pooled to x, of size (X - 1)
// * stride - pads + kernel along each spatial axis. In a larger output_shape that tensor is the
// corner at the origin.
std::optional<std::vector<Value*>> lower_max_unpool(const Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  const std::size_t rank = node.ints_attribute("kernel_shape").size();
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  std::vector<Value*> dims = {dim_value(g, x, 0), dim_value(g, x, 1)};
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t more =
        attrs.kernel[i] - attrs.strides[i] - attrs.pads[i] - attrs.pads[rank + i];
    constexpr std::int64_t kMostKnown = std::int64_t{1} << 31;  // no product below overflows
    if (const auto known = known_dim(x, static_cast<std::int64_t>(i) + 2);
        known && *known <= kMostKnown) {
      check_room(node, i + 2, *known * attrs.strides[i] + more);
    }
    Value* size = dim_value(g, x, static_cast<std::int64_t>(i) + 2);
    dims.push_back(g.add(g.mul(size, g.ints({attrs.strides[i]})), g.ints({more})));
  }
  Value* shape = g.concat(dims, 0);
  Value* zeros = zeros_of_shape(g, g.op("ReduceProd", {shape}), x);
  Value* flat =
      g.op("ScatterElements", {zeros, g.reshape(node.inputs[1], {-1}), g.reshape(x, {-1})},
           {{"axis", std::int64_t{0}}});
  Value* y = g.reshape(flat, shape);
  if (Value* wanted = node.input(2)) {
    std::vector<std::int64_t> none(rank + 2, 0);
    y = g.op("Pad", {y, g.concat({g.ints(none), g.sub(wanted, shape)}, 0)});
  }
  return {{y}};
}

}  // namespace

void register_max_unpool(opdef::OpRegistry& registry) {
  std::vector<AttributeSpec> attributes = window_attribute_specs(/*kernel_required=*/true);
  std::erase_if(attributes, [](const AttributeSpec& spec) {
    return spec.name == "dilations" || spec.name == "auto_pad";
  });
  registry.add({.op_type = "MaxUnpool",
                .since_version = 22,
                .attributes = std::move(attributes),
                .lower = lower_max_unpool});
}

}  // namespace onnxgrad::ops::max_unpool_op

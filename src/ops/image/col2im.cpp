#include <utility>
#include <vector>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/nn/window.h"
#include "ops/rules.h"

// Col2Im: y = zeros to which the blocks in the columns are added at their positions,
// y[n, c, l stride + k dilation - pad] += x[n, c K + k, l].  dx[n, c K + k, l] = dy at that
// position, 0 in the padding: a call of Col2ImGrad.

namespace onnxgrad::ops::col2im_op {
namespace {

std::vector<Value*> col2im_vjp(VjpContext& ctx, GraphBuilder& g) {
  const auto rank = static_cast<std::int64_t>(required_rank(ctx, 0));
  const auto axes = known_dim(ctx.input(1), 0);
  if (rank != 3 || !axes) {
    throw GradientError(problem_at(ctx.node(), "the number of the image's axes is not known", {},
                                   "Give image_shape as a list of known length."));
  }
  std::vector<Attribute> attributes = ctx.node().attributes;
  attributes.push_back({"axes", *axes});
  return {g.call("Col2ImGrad", {ctx.cotangent(0), ctx.input(1), ctx.input(2)}, 1,
                 std::move(attributes))[0],
          nullptr, nullptr};
}

Node call_node(std::string_view base_name, const std::vector<Attribute>& attributes) {
  Node node;
  node.op_type = base_name;
  node.attributes = attributes;
  return node;
}

// dx from (dy, image_shape, block_shape): gathers elements of dy, with a zero appended for the
// padding.
ir::Function col2im_grad_body(std::string_view base_name, const std::vector<Value*>&,
                              const std::vector<Attribute>& attributes) {
  const Node node = call_node(base_name, attributes);
  const auto rank = static_cast<std::size_t>(node.int_attribute("axes"));
  const WindowAttrs attrs = WindowAttrs::read(node, rank);
  FunctionBody f(base_name, "a" + std::to_string(rank) + "_" + window_key(attrs), attributes);
  Value* dy = f.input("dy");
  Value* image = f.input("image_shape");
  Value* block = f.input("block_shape");
  Value* zero = f.int_scalar(0);
  Value* one = f.int_scalar(1);
  Value* places = nullptr;  // flat [k..., l...] of the axes so far
  Value* is_inside = nullptr;
  for (std::size_t i = 0; i < rank; ++i) {
    const auto axis = static_cast<std::int64_t>(i);
    Value* size = f.slice(image, {axis}, {axis + 1}, {0});
    Value* kernel = f.slice(block, {axis}, {axis + 1}, {0});
    Value* extent =
        f.add(f.mul(f.sub(kernel, f.ints({1})), f.ints({attrs.dilations[i]})), f.ints({1}));
    Value* room = f.sub(f.add(size, f.ints({attrs.pads[i] + attrs.pads[rank + i]})), extent);
    Value* count = f.add(f.div(room, f.ints({attrs.strides[i]})), f.ints({1}));
    const auto range = [&](Value* n) { return f.op("Range", {zero, f.squeeze(n, {0}), one}); };
    Value* first = f.sub(f.mul(range(count), f.ints({attrs.strides[i]})), f.ints({attrs.pads[i]}));
    Value* taps = f.mul(range(kernel), f.ints({attrs.dilations[i]}));
    Value* own = f.add(f.unsqueeze(taps, {1}), first);  // [k, l]
    Value* fits = f.op("And", {f.op("GreaterOrEqual", {own, zero}), f.less(own, size)});
    if (i == 0) {
      places = own;
      is_inside = fits;
      continue;
    }
    // Combines [K, 1, L, 1] with [k, 1, l] into [K k, L l].
    Value* shape = f.concat(
        {f.mul(f.dims_of(places, 0, 1), kernel), f.mul(f.dims_of(places, 1, 2), count)}, 0);
    Value* rows = f.mul(f.unsqueeze(places, {1, 3}), size);
    places = f.reshape(f.add(rows, f.unsqueeze(own, {1})), shape);
    is_inside =
        f.reshape(f.op("And", {f.unsqueeze(is_inside, {1, 3}), f.unsqueeze(fits, {1})}), shape);
  }
  Value* plane = f.op("ReduceProd", {image});
  places = f.where(is_inside, places, plane);
  Value* flat = f.reshape(dy, f.concat({f.dims_of(dy, 0, 2), plane}, 0));
  Value* padded = f.op("Pad", {flat, f.ints({0, 0, 0, 0, 0, 1})});
  Value* blocks = f.gather(padded, places, 2);  // [N, C, K, L]
  Value* depth = f.mul(f.dims_of(dy, 1, 2), f.op("ReduceProd", {block}));
  Value* shape = f.concat({f.dims_of(dy, 0, 1), depth, f.dims_of(places, 1, 2)}, 0);
  return std::move(f).finish({f.reshape(blocks, shape)});
}

std::vector<Value*> col2im_grad_vjp(VjpContext& ctx, GraphBuilder& g) {
  std::vector<Attribute> attributes = ctx.node().attributes;
  std::erase_if(attributes, [](const Attribute& a) { return a.name == "axes"; });
  return {g.op("Col2Im", {ctx.cotangent(0), ctx.input(1), ctx.input(2)}, std::move(attributes)),
          nullptr, nullptr};
}

std::vector<AttributeSpec> col2im_specs() {
  std::vector<AttributeSpec> specs = window_attribute_specs(/*kernel_required=*/false);
  std::erase_if(specs, [](const AttributeSpec& spec) {
    return spec.name == "auto_pad" || spec.name == "kernel_shape";
  });
  return specs;
}

}  // namespace

void register_col2im(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Col2Im",
                .since_version = 18,
                .differentiable_inputs = {0},
                .attributes = col2im_specs(),
                .vjp = col2im_vjp,
                .planned_inputs = {1, 2}});
  std::vector<AttributeSpec> specs = col2im_specs();
  specs.push_back({.name = "axes", .required = true, .min = 1, .max = 16});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "Col2ImGrad",
                .differentiable_inputs = {0},
                .attributes = std::move(specs),
                .vjp = col2im_grad_vjp,
                .function_body = col2im_grad_body,
                .planned_inputs = {1, 2}});
}

}  // namespace onnxgrad::ops::col2im_op

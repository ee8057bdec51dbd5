#include <algorithm>

#include "opdef/registry.h"
#include "ops/rules.h"

// Constant, Shape and Size, which follow from attributes and types, and the operators that create
// tensors from shapes and scalars.

namespace onnxgrad::ops::shape_op {
namespace {

std::optional<Tensor> shape_from_types(const Node& node) {
  const ir::Type& type = node.inputs[0]->type;
  if (!type.has_rank()) return std::nullopt;
  const auto rank = static_cast<std::int64_t>(type.rank());
  const auto clamped = [rank](std::int64_t axis) {
    return std::clamp<std::int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const std::int64_t start = clamped(node.int_attribute("start"));
  const std::int64_t end = clamped(node.int_attribute("end", rank));
  std::vector<std::int64_t> sizes;
  for (std::int64_t axis = start; axis < end; ++axis) {
    const ir::Dim& dim = (*type.shape)[static_cast<std::size_t>(axis)];
    if (!dim.is_static()) return std::nullopt;
    sizes.push_back(dim.value());
  }
  return Tensor::from(sizes, Dims{static_cast<std::int64_t>(sizes.size())});
}

std::optional<Tensor> size_from_types(const Node& node) {
  const auto dims = node.inputs[0]->type.static_dims();
  if (!dims) return std::nullopt;
  return Tensor::scalar(dims->num_elements());
}

std::optional<Tensor> constant_from_attributes(const Node& node) {
  if (node.attributes.size() != 1) return std::nullopt;
  const auto list_dims = [](std::size_t size) { return Dims{static_cast<std::int64_t>(size)}; };
  const ir::AttributeValue& value = node.attributes.front().value;
  if (const auto* tensor = std::get_if<Tensor>(&value)) return *tensor;
  if (const auto* number = std::get_if<std::int64_t>(&value)) return Tensor::scalar(*number);
  if (const auto* number = std::get_if<float>(&value)) return Tensor::scalar(*number);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    return Tensor::from(*list, list_dims(list->size()));
  }
  if (const auto* list = std::get_if<std::vector<float>>(&value)) {
    return Tensor::from(*list, list_dims(list->size()));
  }
  return std::nullopt;
}

// y_i = start + i delta for i below (limit - start) / delta;  dstart = sum dy, ddelta = sum i dy;
// the limit only determines the number of elements, which depends on data, not on types.
std::vector<Value*> range_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);  // [n]; start and delta are [] or [1]
  const auto sum_for = [&g](Value* v, const Value* number) {
    const bool is_list = number->type.has_rank() && number->type.rank() == 1;
    return g.reduce_sum(v, {}, /*keepdims=*/is_list);
  };
  Value* count = g.squeeze(dim_value(g, ctx.output(0), 0), {0});
  Value* numbers = g.op("Range", {g.int_scalar(0), count, g.int_scalar(1)});
  return {ctx.needs(0) ? sum_for(dy, ctx.input(0)) : nullptr,
          ctx.needs(1) ? g.zeros_like(ctx.input(1)) : nullptr,
          ctx.needs(2) ? sum_for(g.mul(dy, g.cast_like(numbers, dy)), ctx.input(2)) : nullptr};
}

AttributeSpec whole_number(std::string_view name) {
  return {.name = name, .type = AttributeType::kInt, .default_value = std::int64_t{0}};
}

}  // namespace

void register_shape(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Constant",
                .since_version = 25,
                .attributes = {{.name = "sparse_value", .type = AttributeType::kOther},
                               {.name = "value", .type = AttributeType::kTensor},
                               {.name = "value_float", .type = AttributeType::kFloat},
                               {.name = "value_floats", .type = AttributeType::kFloats},
                               {.name = "value_int", .type = AttributeType::kInt},
                               {.name = "value_ints", .type = AttributeType::kInts},
                               {.name = "value_string", .type = AttributeType::kString},
                               {.name = "value_strings", .type = AttributeType::kStrings}},
                .fold_types = constant_from_attributes,
                .zero_gradient = true});
  registry.add({.op_type = "Shape",
                .since_version = 25,
                .attributes = {axis_attribute("start", 0), axis_attribute("end")},
                .fold_types = shape_from_types,
                .zero_gradient = true});
  registry.add({.op_type = "Size",
                .since_version = 25,
                .fold_types = size_from_types,
                .zero_gradient = true});
  registry.add({.op_type = "ConstantOfShape",
                .since_version = 25,
                .attributes = {{.name = "value", .type = AttributeType::kTensor}},
                .shape_inputs = {0},
                .zero_gradient = true});
  registry.add({.op_type = "EyeLike",
                .since_version = 22,
                .attributes = {{.name = "dtype",
                                .type = AttributeType::kInt,
                                .min = static_cast<std::int64_t>(DataType::kFloat32),
                                .max = static_cast<std::int64_t>(DataType::kInt2)},
                               whole_number("k")},
                .zero_gradient = true});
  registry.add({.op_type = "Range",
                .since_version = 11,
                .differentiable_inputs = {0, 1, 2},
                .vjp = range_vjp,
                .shape_inputs = {0, 1, 2}});
}

}  // namespace onnxgrad::ops::shape_op

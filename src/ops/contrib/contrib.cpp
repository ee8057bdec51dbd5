#include "ops/contrib/contrib.h"

#include <fmt/format.h>

#include <numbers>
#include <utility>

namespace onnxgrad::ops {

void check_inputs(const Node& node, std::size_t required,
                  std::initializer_list<std::string_view> names) {
  const Place where{.node = node.name, .op_type = node.op_type};
  if (node.inputs.size() > names.size()) {
    throw ModelError({.what = fmt::format("{} inputs, expected {} to {}", node.inputs.size(),
                                          required, names.size()),
                      .where = where,
                      .hint = "Export the model again, or correct the inputs of the node."});
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Value* input = node.input(i);
    std::string_view name = names.begin()[i];
    const bool is_optional = i >= required || name.ends_with('?');
    if (name.ends_with('?')) name.remove_suffix(1);
    if (input == nullptr && !is_optional) {
      throw ModelError({.what = fmt::format("input {} is missing", name),
                        .where = where,
                        .hint = "Name a value for it, or export the model again."});
    }
    if (input == nullptr || input->type.is_tensor() ||
        input->type.kind == ir::Type::Kind::kUnknown) {
      continue;
    }
    throw ModelError({.what = fmt::format("input {} '{}' is {}, expected a tensor", name,
                                          input->name, input->type.to_string()),
                      .where = where,
                      .hint = "Take the tensor out of the sequence, optional or map."});
  }
}

void refuse_form(const Node& node, std::string what, Hint hint) {
  throw UnsupportedOperatorError(
      {.what = std::move(what),
       .where = {.node = node.name,
                 .op_type = node.domain.empty() ? node.op_type : node.domain + "." + node.op_type},
       .hint = std::move(hint)});
}

void refuse_input(const Node& node, std::size_t input, std::string_view name) {
  if (node.input(input) == nullptr) return;
  refuse_form(node, fmt::format("input {} has no form in standard operators", name),
              "Export the model without it.");
}

void refuse_attribute(const Node& node, std::string_view name) {
  const std::int64_t value = node.int_attribute(name, 0);
  if (value == 0) return;
  refuse_form(node, fmt::format("{} = {} has no form in standard operators", name, value),
              "Export the model without it.");
}

void check_both_or_none(const Node& node, std::size_t first, std::string_view first_name,
                        std::size_t second, std::string_view second_name) {
  const bool has_first = node.input(first) != nullptr;
  if (has_first == (node.input(second) != nullptr)) return;
  throw ModelError(
      {.what = fmt::format("input {} is given without {}", has_first ? first_name : second_name,
                           has_first ? second_name : first_name),
       .where = {.node = node.name, .op_type = node.op_type},
       .hint = "Give both or neither, or export the model again."});
}

std::int64_t required_dim(const Node& node, const Value* value, std::int64_t axis,
                          std::string_view name) {
  if (const auto dim = known_dim(value, axis)) return *dim;
  throw ModelError({.what = fmt::format("the size of input {} '{}' along axis {} is not known",
                                        name, value->name, axis),
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = "Declare this dimension as a number in the model."});
}

std::int64_t head_size(const Node& node, std::int64_t width, std::int64_t heads,
                       std::string_view name) {
  if (heads > 0 && width >= heads && width % heads == 0) return width / heads;
  throw ShapeError(
      {.what =
           fmt::format("input {} has {} columns, which {} heads cannot share", name, width, heads),
       .where = {.node = node.name, .op_type = node.op_type, .value = std::string(name)},
       .hint = "Make the number of columns a multiple of the number of heads."});
}

Value* add_if(GraphBuilder& g, Value* x, Value* bias) {
  return bias == nullptr ? x : g.add(x, bias);
}

Value* gelu(GraphBuilder& g, Value* x) {
  Value* e = g.op("Erf", {g.scale(x, 1 / std::numbers::sqrt2)});
  return g.mul(g.scale(x, 0.5), g.add(e, g.scalar_like(x, 1)));
}

Value* tanh_gelu(GraphBuilder& g, Value* x) {
  constexpr double kFactor = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  Value* cube = g.mul(g.mul(x, x), g.scale(x, 0.044715));
  Value* t = g.op("Tanh", {g.scale(g.add(x, cube), kFactor)});
  return g.mul(g.scale(x, 0.5), g.add(t, g.scalar_like(x, 1)));
}

opdef::AttributeSpec int_attribute(std::string_view name, std::int64_t min, std::int64_t max,
                                   std::optional<std::int64_t> default_value) {
  opdef::AttributeSpec spec{
      .name = name, .type = opdef::AttributeType::kInt, .min = min, .max = max};
  if (default_value) spec.default_value = *default_value;
  return spec;
}

opdef::AttributeSpec ints_attribute(std::string_view name) {
  return {.name = name, .type = opdef::AttributeType::kInts};
}

opdef::AttributeSpec floats_attribute(std::string_view name) {
  return {.name = name, .type = opdef::AttributeType::kFloats};
}

opdef::AttributeSpec string_attribute(std::string_view name) {
  return {.name = name, .type = opdef::AttributeType::kString};
}

}  // namespace onnxgrad::ops

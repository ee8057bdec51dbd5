#include "ops/rules.h"

#include <limits>

#include <string>

namespace onnxgrad::ops {

AttributeSpec flag_attribute(std::string_view name, bool default_value) {
  return {.name = name,
          .type = AttributeType::kInt,
          .min = 0,
          .max = 1,
          .default_value = std::int64_t{default_value}};
}

AttributeSpec axis_attribute(std::string_view name, std::optional<std::int64_t> default_value) {
  constexpr auto kMaxRank = static_cast<std::int64_t>(Dims::kMaxRank);
  return {.name = name,
          .type = AttributeType::kInt,
          .min = -kMaxRank,
          .max = kMaxRank,
          .default_value = default_value};
}

AttributeSpec float_attribute(std::string_view name, std::optional<float> default_value) {
  return {.name = name, .type = AttributeType::kFloat, .default_value = default_value};
}

AttributeSpec positive_attribute(std::string_view name, std::optional<float> default_value) {
  using Limits = std::numeric_limits<float>;
  return {.name = name,
          .type = AttributeType::kFloat,
          .min_float = static_cast<double>(Limits::denorm_min()),
          .max_float = static_cast<double>(Limits::max()),
          .default_value = default_value};
}

AttributeSpec choice_attribute(std::string_view name, std::vector<std::string_view> choices) {
  return {.name = name,
          .type = AttributeType::kString,
          .choices = choices,
          .default_value = std::string(choices.front())};
}

std::optional<std::vector<std::int64_t>> constant_ints(const Value* value) {
  if (value == nullptr || !value->is_constant()) return std::nullopt;
  if (!is_integer(value->initializer.dtype())) return std::nullopt;
  return value->initializer.to_int64s();
}

std::optional<std::int64_t> constant_int(const Value* value) {
  const auto all = constant_ints(value);
  return all && all->size() == 1 ? std::optional(all->front()) : std::nullopt;
}

std::optional<double> constant_number(const Value* value) {
  if (value == nullptr || !value->is_constant()) return std::nullopt;
  const Tensor& tensor = value->initializer;
  const bool is_number = is_floating(tensor.dtype()) || is_integer(tensor.dtype());
  if (!is_number || tensor.num_elements() != 1) return std::nullopt;
  return tensor.to_doubles().front();
}

std::optional<std::size_t> known_rank(const Value* value) {
  if (!value->type.has_rank()) return std::nullopt;
  return value->type.rank();
}

std::size_t required_rank(const VjpContext& ctx, std::size_t i) {
  if (const auto rank = known_rank(ctx.input(i))) return *rank;
  throw GradientError(
      {.what = "the rank of input " + std::to_string(i) + " is not known before the model runs",
       .where = {.node = ctx.node().name,
                 .op_type = ctx.node().op_type,
                 .value = ctx.input(i)->name},
       .hint = "Declare the value's shape in the model; its dimensions may be symbols."});
}

std::optional<std::int64_t> known_dim(const Value* value, std::int64_t axis) {
  if (!value->type.has_rank()) return std::nullopt;
  const auto rank = static_cast<std::int64_t>(value->type.rank());
  if (axis < -rank || axis >= rank) return std::nullopt;
  const ir::Dim& dim =
      (*value->type.shape)[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)];
  if (!dim.is_static()) return std::nullopt;
  return dim.value();
}

Value* shape_value(GraphBuilder& g, Value* x) {
  if (const auto dims = x->type.static_dims()) {
    return g.ints({dims->begin(), dims->end()});
  }
  return g.shape_of(x);
}

Value* rank_value(GraphBuilder& g, Value* x) {
  if (const auto rank = known_rank(x)) return g.ints({static_cast<std::int64_t>(*rank)});
  return g.shape_of(g.shape_of(x));
}

Value* dim_value(GraphBuilder& g, Value* x, std::int64_t axis) {
  if (const auto dim = known_dim(x, axis)) return g.ints({*dim});
  if (axis == -1) return g.op("Shape", {x}, {{"start", std::int64_t{-1}}});
  return g.op("Shape", {x}, {{"start", axis}, {"end", axis + 1}});
}

Value* range_value(GraphBuilder& g, Value* start, Value* stop) {
  return g.op("Range", {g.squeeze(start, {0}), g.squeeze(stop, {0}), g.int_scalar(1)});
}

Value* zeros_of_shape(GraphBuilder& g, Value* shape, Value* like) {
  return g.expand(g.scalar_like(like, 0), shape);
}

Value* position_numbers(GraphBuilder& g, Value* x) {
  const auto dims = x->type.static_dims();
  Value* count = dims ? g.int_scalar(dims->num_elements()) : g.size_of(x);
  Value* numbers = g.op("Range", {g.int_scalar(0), count, g.int_scalar(1)});
  return g.reshape(numbers, shape_value(g, x));
}

Value* add_at_positions(GraphBuilder& g, Value* positions, Value* dy, Value* x) {
  const auto dims = x->type.static_dims();
  Value* count = dims ? g.ints({dims->num_elements()}) : g.unsqueeze(g.size_of(x), {0});
  Value* sums =
      g.op("ScatterElements",
           {zeros_of_shape(g, count, dy), g.reshape(positions, {-1}), g.reshape(dy, {-1})},
           {{"axis", std::int64_t{0}}, {"reduction", std::string("add")}});
  return g.reshape(sums, shape_value(g, x));
}

Value* keep_where(GraphBuilder& g, Value* condition, Value* x) {
  return g.where(condition, x, g.scalar_like(x, 0));
}

Value* drop_where(GraphBuilder& g, Value* condition, Value* x) {
  return g.where(condition, g.scalar_like(x, 0), x);
}

}  // namespace onnxgrad::ops

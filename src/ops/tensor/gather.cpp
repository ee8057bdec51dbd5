#include <numeric>

#include "opdef/registry.h"
#include "ops/rules.h"

// Gather, GatherElements and GatherND. Each gradient adds dy at the positions that were read, since
// a position may have been read several times.

namespace onnxgrad::ops::gather_op {
namespace {

Attribute add_reduction() { return {"reduction", std::string("add")}; }

// Returns the axes [0, rank) with `axis` moved to the front.
std::vector<std::int64_t> axis_first(std::int64_t axis, std::int64_t rank) {
  std::vector<std::int64_t> perm{axis};
  for (std::int64_t i = 0; i < rank; ++i) {
    if (i != axis) perm.push_back(i);
  }
  return perm;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& perm) {
  std::vector<std::int64_t> result(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i) {
    result[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  }
  return result;
}

Value* permuted_shape(GraphBuilder& g, Value* x, const std::vector<std::int64_t>& perm) {
  const auto dims = x->type.static_dims();
  if (!dims) return g.gather(shape_value(g, x), g.ints(perm), 0);
  std::vector<std::int64_t> shape;
  for (const std::int64_t axis : perm) shape.push_back((*dims)[static_cast<std::size_t>(axis)]);
  return g.ints(shape);
}

// y[a.., i.., b..] = x[a.., indices[i..], b..];  dx = sum over i of dy at indices[i..]. The axis is
// moved to the front, where ScatterND adds whole blocks.
std::vector<Value*> gather_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* dy = ctx.cotangent(0);
  Value* places = g.unsqueeze(g.cast(ctx.input(1), DataType::kInt64), {-1});
  std::int64_t axis = ctx.node().int_attribute("axis");
  const auto scatter = [&](Value* shape, Value* updates) {
    return g.op("ScatterND", {zeros_of_shape(g, shape, dy), places, updates}, {add_reduction()});
  };
  if (axis == 0) return {scatter(shape_value(g, x), dy), nullptr};

  const auto rank = static_cast<std::int64_t>(required_rank(ctx, 0));
  const auto index_rank = static_cast<std::int64_t>(required_rank(ctx, 1));
  if (axis < 0) axis += rank;
  if (axis == 0) return {scatter(shape_value(g, x), dy), nullptr};
  std::vector<std::int64_t> dy_perm(static_cast<std::size_t>(index_rank));
  std::iota(dy_perm.begin(), dy_perm.end(), axis);
  for (std::int64_t i = 0; i < rank - 1 + index_rank; ++i) {
    if (i < axis || i >= axis + index_rank) dy_perm.push_back(i);
  }
  const std::vector<std::int64_t> perm = axis_first(axis, rank);
  Value* sums = scatter(permuted_shape(g, x, perm), g.transpose(dy, dy_perm));
  return {g.transpose(sums, inverse(perm)), nullptr};
}

// y[i] = x[i with i_axis replaced by indices[i]];  dx = dy added at those positions.
std::vector<Value*> gather_elements_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* zeros = zeros_of_shape(g, shape_value(g, ctx.input(0)), ctx.cotangent(0));
  const std::int64_t axis = ctx.node().int_attribute("axis");
  return {g.op("ScatterElements", {zeros, ctx.input(1), ctx.cotangent(0)},
               {{"axis", axis}, add_reduction()}),
          nullptr};
}

// Returns `indices` with the batch indices before each index tuple.
Value* full_indices(VjpContext& ctx, GraphBuilder& g, std::int64_t batch_dims) {
  Value* indices = ctx.input(1);
  const auto rank = static_cast<std::int64_t>(required_rank(ctx, 1));
  Value* index_shape = shape_value(g, indices);
  Value* one_each = g.concat({g.slice(index_shape, {0}, {rank - 1}, {0}), g.ints({1})}, 0);
  std::vector<Value*> columns;
  for (std::int64_t axis = 0; axis < batch_dims; ++axis) {
    Value* numbers = range_value(g, g.ints({0}), dim_value(g, indices, axis));
    std::vector<std::int64_t> column(static_cast<std::size_t>(rank), 1);
    column[static_cast<std::size_t>(axis)] = -1;
    columns.push_back(g.expand(g.reshape(numbers, column), one_each));
  }
  columns.push_back(indices);
  return g.concat(columns, -1);
}

// y[b.., i.., :] = x[b.., indices[b.., i.., :], :];  dx = dy added at those positions.
std::vector<Value*> gather_nd_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t batch_dims = ctx.node().int_attribute("batch_dims");
  Value* places = batch_dims == 0 ? ctx.input(1) : full_indices(ctx, g, batch_dims);
  Value* zeros = zeros_of_shape(g, shape_value(g, ctx.input(0)), ctx.cotangent(0));
  return {g.op("ScatterND", {zeros, places, ctx.cotangent(0)}, {add_reduction()}), nullptr};
}

}  // namespace

void register_gather(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Gather",
                .since_version = 13,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis", 0)},
                .vjp = gather_vjp,
                .weight_inputs = {0}});
  registry.add({.op_type = "GatherElements",
                .since_version = 13,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis", 0)},
                .vjp = gather_elements_vjp});
  registry.add({.op_type = "GatherND",
                .since_version = 13,
                .differentiable_inputs = {0},
                .attributes = {{.name = "batch_dims",
                                .type = AttributeType::kInt,
                                .min = 0,
                                .max = static_cast<std::int64_t>(Dims::kMaxRank),
                                .default_value = std::int64_t{0}}},
                .vjp = gather_nd_vjp});
}

}  // namespace onnxgrad::ops::gather_op

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::affine_grid_op {
namespace {

// Returns the number of spatial axes, 2 or 3, if known from the shapes: size is [N, C, (D,) H, W]
// and theta is [N, axes, axes + 1].
std::optional<std::int64_t> axes_of_space(const Node& node) {
  if (const auto sizes = known_dim(node.input(1), 0)) return *sizes - 2;
  if (const auto rows = known_dim(node.input(0), 1)) return rows;
  if (const auto columns = known_dim(node.input(0), 2)) return *columns - 1;
  return std::nullopt;
}

void check_theta(const Node& node, std::int64_t axes) {
  const Value* theta = node.input(0);
  const auto is = [](const std::optional<std::int64_t>& dim, std::int64_t wanted) {
    return !dim || *dim == wanted;
  };
  const bool has_rank = known_rank(theta).value_or(3) == 3;
  const bool fits = has_rank && is(known_dim(theta, 1), axes) && is(known_dim(theta, 2), axes + 1);
  if (fits && (axes == 2 || axes == 3)) return;
  throw ShapeError({.what = fmt::format("theta {} does not match a size of {} elements",
                                        theta->type.to_string(), axes + 2),
                    .where = {.node = node.name, .op_type = node.op_type, .value = theta->name},
                    .hint =
                        "Give theta [N, 2, 3] with size [N, C, H, W], or theta [N, 3, 4] with size "
                        "[N, C, D, H, W]."});
}

// Returns the positions of the `count` points (int64 []) of an axis in [-1, 1]: with aligned
// corners the first and last one at its ends (a single point at -1), otherwise all at the centres
// of cells.
Value* coordinates(GraphBuilder& g, Value* count, bool align_corners, Value* like) {
  Value* i = g.cast_like(g.op("Range", {g.int_scalar(0), count, g.int_scalar(1)}), like);
  Value* steps = g.cast_like(count, like);
  Value* one = g.scalar_like(like, 1);
  Value* twice = g.scale(i, 2);
  if (!align_corners) return g.sub(g.div(g.add(twice, one), steps), one);
  return g.sub(g.div(twice, g.op("Max", {g.sub(steps, one), one})), one);
}

// grid[n, (d,) h, w, :] = theta[n] (x_w, y_h, (z_d,) 1)^T, a matrix product of all points with each
// theta, so it needs no rule. ONNX's function body squeezes a batch of one, so for images neither
// the rank nor a gradient is known.
std::optional<std::vector<Value*>> lower_affine_grid(const Node& node, GraphBuilder& g) {
  const auto axes = axes_of_space(node);
  if (!axes) return std::nullopt;
  check_theta(node, *axes);
  Value* theta = node.input(0);
  Value* size = node.input(1);
  const bool align_corners = node.int_attribute("align_corners") != 0;
  Value* space = g.slice(size, {2}, {2 + *axes}, {0});
  std::vector<Value*> columns;
  for (std::int64_t axis = *axes - 1; axis >= 0; --axis) {  // x belongs to the last axis
    Value* count = g.squeeze(g.slice(size, {2 + axis}, {3 + axis}, {0}), {0});
    Value* points = coordinates(g, count, align_corners, theta);
    std::vector<std::int64_t> later;
    for (std::int64_t i = 1; i < *axes - axis; ++i) later.push_back(i);
    if (!later.empty()) points = g.unsqueeze(points, later);
    columns.push_back(g.reshape(g.expand(points, space), std::vector<std::int64_t>{-1, 1}));
  }
  columns.push_back(g.ones_like(columns.front()));
  Value* points = g.transpose(g.concat(columns, 1), {1, 0});
  Value* grid = g.transpose(g.matmul(theta, points), {0, 2, 1});
  Value* batch = g.slice(size, {0}, {1}, {0});
  return {{g.reshape(grid, g.concat({batch, space, g.ints({*axes})}, 0))}};
}

}  // namespace

void register_affine_grid(opdef::OpRegistry& registry) {
  registry.add({.op_type = "AffineGrid",
                .since_version = 20,
                .attributes = {flag_attribute("align_corners", false)},
                .lower = lower_affine_grid,
                .shape_inputs = {1}});
}

}  // namespace onnxgrad::ops::affine_grid_op

#include <vector>

#include "opdef/registry.h"
#include "ops/rules.h"

// DepthToSpace and SpaceToDepth: blocks of b x b pixels become channels and back. Each is a
// permutation, so its gradient is the inverse one.

namespace onnxgrad::ops::depth_to_space_op {
namespace {

// Returns the shape [N, C, H, b, W, b]: the pixels of dy as blocks, x being [N, C b b, H, W].
Value* block_shape(GraphBuilder& g, Value* x, std::int64_t b) {
  const auto channels = known_dim(x, 1);
  Value* area = g.ints({b * b});
  Value* depth = channels ? g.ints({*channels / (b * b)}) : g.div(dim_value(g, x, 1), area);
  const std::vector<Value*> parts = {
      dim_value(g, x, 0), depth, dim_value(g, x, 2), g.ints({b}), dim_value(g, x, 3), g.ints({b})};
  std::vector<std::int64_t> sizes;
  for (const Value* part : parts) {
    if (const auto size = constant_ints(part)) sizes.push_back(size->front());
  }
  return sizes.size() == parts.size() ? g.ints(sizes) : g.concat(parts, 0);
}

// DCR: x[n, (i b + j) C + c, h, w] = y[n, c, h b + i, w b + j];  dx = SpaceToDepth(dy).
// CRD: the channels are (c b + i) b + j.
std::vector<Value*> depth_to_space_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t b = ctx.node().int_attribute("blocksize");
  Value* x = ctx.input(0);
  Value* dy = ctx.cotangent(0);
  if (ctx.node().string_attribute("mode") == "DCR") {
    return {g.op("SpaceToDepth", {dy}, {{"blocksize", b}})};
  }
  Value* blocks = g.reshape(dy, block_shape(g, x, b));
  return {g.reshape(g.transpose(blocks, {0, 1, 3, 5, 2, 4}), shape_value(g, x))};
}

std::vector<Value*> space_to_depth_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t b = ctx.node().int_attribute("blocksize");
  return {g.op("DepthToSpace", {ctx.cotangent(0)}, {{"blocksize", b}})};
}

AttributeSpec blocksize() {
  return {.name = "blocksize", .required = true, .min = 1, .max = std::int64_t{1} << 15};
}

}  // namespace

void register_depth_to_space(opdef::OpRegistry& registry) {
  registry.add({.op_type = "DepthToSpace",
                .since_version = 13,
                .differentiable_inputs = {0},
                .attributes = {choice_attribute("mode", {"DCR", "CRD"}), blocksize()},
                .vjp = depth_to_space_vjp});
  registry.add({.op_type = "SpaceToDepth",
                .since_version = 13,
                .differentiable_inputs = {0},
                .attributes = {blocksize()},
                .vjp = space_to_depth_vjp});
}

}  // namespace onnxgrad::ops::depth_to_space_op

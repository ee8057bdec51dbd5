#include <vector>

#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::lrn_op {
namespace {

// y = x / (bias + alpha * mean)^beta, where mean is the mean of x^2 over `size` adjacent channels
// (zero beyond the first and the last one): an average pool along the channels only. Krizhevsky et
// al., ImageNet Classification with Deep Convolutional Neural Networks, 2012.
std::optional<std::vector<Value*>> lower_lrn(const Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  const auto rank = known_rank(x);
  if (!rank || *rank < 2) return std::nullopt;
  const std::int64_t size = node.int_attribute("size");
  Value* squares = g.mul(x, x);
  // Reshapes to [N, 1, C, ...] with at most three axes after the second one.
  const bool is_flat = *rank > 4;
  if (is_flat) {
    Value* count = g.op("ReduceProd", {g.dims_of(x, 2, static_cast<std::int64_t>(*rank))});
    squares = g.reshape(squares, g.concat({g.dims_of(x, 0, 2), count}, 0));
  }
  squares = g.unsqueeze(squares, {1});
  const std::size_t axes = is_flat ? 2 : *rank - 1;
  std::vector<std::int64_t> kernel(axes, 1);
  std::vector<std::int64_t> pads(2 * axes, 0);
  kernel[0] = size;
  pads[0] = (size - 1) / 2;
  pads[axes] = size / 2;
  Value* mean =
      g.op("AveragePool", {squares},
           {{"kernel_shape", kernel}, {"pads", pads}, {"count_include_pad", std::int64_t{1}}});
  mean = g.squeeze(mean, {1});
  if (is_flat) mean = g.reshape(mean, shape_value(g, x));
  Value* base = g.add(g.scale(mean, node.float_attribute("alpha")),
                      g.scalar_like(x, node.float_attribute("bias")));
  return {{g.div(x, g.pow(base, g.scalar_like(x, node.float_attribute("beta"))))}};
}

}  // namespace

void register_lrn(opdef::OpRegistry& registry) {
  registry.add({.op_type = "LRN",
                .since_version = 13,
                .attributes = {positive_attribute("alpha", 1e-4F),
                               positive_attribute("beta", 0.75F),
                               float_attribute("bias", 1.0F),
                               {.name = "size", .required = true, .min = 1, .max = 1 << 20}},
                .lower = lower_lrn});
}

}  // namespace onnxgrad::ops::lrn_op

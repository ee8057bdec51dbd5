#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::lp_normalization_op {
namespace {

// y = x / (sum |x|^p)^(1/p) along the axis, p = 1 or 2; y and its gradient are 0 where the norm is
// 0.
std::optional<std::vector<Value*>> lower_lp_normalization(const Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  Value* axes = g.ints({node.int_attribute("axis")});
  Value* norm = g.op(node.int_attribute("p") == 1 ? "ReduceL1" : "ReduceL2", {x, axes});
  Value* zero = g.scalar_like(x, 0);
  Value* is_zero = g.equal(norm, zero);
  return {{g.where(is_zero, zero, g.div(x, g.where(is_zero, g.scalar_like(x, 1), norm)))}};
}

}  // namespace

void register_lp_normalization(opdef::OpRegistry& registry) {
  registry.add({.op_type = "LpNormalization",
                .since_version = 22,
                .attributes = {axis_attribute("axis", -1),
                               {.name = "p", .min = 1, .max = 2, .default_value = std::int64_t{2}}},
                .lower = lower_lp_normalization});
}

}  // namespace onnxgrad::ops::lp_normalization_op

#include <algorithm>

#include "opdef/registry.h"
#include "ops/rules.h"

// Pad: y is x with elements added before and after along axes (removed for negative pads).

namespace onnxgrad::ops::pad_op {
namespace {

Value* negated(GraphBuilder& g, Value* pads) {
  auto numbers = constant_ints(pads);
  // -2^63 cannot be negated; such a node is refused before it runs.
  if (!numbers || std::ranges::count(*numbers, std::numeric_limits<std::int64_t>::min()) > 0) {
    return g.neg(pads);
  }
  for (std::int64_t& number : *numbers) number = -number;
  return g.ints(*numbers);
}

// mode "constant":  dx = dy with the pads removed again, dvalue = sum of dy over the padding.
std::vector<Value*> constant_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* pads = ctx.input(1);
  Value* axes = ctx.input(3);
  Value* dy = ctx.cotangent(0);
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) gradients[0] = g.op("Pad", {dy, negated(g, pads), nullptr, axes});
  if (ctx.input(2) != nullptr && ctx.needs(2)) {
    Value* zeros = g.zeros_like(ctx.input(0));
    Value* is_padding = g.op("Pad", {zeros, pads, g.scalar_like(dy, 1), axes});
    Value* sum = g.reduce_sum(g.mul(dy, is_padding), {}, /*keepdims=*/false);
    gradients[2] = g.reshape(sum, shape_value(g, ctx.input(2)));
  }
  return gradients;
}

// Other modes: the gradient of the padding is added at the elements it was copied from.
std::vector<Value*> pad_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (ctx.node().string_attribute("mode") == "constant") return constant_vjp(ctx, g);
  std::vector<Value*> inputs = ctx.node().inputs;
  inputs[0] = position_numbers(g, ctx.input(0));
  if (inputs.size() > 2) inputs[2] = nullptr;
  Value* origin = g.op("Pad", std::move(inputs), ctx.node().attributes);
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  gradients[0] = add_at_positions(g, origin, ctx.cotangent(0), ctx.input(0));
  return gradients;
}

bool adds_nothing(const Node& node) {
  const auto pads = constant_ints(node.input(1));
  return pads && std::ranges::all_of(*pads, [](std::int64_t pad) { return pad == 0; });
}

}  // namespace

void register_pad(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Pad",
                .since_version = 25,
                .differentiable_inputs = {0, 2},
                .attributes = {choice_attribute("mode", {"constant", "reflect", "edge", "wrap"})},
                .vjp = pad_vjp,
                .planned_inputs = {1, 3},
                .is_identity = adds_nothing});
}

}  // namespace onnxgrad::ops::pad_op

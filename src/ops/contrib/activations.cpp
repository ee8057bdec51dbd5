#include "ops/contrib/contrib.h"

// Gelu, BiasGelu, FastGelu, QuickGelu and BiasSplitGelu (com.microsoft 1).

namespace onnxgrad::ops::activations_op {
namespace {

Lowered lower_gelu(const Node& node, GraphBuilder& g) {
  check_inputs(node, 1, {"X"});
  return {{gelu(g, node.input(0))}};
}

Lowered lower_bias_gelu(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"A", "B"});
  return {{gelu(g, g.add(node.input(0), node.input(1)))}};
}

Lowered lower_fast_gelu(const Node& node, GraphBuilder& g) {
  check_inputs(node, 1, {"X", "bias"});
  return {{tanh_gelu(g, add_if(g, node.input(0), node.input(1)))}};
}

// y = x / (1 + exp(-alpha x))
Lowered lower_quick_gelu(const Node& node, GraphBuilder& g) {
  check_inputs(node, 1, {"X"});
  Value* x = node.input(0);
  const auto alpha = static_cast<double>(node.float_attribute("alpha"));
  return {{g.mul(x, g.op("Sigmoid", {g.scale(x, alpha)}))}};
}

// (a, b) = x + bias, split in two along the last axis;  y = a gelu(b)
Lowered lower_bias_split_gelu(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"X", "bias"});
  const std::vector<Value*> halves =
      g.ops("Split", {g.add(node.input(0), node.input(1))}, 2,
            {{"axis", std::int64_t{-1}}, {"num_outputs", std::int64_t{2}}});
  return {{g.mul(halves[0], gelu(g, halves[1]))}};
}

}  // namespace

void register_activations(opdef::OpRegistry& registry) {
  const LoweredOps add{registry};
  add("Gelu", lower_gelu);
  add("BiasGelu", lower_bias_gelu);
  add("FastGelu", lower_fast_gelu);
  add("QuickGelu", lower_quick_gelu, {float_attribute("alpha", 1.702F)});
  add("BiasSplitGelu", lower_bias_split_gelu);
}

}  // namespace onnxgrad::ops::activations_op

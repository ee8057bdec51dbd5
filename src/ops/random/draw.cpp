#include "opdef/registry.h"
#include "ops/rules.h"

// RandomNormal, RandomUniform, their Like forms and Bernoulli (ai.onnx 22). Nothing flows back
// through a draw: an input gives its shape, or a probability whose effect jumps.

namespace onnxgrad::ops {
namespace {

opdef::OpDef draw(std::string_view op_type, std::vector<opdef::AttributeSpec> attributes) {
  attributes.push_back(float_attribute("seed"));
  return {.op_type = op_type,
          .since_version = 22,
          .attributes = std::move(attributes),
          .is_random = true,
          .zero_gradient = true};
}

opdef::AttributeSpec dtype_spec() {
  return {.name = "dtype", .type = opdef::AttributeType::kInt, .min = 1, .max = 26};
}

opdef::AttributeSpec shape_spec() {
  return {.name = "shape",
          .type = opdef::AttributeType::kInts,
          .required = true,
          .min = 0,
          .max = std::int64_t{1} << 40,
          .max_count = Dims::kMaxRank};
}

}  // namespace

void register_draw(opdef::OpRegistry& registry) {
  const auto mean = float_attribute("mean");
  const auto scale = float_attribute("scale");
  const auto low = float_attribute("low");
  const auto high = float_attribute("high");
  registry.add(draw("RandomNormal", {shape_spec(), dtype_spec(), mean, scale}));
  registry.add(draw("RandomNormalLike", {dtype_spec(), mean, scale}));
  registry.add(draw("RandomUniform", {shape_spec(), dtype_spec(), low, high}));
  registry.add(draw("RandomUniformLike", {dtype_spec(), low, high}));
  registry.add(draw("Bernoulli", {dtype_spec()}));
}

}  // namespace onnxgrad::ops

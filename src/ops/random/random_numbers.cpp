#include <utility>

#include "opdef/registry.h"
#include "ops/rules.h"

// RandomNormal, RandomUniform, RandomNormalLike, RandomUniformLike, Bernoulli and Multinomial
// (ai.onnx 22). No gradient flows back through random numbers: an input only gives their shape, or
// a probability with a discontinuous effect.

namespace onnxgrad::ops::random_numbers_op {
namespace {

opdef::OpDef draw(std::string_view op_type, std::vector<AttributeSpec> attributes) {
  attributes.push_back(float_attribute("seed"));
  return {.op_type = op_type,
          .since_version = 22,
          .attributes = std::move(attributes),
          .is_random = true,
          .zero_gradient = true};
}

AttributeSpec dtype_spec(std::optional<std::int64_t> default_value = {}) {
  return {.name = "dtype",
          .type = AttributeType::kInt,
          .min = 1,
          .max = 26,
          .default_value = default_value};
}

AttributeSpec shape_spec() {
  return {.name = "shape",
          .type = AttributeType::kInts,
          .required = true,
          .min = 0,
          .max = std::int64_t{1} << 40,
          .max_count = Dims::kMaxRank};
}

}  // namespace

void register_random_numbers(opdef::OpRegistry& registry) {
  constexpr auto kFloat32 = static_cast<std::int64_t>(DataType::kFloat32);
  const auto mean = float_attribute("mean", 0);
  const auto scale = float_attribute("scale", 1);
  const auto low = float_attribute("low", 0);
  const auto high = float_attribute("high", 1);
  registry.add(draw("RandomNormal", {shape_spec(), dtype_spec(kFloat32), mean, scale}));
  registry.add(draw("RandomNormalLike", {dtype_spec(), mean, scale}));
  registry.add(draw("RandomUniform", {shape_spec(), dtype_spec(kFloat32), low, high}));
  registry.add(draw("RandomUniformLike", {dtype_spec(), low, high}));
  registry.add(draw("Bernoulli", {dtype_spec()}));
  constexpr auto kInt32 = static_cast<std::int64_t>(DataType::kInt32);
  AttributeSpec classes = dtype_spec(kInt32);
  classes.min = kInt32;
  classes.max = static_cast<std::int64_t>(DataType::kInt64);
  registry.add(draw("Multinomial", {std::move(classes),
                                    {.name = "sample_size",
                                     .type = AttributeType::kInt,
                                     .min = 0,
                                     .max = std::int64_t{1} << 40,
                                     .default_value = std::int64_t{1}}}));
}

}  // namespace onnxgrad::ops::random_numbers_op

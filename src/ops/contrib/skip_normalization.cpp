#include <limits>
#include <numeric>
#include <utility>

#include "ops/contrib/contrib.h"

// SkipLayerNormalization, SimplifiedLayerNormalization (which files hold in ai.onnx's domain),
// SkipSimplifiedLayerNormalization and EmbedLayerNormalization (com.microsoft 1).

namespace onnxgrad::ops::skip_normalization_op {
namespace {

// Returns y, mean and 1 / deviation over the last axis; the statistics only if they are used.
std::vector<Value*> normalize_layer(GraphBuilder& g, const Node& node, Value* x, Value* scale,
                                    Value* bias) {
  const bool has_statistics = node.output(1) != nullptr || node.output(2) != nullptr;
  std::vector<Value*> inputs = {x, scale};
  if (bias != nullptr) inputs.push_back(bias);
  return g.ops("LayerNormalization", std::move(inputs), has_statistics ? 3 : 1,
               {{"axis", std::int64_t{-1}}, {"epsilon", node.float_attribute("epsilon")}});
}

// y = x r scale,  r = 1 / sqrt(mean(x^2) + epsilon)
struct RootMeanSquare {
  Value* y = nullptr;
  Value* r = nullptr;
};

RootMeanSquare normalize_by_square(GraphBuilder& g, const Node& node, Value* x, Value* scale,
                                   const std::vector<std::int64_t>& axes) {
  const auto epsilon = static_cast<double>(node.float_attribute("epsilon"));
  Value* square = g.reduce_mean(g.mul(x, x), axes, /*keepdims=*/true);
  Value* r = g.op("Reciprocal", {g.sqrt(g.add(square, g.scalar_like(square, epsilon)))});
  return {.y = g.mul(g.mul(x, r), scale), .r = r};
}

// s = input + skip (+ bias);  outputs y(s), mean, 1 / deviation, s
Lowered lower_skip(const Node& node, GraphBuilder& g) {
  check_inputs(node, 3, {"input", "skip", "gamma", "beta", "bias"});
  Value* sum = add_if(g, g.add(node.input(0), node.input(1)), node.input(4));
  std::vector<Value*> results = normalize_layer(g, node, sum, node.input(2), node.input(3));
  results.resize(4, nullptr);
  results[3] = sum;
  return results;
}

Lowered lower_skip_simplified(const Node& node, GraphBuilder& g) {
  check_inputs(node, 3, {"input", "skip", "gamma", "bias"});
  Value* sum = add_if(g, g.add(node.input(0), node.input(1)), node.input(3));
  const auto [y, r] = normalize_by_square(g, node, sum, node.input(2), {-1});
  return {{y, nullptr, r, sum}};
}

Lowered lower_simplified(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"X", "scale"});
  Value* x = node.input(0);
  std::int64_t axis = node.int_attribute("axis");
  if (axis >= 0) {
    const auto rank = known_rank(x);
    if (!rank || axis >= static_cast<std::int64_t>(*rank)) {
      throw ModelError(
          {.what = "axis is " + std::to_string(axis) + ", but input X '" + x->name + "' is " +
                   x->type.to_string(),
           .where = {.node = node.name, .op_type = node.op_type},
           .hint = "Give X a shape with this axis in the model; symbols are allowed."});
    }
    axis -= static_cast<std::int64_t>(*rank);
  }
  std::vector<std::int64_t> axes(static_cast<std::size_t>(-axis));
  std::iota(axes.begin(), axes.end(), axis);
  const auto [y, r] = normalize_by_square(g, node, x, node.input(1), axes);
  return {{y, r}};
}

// Counts the elements of each row of `mask` that are 1, int32 [batch]; zeros without a mask.
Value* count_mask(GraphBuilder& g, const Node& node) {
  Value* mask = node.input(7);
  if (mask == nullptr) {
    return g.cast(zeros_of_shape(g, dim_value(g, node.input(0), 0), g.int_scalar(0)),
                  DataType::kInt32);
  }
  Value* ones = g.cast(g.equal(mask, g.scalar_like(mask, 1)), DataType::kInt64);
  return g.cast(g.reduce_sum(ones, {1}, /*keepdims=*/false), DataType::kInt32);
}

// s = word[input_ids] + position[position_ids] (+ segment[segment_ids]);  outputs y(s), count, s
Lowered lower_embed(const Node& node, GraphBuilder& g) {
  check_inputs(node, 7,
               {"input_ids", "segment_ids?", "word_embedding", "position_embedding",
                "segment_embedding?", "gamma", "beta", "mask", "position_ids"});
  Value* ids = node.input(0);
  Value* positions = node.input(8);
  if (positions == nullptr) positions = range_value(g, g.ints({0}), dim_value(g, ids, 1));
  Value* sum = g.add(g.gather(node.input(2), ids, 0), g.gather(node.input(3), positions, 0));
  if (node.input(1) != nullptr && node.input(4) != nullptr) {
    sum = g.add(sum, g.gather(node.input(4), node.input(1), 0));
  }
  Value* y = g.op("LayerNormalization", {sum, node.input(5), node.input(6)},
                  {{"axis", std::int64_t{-1}}, {"epsilon", node.float_attribute("epsilon")}});
  return {{y, node.output(1) == nullptr ? nullptr : count_mask(g, node), sum}};
}

opdef::AttributeSpec epsilon_attribute(float default_value) {
  opdef::AttributeSpec spec = float_attribute("epsilon", default_value);
  spec.min_float = 0;
  spec.max_float = static_cast<double>(std::numeric_limits<float>::max());
  return spec;
}

}  // namespace

void register_skip_normalization(opdef::OpRegistry& registry) {
  const auto add = [&registry](std::string_view domain, std::string_view op_type,
                               opdef::LowerFn lower, std::vector<opdef::AttributeSpec> attributes) {
    registry.add({.domain = domain,
                  .op_type = op_type,
                  .attributes = std::move(attributes),
                  .lower = lower});
  };
  constexpr float kEpsilon = 1e-12F;
  add(kMicrosoft, "SkipLayerNormalization", lower_skip, {epsilon_attribute(kEpsilon)});
  add(kMicrosoft, "SkipSimplifiedLayerNormalization", lower_skip_simplified,
      {epsilon_attribute(kEpsilon)});
  for (const std::string_view domain : {std::string_view(""), kMicrosoft}) {
    add(domain, "SimplifiedLayerNormalization", lower_simplified,
        {axis_attribute("axis", -1), epsilon_attribute(1e-5F),
         int_attribute("stash_type", 1, 16, 1)});
  }
  add(kMicrosoft, "EmbedLayerNormalization", lower_embed,
      {epsilon_attribute(kEpsilon), int_attribute("mask_index_type", 0, 1)});
}

}  // namespace onnxgrad::ops::skip_normalization_op

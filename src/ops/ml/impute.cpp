#include <fmt/format.h>

#include <cmath>

#include "onnxgrad/error.h"
#include "ops/ml/post_transform.h"

// Imputer, Binarizer and FeatureVectorizer (ai.onnx.ml 1).

namespace onnxgrad::ops::impute_op {
namespace {

void check_count(const Node& node, const std::string& attribute, std::size_t count) {
  const auto features = known_dim(node.input(0), -1);
  if (count == 1 || (count > 0 && (!features || *features == static_cast<std::int64_t>(count)))) {
    return;
  }
  refuse_attributes(node, fmt::format("attribute '{}' has {} elements for {} features", attribute,
                                      count, features ? std::to_string(*features) : "some"));
}

// y = x, with the column's imputed value where x equals the replaced value (or is NaN, if that is
// NaN).
std::optional<std::vector<Value*>> lower_imputer(const Node& node, GraphBuilder& g) {
  Value* x = node.input(0);
  if (x->dtype() == DataType::kUndefined) return std::nullopt;
  if (is_integer(x->dtype())) {
    const auto numbers = node.ints_attribute("imputed_value_int64s");
    check_count(node, "imputed_value_int64s", numbers.size());
    Value* imputed = g.cast(g.ints(numbers), x->dtype());
    Value* replaced = g.cast(g.int_scalar(node.int_attribute("replaced_value_int64")), x->dtype());
    return {{g.where(g.equal(x, replaced), imputed, x)}};
  }
  const auto numbers = node.floats_attribute("imputed_value_floats");
  check_count(node, "imputed_value_floats", numbers.size());
  Value* imputed =
      attribute_initializer(g, node, "imputed_value_floats",
                            Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())}));
  const auto replaced = static_cast<double>(node.float_attribute("replaced_value_float"));
  Value* is_missing =
      std::isnan(replaced) ? g.op("IsNaN", {x}) : g.equal(x, g.scalar_like(x, replaced));
  return {{g.where(is_missing, g.cast(imputed, x->dtype()), x)}};
}

// y = x > threshold
std::optional<std::vector<Value*>> lower_binarizer(const Node& node, GraphBuilder& g) {
  Value* x = node.input(0);
  if (x->dtype() == DataType::kUndefined) return std::nullopt;
  const float threshold = node.float_attribute("threshold");
  Value* wide = is_floating(x->dtype()) ? x : g.cast(x, DataType::kFloat64);
  Value* is_above = g.greater(wide, g.scalar_like(wide, static_cast<double>(threshold)));
  return {{g.cast(is_above, x->dtype())}};
}

// Concatenates the inputs in float32: [N, C0], [N, C1], ... to [N, C0 + C1 + ...].
std::optional<std::vector<Value*>> lower_feature_vectorizer(const Node& node, GraphBuilder& g) {
  const auto widths = node.ints_attribute("inputdimensions");
  if (!widths.empty() && widths.size() != node.inputs.size()) {
    refuse_attributes(node, fmt::format("inputdimensions has {} elements for {} inputs",
                                        widths.size(), node.inputs.size()));
  }
  std::vector<Value*> parts;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    Value* part = g.cast(node.inputs[i], DataType::kFloat32);
    const auto rank = known_rank(part);
    if (!rank || *rank == 0 || *rank > 2) return std::nullopt;
    if (*rank == 1) part = g.unsqueeze(part, {1});
    const auto width = known_dim(part, 1);
    if (!widths.empty() && width && *width != widths[i]) {
      throw ShapeError(
          {.what = fmt::format("input {} has {} columns, expected {} by inputdimensions", i, *width,
                               widths[i]),
           .where = {.node = node.name, .op_type = node.op_type},
           .hint = fmt::format("Give {} columns, or export the model again.", widths[i])});
    }
    parts.push_back(part);
  }
  return {{g.concat(parts, 1)}};
}

}  // namespace

void register_impute(opdef::OpRegistry& registry) {
  using Type = opdef::AttributeType;
  registry.add({.domain = kMl,
                .op_type = "Imputer",
                .since_version = 1,
                .attributes = {list_attribute("imputed_value_floats", Type::kFloats),
                               list_attribute("imputed_value_int64s", Type::kInts),
                               float_attribute("replaced_value_float", 0.0F),
                               {.name = "replaced_value_int64",
                                .type = Type::kInt,
                                .default_value = std::int64_t{0}}},
                .lower = lower_imputer});
  registry.add({.domain = kMl,
                .op_type = "Binarizer",
                .since_version = 1,
                .attributes = {float_attribute("threshold", 0.0F)},
                .lower = lower_binarizer});
  registry.add({.domain = kMl,
                .op_type = "FeatureVectorizer",
                .since_version = 1,
                .attributes = {list_attribute("inputdimensions", Type::kInts)},
                .lower = lower_feature_vectorizer});
}

}  // namespace onnxgrad::ops::impute_op

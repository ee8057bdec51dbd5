#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Scaler, Normalizer and ArrayFeatureExtractor (ai.onnx.ml 1).

namespace onnxgrad::ops::preprocess_op {

using ir::WeightOrigin;

namespace {

constexpr std::string_view kMl = "ai.onnx.ml";

// Adds the elements of an attribute, one per feature or one for all, as an initializer that records
// its origin.
Value* attribute_weight(GraphBuilder& g, const Node& node, const std::string& attribute,
                        std::size_t count) {
  std::vector<float> numbers = node.floats_attribute(attribute);
  const auto features = known_dim(node.input(0), -1);
  const bool fits = numbers.size() == count &&
                    (count == 1 || !features || *features == static_cast<std::int64_t>(count));
  if (!fits || numbers.empty()) {
    throw ModelError(
        {.what = fmt::format("attribute '{}' has {} elements", attribute, numbers.size()),
         .where = {.node = node.name, .op_type = node.op_type},
         .detail = "scale and offset have one element per feature, or one for all.",
         .hint = "Export the scaler again for the features of this input."});
  }
  const std::string& name = node.output(0)->name;
  Value* weight = g.graph().add_initializer(
      name + "." + attribute, Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())}));
  weight->origin = std::make_shared<const WeightOrigin>(
      WeightOrigin{.kind = WeightOrigin::Kind::kAttribute, .name = name, .attribute = attribute});
  return weight;
}

// y = (x - offset) * scale
std::optional<std::vector<Value*>> lower_scaler(const Node& node, GraphBuilder& g) {
  Value* y = g.cast(node.input(0), DataType::kFloat32);
  const bool has_offset = node.find_attribute("offset") != nullptr;
  const bool has_scale = node.find_attribute("scale") != nullptr;
  const std::size_t count = node.floats_attribute(has_scale ? "scale" : "offset").size();
  if (has_offset) y = g.sub(y, attribute_weight(g, node, "offset", count));
  if (has_scale) y = g.mul(y, attribute_weight(g, node, "scale", count));
  return std::vector<Value*>{y == node.input(0) ? g.identity(y) : y};
}

// Selects columns: z[..., j] = x[..., y[j]]; a vector x becomes one row. Constant lists of strings
// (class names) are left unchanged.
std::optional<std::vector<Value*>> lower_array_feature_extractor(const Node& node,
                                                                 GraphBuilder& g) {
  Value* x = node.input(0);
  const auto rank = known_rank(x);
  if ((x->dtype() == DataType::kString && x->is_constant()) || x->dtype() == DataType::kUndefined ||
      !rank || *rank == 0) {
    return std::nullopt;
  }
  Value* index = g.reshape(node.input(1), std::vector<std::int64_t>{-1});
  Value* z = g.gather(x, index, -1);
  if (*rank == 1) z = g.unsqueeze(z, {0});
  return std::vector<Value*>{z};
}

// y = x / s per row, where s is the L1 norm, the L2 norm or the maximum, or 1 if that is zero; the
// square root comes last, because its slope at zero is infinite. ONNX infers no type for
// Normalizer, so nothing after it could be planned; as tensor operators it also needs neither a
// rule nor a kernel.
std::optional<std::vector<Value*>> lower_normalizer(const Node& node, GraphBuilder& g) {
  const std::string norm = node.string_attribute("norm");
  if (norm != "MAX" && norm != "L1" && norm != "L2") return std::nullopt;  // checked before
  Value* x = g.cast(node.input(0), DataType::kFloat32);
  Value* size = nullptr;
  if (norm == "L1") {
    size = g.reduce_sum(g.abs(x), {-1}, /*keepdims=*/true);
  } else if (norm == "L2") {
    size = g.reduce_sum(g.mul(x, x), {-1}, /*keepdims=*/true);
  } else {
    size = g.reduce_max(x, {-1}, /*keepdims=*/true);
  }
  Value* is_zero = g.equal(size, g.scalar_like(size, 0));
  Value* divisor = g.where(is_zero, g.scalar_like(size, 1), size);
  if (norm == "L2") divisor = g.sqrt(divisor);
  return std::vector<Value*>{g.div(x, divisor)};
}

AttributeSpec floats(std::string_view name) {
  return {.name = name, .type = AttributeType::kFloats, .max_count = std::size_t{1} << 31};
}

}  // namespace

void register_preprocess(opdef::OpRegistry& registry) {
  registry.add({.domain = kMl,
                .op_type = "Scaler",
                .since_version = 1,
                .attributes = {floats("scale"), floats("offset")},
                .lower = lower_scaler});
  registry.add({.domain = kMl,
                .op_type = "ArrayFeatureExtractor",
                .since_version = 1,
                .lower = lower_array_feature_extractor});
  registry.add({.domain = kMl,
                .op_type = "Normalizer",
                .since_version = 1,
                .attributes = {choice_attribute("norm", {"MAX", "L1", "L2"})},
                .lower = lower_normalizer});
}

}  // namespace onnxgrad::ops::preprocess_op

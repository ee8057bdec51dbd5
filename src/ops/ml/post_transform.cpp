#include "ops/ml/post_transform.h"

#include <memory>
#include <numbers>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::ops {
namespace {

const std::string& first_output(const Node& node) {
  for (const Value* output : node.outputs) {
    if (output != nullptr) return output->name;
  }
  refuse_attributes(node, "the node has no outputs");
}

// Softmax over the nonzero scores; scores of 0 stay 0.
Value* softmax_zero(GraphBuilder& g, Value* x) {
  Value* largest = g.reduce_max(x, {-1}, /*keepdims=*/true);
  Value* counts = g.greater(g.abs(x), g.scalar_like(x, 1e-7));
  Value* scaled = g.where(counts, g.exp(g.sub(x, largest)), g.mul(x, g.exp(g.neg(largest))));
  Value* total = g.reduce_sum(keep_where(g, counts, scaled), {-1}, /*keepdims=*/true);
  return g.div(scaled, total);
}

// Returns sqrt(2) erfinv(2 p - 1), with the approximation of erfinv by Winitzki (2008) that
// onnxruntime uses.
Value* probit(GraphBuilder& g, Value* p) {
  constexpr double kA = 0.147;
  Value* one = g.scalar_like(p, 1);
  Value* x = g.sub(g.scale(p, 2), one);
  Value* logarithm = g.log(g.mul(g.sub(one, x), g.add(one, x)));
  Value* v = g.add(g.scalar_like(p, 2 / (std::numbers::pi * kA)), g.scale(logarithm, 0.5));
  Value* root = g.sqrt(g.sub(g.mul(v, v), g.scale(logarithm, 1 / kA)));
  return g.mul(g.scale(g.sign(x), std::numbers::sqrt2), g.sqrt(g.sub(root, v)));
}

}  // namespace

Value* post_transform(GraphBuilder& g, Value* scores, const std::string& transform) {
  if (transform == "LOGISTIC") return g.op("Sigmoid", {scores});
  if (transform == "SOFTMAX") return g.op("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  if (transform == "SOFTMAX_ZERO") return softmax_zero(g, scores);
  if (transform == "PROBIT") return probit(g, scores);
  return scores;
}

void refuse_attributes(const Node& node, std::string what) {
  throw ModelError({.what = std::move(what),
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = "Export the model again: its attributes are inconsistent."});
}

Value* attribute_initializer(GraphBuilder& g, const Node& node, const std::string& attribute,
                             Tensor numbers, std::vector<std::int64_t> index) {
  const std::string& name = first_output(node);
  Value* value = g.graph().add_initializer(name + "." + attribute, std::move(numbers));
  value->origin = std::make_shared<const ir::WeightOrigin>(
      ir::WeightOrigin{.kind = ir::WeightOrigin::Kind::kAttribute,
                       .name = name,
                       .attribute = attribute,
                       .index = std::move(index)});
  return value;
}

Tensor class_list(const Node& node) {
  for (const std::string_view name : {"classlabels_ints", "classlabels_int64s"}) {
    const auto numbers = node.ints_attribute(name);
    if (!numbers.empty()) {
      return Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())});
    }
  }
  const ir::AttributeValue* value = node.find_attribute("classlabels_strings");
  const auto* names = value == nullptr ? nullptr : std::get_if<std::vector<std::string>>(value);
  if (names == nullptr || names->empty()) return {};
  return Tensor::from_strings(*names, {static_cast<std::int64_t>(names->size())});
}

Value* pick_labels(GraphBuilder& g, const Node& node, Value* numbers) {
  const Tensor labels = class_list(node);
  std::string attribute = "classlabels_strings";
  if (labels.dtype() != DataType::kString) {
    const bool is_short = node.find_attribute("classlabels_ints") != nullptr;
    attribute = is_short ? "classlabels_ints" : "classlabels_int64s";
  }
  return g.gather(attribute_initializer(g, node, attribute, labels), numbers, 0);
}

opdef::AttributeSpec list_attribute(std::string_view name, opdef::AttributeType type) {
  return {.name = name, .type = type, .max_count = std::size_t{1} << 31};
}

}  // namespace onnxgrad::ops

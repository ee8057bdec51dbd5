#include <optional>
#include <vector>

#include "ir/pattern.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Optional values whose presence is known when a model is loaded or compiled are removed: their
// consumers read the contained value.

namespace onnxgrad::ops::optional_op {
namespace {

using Results = std::optional<std::vector<Value*>>;

bool makes_optional(const Node* node) {
  return node != nullptr && node->domain.empty() && node->op_type == "Optional";
}

// A tensor or a sequence may be given instead of an optional.
Results lower_get_element(const Node& node, GraphBuilder& /*g*/) {
  Value* input = node.input(0);
  if (input->type.is_tensor() || input->type.kind == ir::Type::Kind::kSequence) {
    return std::vector{input};
  }
  const Node* producer = ir::look_through_identities(input)->producer;
  if (!makes_optional(producer)) return std::nullopt;
  if (producer->input(0) == nullptr) {
    throw DataError({.what = "the optional value is empty",
                     .where = {.node = node.name, .op_type = node.op_type, .value = input->name},
                     .hint = "Check OptionalHasElement first, in the condition of an If."});
  }
  return std::vector{producer->input(0)};
}

Results lower_has_element(const Node& node, GraphBuilder& g) {
  const auto known = [&g](bool there) {
    return std::vector{g.constant(Tensor::scalar(there), "has_element")};
  };
  const Value* input = node.input(0);
  if (input == nullptr) return known(false);
  if (input->type.is_tensor() || input->type.kind == ir::Type::Kind::kSequence) return known(true);
  const Node* producer = ir::look_through_identities(input)->producer;
  if (!makes_optional(producer)) return std::nullopt;
  return known(producer->input(0) != nullptr);
}

}  // namespace

void register_optional(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Optional",
                .since_version = 15,
                .attributes = {{.name = "type", .type = AttributeType::kOther}}});
  registry.add({.op_type = "OptionalGetElement", .since_version = 18, .lower = lower_get_element});
  registry.add({.op_type = "OptionalHasElement", .since_version = 18, .lower = lower_has_element});
}

}  // namespace onnxgrad::ops::optional_op

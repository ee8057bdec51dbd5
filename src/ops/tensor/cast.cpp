#include <optional>

#include "opdef/registry.h"
#include "ops/quantize/quantized_number.h"
#include "ops/rules.h"

// Cast and CastLike. Kernels convert when they load and store, so the expression covers only the
// rest: a cast to bool yields 0 or 1, a cast to an integer truncates.

namespace onnxgrad::ops::cast_op {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

std::int32_t cast_expression(const Node& node, const std::vector<std::int32_t>& operands,
                             ExprProgram& program) {
  const std::int32_t x = operands[0];
  const DataType from = node.inputs[0]->dtype();
  const DataType to = node.outputs[0]->dtype();
  if (to == DataType::kBool && from != DataType::kBool) {
    return program.emit(ExprOp::kNot, program.emit(ExprOp::kNot, x));
  }
  if (is_floating(from) && is_integer(to)) {  // towards zero
    const std::int32_t is_negative = program.emit(ExprOp::kLess, x, program.constant(0));
    return program.emit(ExprOp::kSelect, is_negative, program.emit(ExprOp::kCeil, x),
                        program.emit(ExprOp::kFloor, x));
  }
  return x;
}

// dx = dy in the dtype of x. CastLike's second input, whose elements do not matter, has gradient 0.
std::vector<Value*> cast_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.cast_like(ctx.cotangent(0), ctx.input(0))};
}

// Rewrites CastLike as a Cast to the dtype of its second input, whose elements do not matter.
std::optional<std::vector<Value*>> lower_cast_like(const Node& node, GraphBuilder& g) {
  const DataType to = node.inputs.at(1)->dtype();
  if (to == DataType::kUndefined) return std::nullopt;
  if (to == node.inputs[0]->dtype()) return {{g.identity(node.inputs[0])}};
  std::vector<Attribute> attributes = node.attributes;
  attributes.push_back({"to", static_cast<std::int64_t>(to)});
  return {{g.op("Cast", {node.inputs[0]}, std::move(attributes))}};
}

// A cast of quantized integers reads the floating-point values that carry their gradient.
std::optional<std::vector<Value*>> lower_cast(const Node& node, GraphBuilder& g) {
  const auto to = static_cast<DataType>(node.int_attribute("to"));
  const DataType from = node.inputs[0]->dtype();
  if (!is_floating(to) || is_floating(from) || from == DataType::kUndefined) return std::nullopt;
  Value* number = quantized_number(g, node.inputs[0]);
  if (number == nullptr) return std::nullopt;
  return {{g.cast(number, to)}};
}

bool keeps_type(const Node& node) {
  const DataType from = node.inputs[0]->dtype();
  return from != DataType::kUndefined && from == node.outputs[0]->dtype();
}

}  // namespace

void register_cast(opdef::OpRegistry& registry) {
  const std::vector<AttributeSpec> conversion = {
      flag_attribute("saturate", true), choice_attribute("round_mode", {"up", "down", "nearest"})};
  opdef::OpDef cast{.op_type = "Cast",
                    .since_version = 25,
                    .differentiable_inputs = {0},
                    .attributes = conversion,
                    .vjp = cast_vjp,
                    .lower = lower_cast,
                    .expression = cast_expression,
                    .passage = opdef::Passage::kConverted,
                    .is_identity = keeps_type};
  cast.attributes.push_back({.name = "to",
                             .type = AttributeType::kInt,
                             .required = true,
                             .min = static_cast<std::int64_t>(DataType::kFloat32),
                             .max = static_cast<std::int64_t>(DataType::kInt2)});
  registry.add(std::move(cast));
  registry.add({.op_type = "CastLike",
                .since_version = 25,
                .differentiable_inputs = {0, 1},
                .attributes = conversion,
                .vjp = cast_vjp,
                .lower = lower_cast_like,
                .passage = opdef::Passage::kConverted,
                .is_identity = keeps_type});
}

}  // namespace onnxgrad::ops::cast_op

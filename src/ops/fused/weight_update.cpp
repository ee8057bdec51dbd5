#include "opdef/fused.h"

#include <string>
#include <vector>

#include "base/check.h"
#include "ir/builder.h"
#include "opdef/function_body.h"
#include "opdef/registry.h"

namespace onnxgrad::ops::weight_update_op {
namespace {

using ir::Value;
using opdef::ExprOp;
using opdef::FunctionBody;
using opdef::UpdateRule;
using opdef::WeightUpdate;

std::vector<std::string_view> operand_names(const WeightUpdate& update) {
  std::vector<std::string_view> names{"gradient", "w", "m"};
  if (update.has_v()) names.emplace_back("v");
  names.emplace_back("rate");
  if (update.has_epsilon()) names.emplace_back("epsilon");
  if (update.shrinks) names.emplace_back("shrink");
  return names;
}

std::string_view standard_operator(ExprOp op) {
  switch (op) {
    case ExprOp::kAdd:
      return "Add";
    case ExprOp::kSub:
      return "Sub";
    case ExprOp::kMul:
      return "Mul";
    case ExprOp::kDiv:
      return "Div";
    case ExprOp::kSqrt:
      return "Sqrt";
    default:
      ONNXGRAD_ASSERT(op == ExprOp::kSign);
      return "Sign";
  }
}

// The formulas of opdef/fused.h as standard operators.
ir::Function update_body(std::string_view base_name, const std::vector<Value*>& /*inputs*/,
                         const std::vector<ir::Attribute>& attributes) {
  ir::Node node;
  node.attributes = attributes;
  const WeightUpdate update = WeightUpdate::read(node);
  const opdef::ExprProgram program = update.program();
  FunctionBody f(base_name, update.key(), attributes);
  std::vector<Value*> operands;
  for (const std::string_view name : operand_names(update)) operands.push_back(f.input(name));
  std::vector<Value*> values;
  for (const opdef::ExprInstruction& instruction : program.instructions) {
    const auto at = [&](std::int32_t i) { return values[static_cast<std::size_t>(i)]; };
    if (instruction.op == ExprOp::kInput) {
      values.push_back(operands.at(static_cast<std::size_t>(instruction.a)));
    } else if (instruction.op == ExprOp::kConstant) {
      values.push_back(f.scalar_like(operands.front(), instruction.constant));
    } else {
      std::vector<Value*> inputs{at(instruction.a)};
      if (opdef::expr_arity(instruction.op) == 2) inputs.push_back(at(instruction.b));
      values.push_back(f.op(standard_operator(instruction.op), std::move(inputs)));
    }
  }
  std::vector<Value*> results;
  for (const std::int32_t result : program.results) {
    results.push_back(values[static_cast<std::size_t>(result)]);
  }
  return std::move(f).finish(std::move(results));
}

}  // namespace

void register_weight_update(opdef::OpRegistry& registry) {
  std::vector<std::string_view> rules;
  for (int i = 0; i < opdef::kNumUpdateRules; ++i) {
    rules.push_back(opdef::update_rule_name(static_cast<UpdateRule>(i)));
  }
  registry.add(
      {.domain = ir::kFunctionDomain,
       .op_type = opdef::kWeightUpdate,
       .attributes = {{.name = "rule",
                       .type = opdef::AttributeType::kString,
                       .required = true,
                       .choices = rules},
                      {.name = "factors", .type = opdef::AttributeType::kTensor, .required = true},
                      {.name = "shrinks", .min = 0, .max = 1, .default_value = std::int64_t{0}}},
       .function_body = update_body});
}

}  // namespace onnxgrad::ops::weight_update_op

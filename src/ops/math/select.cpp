#include "opdef/registry.h"
#include "ops/rules.h"

// Where, Clip and PRelu: element-wise choices. y: output, dy: its cotangent.

namespace onnxgrad::ops::select_op {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

std::int32_t where_expression(const Node&, const std::vector<std::int32_t>& operands,
                              ExprProgram& program) {
  return program.emit(ExprOp::kSelect, operands[0], operands[1], operands[2]);
}

// y = condition ? a : b;  da = condition ? dy : 0, db = condition ? 0 : dy.
std::vector<Value*> where_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* condition = ctx.input(0);
  Value* dy = ctx.cotangent(0);
  return {nullptr, ctx.needs(1) ? keep_where(g, condition, dy) : nullptr,
          ctx.needs(2) ? drop_where(g, condition, dy) : nullptr};
}

std::int32_t clip_expression(const Node& node, const std::vector<std::int32_t>& operands,
                             ExprProgram& program) {
  std::int32_t result = operands[0];
  if (node.input(1) != nullptr) result = program.emit(ExprOp::kMax, result, operands[1]);
  if (node.input(2) != nullptr) result = program.emit(ExprOp::kMin, result, operands[2]);
  return result;
}

// y = min(max(x, low), high);  dx = low <= x <= high ? dy : 0,
// dlow = sum(x < low and low <= high ? dy : 0), dhigh = sum(max(x, low) > high ? dy : 0).
std::vector<Value*> clip_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* low = ctx.input(1);
  Value* high = ctx.input(2);
  Value* dy = ctx.cotangent(0);
  Value* is_below = low != nullptr ? g.less(x, low) : nullptr;
  Value* raised = low != nullptr ? g.op("Max", {x, low}) : x;
  Value* is_above = high != nullptr ? g.greater(raised, high) : nullptr;
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) {
    Value* dx = dy;
    if (is_below != nullptr) dx = drop_where(g, is_below, dx);
    if (is_above != nullptr) dx = drop_where(g, is_above, dx);
    gradients[0] = dx;
  }
  if (low != nullptr && ctx.needs(1)) {
    Value* passed = keep_where(g, is_below, dy);
    if (is_above != nullptr) passed = drop_where(g, is_above, passed);
    gradients[1] = g.sum_to(passed, low);
  }
  if (high != nullptr && ctx.needs(2)) {
    gradients[2] = g.sum_to(keep_where(g, is_above, dy), high);
  }
  return gradients;
}

std::int32_t prelu_expression(const Node&, const std::vector<std::int32_t>& operands,
                              ExprProgram& program) {
  const std::int32_t is_negative = program.emit(ExprOp::kLess, operands[0], program.constant(0));
  const std::int32_t scaled = program.emit(ExprOp::kMul, operands[1], operands[0]);
  return program.emit(ExprOp::kSelect, is_negative, scaled, operands[0]);
}

// y = x < 0 ? slope x : x;  dx = x > 0 ? dy : slope dy, dslope = sum(x < 0 ? x dy : 0).
std::vector<Value*> prelu_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* slope = ctx.input(1);
  Value* dy = ctx.cotangent(0);
  Value* zero = g.scalar_like(x, 0);
  Value* dx = ctx.needs(0) ? g.where(g.greater(x, zero), dy, g.mul(dy, slope)) : nullptr;
  Value* dslope = ctx.needs(1) ? g.sum_to(g.mul(dy, g.op("Min", {x, zero})), slope) : nullptr;
  return {dx, dslope};
}

}  // namespace

void register_select(opdef::OpRegistry& registry) {
  registry.add({
      .op_type = "Where",
      .since_version = 16,
      .differentiable_inputs = {1, 2},
      .vjp = where_vjp,
      .expression = where_expression,
      .broadcasts = true,
  });
  registry.add({
      .op_type = "Clip",
      .since_version = 13,
      .differentiable_inputs = {0, 1, 2},
      .vjp = clip_vjp,
      .expression = clip_expression,
  });
  registry.add({.op_type = "PRelu",
                .since_version = 16,
                .differentiable_inputs = {0, 1},
                .vjp = prelu_vjp,
                .expression = prelu_expression,
                .weight_inputs = {1}});
}

}  // namespace onnxgrad::ops::select_op

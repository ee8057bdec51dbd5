#include <limits>

#include "opdef/registry.h"
#include "ops/rules.h"

// Element-wise operators with two broadcast inputs: rows of the table at the end of this file. The
// engine sums a gradient to its input's shape, so rules assume equal shapes. c: output, dc: its
// cotangent.

namespace onnxgrad::ops::binary_op {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

template <ExprOp kOp>
std::int32_t binary_expression(const Node&, const std::vector<std::int32_t>& operands,
                               ExprProgram& program) {
  return program.emit(kOp, operands[0], operands[1]);
}

// c = a + b;  da = dc, db = dc.
std::vector<Value*> add_vjp(VjpContext& ctx, GraphBuilder&) {
  return {ctx.cotangent(0), ctx.cotangent(0)};
}

// c = a - b;  da = dc, db = -dc.
std::vector<Value*> sub_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dc = ctx.cotangent(0);
  return {dc, ctx.needs(1) ? g.neg(dc) : nullptr};
}

// c = a b;  da = dc b, db = dc a.
std::vector<Value*> mul_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dc = ctx.cotangent(0);
  return {ctx.needs(0) ? g.mul(dc, ctx.input(1)) : nullptr,
          ctx.needs(1) ? g.mul(dc, ctx.input(0)) : nullptr};
}

// c = a / b;  da = dc / b, db = -(dc / b) c.
std::vector<Value*> div_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* da = g.div(ctx.cotangent(0), ctx.input(1));
  return {da, ctx.needs(1) ? g.neg(g.mul(da, ctx.output(0))) : nullptr};
}

// Returns dc p x^(p - 1), and 0 for p = 0 even at x = 0, where x^(p - 1) is infinite.
Value* power_base_gradient(VjpContext& ctx, GraphBuilder& g) {
  Value* dc = ctx.cotangent(0);
  Value* x = ctx.input(0);
  Value* p = ctx.input(1);
  const std::optional<double> number = constant_number(p);
  if (number == 0.0) return g.zeros_like(dc);
  if (number == 1.0) return dc;
  if (number == 2.0) return g.mul(dc, g.scale(x, 2));
  if (number == 0.5) return g.div(g.scale(dc, 0.5), ctx.output(0));
  if (number) return g.mul(dc, g.scale(g.pow(x, g.scalar_like(x, *number - 1)), *number));
  Value* slope = g.mul(g.pow(x, g.sub(p, g.scalar_like(p, 1))), g.cast_like(p, x));
  return g.mul(dc, drop_where(g, g.equal(p, g.scalar_like(p, 0)), slope));
}

// c = x^p;  dx = dc p x^(p - 1), dp = x > 0 ? dc c ln x : 0 (no real derivative exists elsewhere).
std::vector<Value*> pow_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* dx = ctx.needs(0) ? power_base_gradient(ctx, g) : nullptr;
  Value* dp = nullptr;
  if (ctx.needs(1)) {
    Value* is_positive = g.greater(x, g.scalar_like(x, 0));
    Value* log = g.log(g.where(is_positive, x, g.scalar_like(x, 1)));
    dp = g.cast_like(g.mul(ctx.cotangent(0), g.mul(ctx.output(0), log)), ctx.input(1));
  }
  return {dx, dp};
}

// c = a - b trunc(a / b);  da = dc, db = -dc trunc(a / b): fmod = 1, see lower_mod. db is zero
// where a / b is not finite, since c is then a or NaN.
std::vector<Value*> mod_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dc = ctx.cotangent(0);
  if (!ctx.needs(1)) return {dc, nullptr};
  Value* quotient = g.div(ctx.input(0), ctx.input(1));
  Value* magnitude = g.op("Floor", {g.abs(quotient)});
  Value* db = g.neg(g.mul(dc, g.mul(g.sign(quotient), magnitude)));
  Value* infinity = g.scalar_like(quotient, std::numeric_limits<double>::infinity());
  return {dc, keep_where(g, g.less(g.abs(quotient), infinity), db)};
}

// Lowers the floating-point a - b floor(a / b) of opset 28: the remainder with the sign of a, plus
// b where that sign differs from b's.
std::optional<std::vector<Value*>> lower_mod(const Node& node, GraphBuilder& g) {
  Value* a = node.inputs.at(0);
  Value* b = node.inputs.at(1);
  if (node.int_attribute("fmod") != 0 || !is_floating(a->dtype())) return std::nullopt;
  Value* zero = g.scalar_like(a, 0);
  Value* rest = g.op("Mod", {a, b}, {{.name = "fmod", .value = std::int64_t{1}}});
  Value* differs = g.op("Xor", {g.less(rest, zero), g.less(b, zero)});
  Value* is_off = g.op("And", {differs, g.op("Not", {g.equal(rest, zero)})});
  return {{g.where(is_off, g.add(rest, b), rest)}};
}

std::int32_t mod_expression(const Node& node, const std::vector<std::int32_t>& operands,
                            ExprProgram& program) {
  const bool is_fmod = node.int_attribute("fmod") != 0;
  return program.emit(is_fmod ? ExprOp::kFmod : ExprOp::kMod, operands[0], operands[1]);
}

struct Row {
  std::string_view op_type;
  int since_version;
  opdef::ExpressionFn expression;
  opdef::VjpFn vjp = nullptr;  // nullptr: the gradient is zero wherever it exists
};

const Row kRows[] = {
    {"Add", 14, binary_expression<ExprOp::kAdd>, add_vjp},
    {"Sub", 14, binary_expression<ExprOp::kSub>, sub_vjp},
    {"Mul", 14, binary_expression<ExprOp::kMul>, mul_vjp},
    {"Div", 14, binary_expression<ExprOp::kDiv>, div_vjp},
    {"Pow", 15, binary_expression<ExprOp::kPow>, pow_vjp},
    {"Equal", 19, binary_expression<ExprOp::kEqual>},
    {"Greater", 13, binary_expression<ExprOp::kGreater>},
    {"GreaterOrEqual", 16, binary_expression<ExprOp::kGreaterEqual>},
    {"Less", 13, binary_expression<ExprOp::kLess>},
    {"LessOrEqual", 16, binary_expression<ExprOp::kLessEqual>},
    {"And", 7, binary_expression<ExprOp::kAnd>},
    {"Or", 7, binary_expression<ExprOp::kOr>},
    {"Xor", 7, binary_expression<ExprOp::kXor>},
};

}  // namespace

void register_binary(opdef::OpRegistry& registry) {
  for (const Row& row : kRows) {
    opdef::OpDef def{.op_type = row.op_type,
                     .since_version = row.since_version,
                     .vjp = row.vjp,
                     .expression = row.expression,
                     .broadcasts = true,
                     .zero_gradient = row.vjp == nullptr};
    if (row.vjp != nullptr) def.differentiable_inputs = {0, 1};
    registry.add(std::move(def));
  }
  registry.add({
      .op_type = "Mod",
      .since_version = 13,
      .differentiable_inputs = {0, 1},
      .attributes = {flag_attribute("fmod", false)},
      .vjp = mod_vjp,
      .lower = lower_mod,
      .expression = mod_expression,
      .broadcasts = true,
  });
}

}  // namespace onnxgrad::ops::binary_op

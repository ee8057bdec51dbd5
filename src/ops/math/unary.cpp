#include <cmath>
#include <numbers>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Element-wise operators with one input: rows of the table at the end of this file, each with its
// expression (for the element-wise kernel) and its rule (x: input, y: output, dy: cotangent of y).
// Rules read y instead of x if either works: the memory of x is then free after the operator.

namespace onnxgrad::ops::unary_op {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

// Operands of the rules in this file.
struct Unary {
  const Node& node;
  Value* x;
  Value* y;
  Value* dy;
};

template <Value* (*kRule)(const Unary&, GraphBuilder&)>
std::vector<Value*> unary_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {kRule({ctx.node(), ctx.input(0), ctx.output(0), ctx.cotangent(0)}, g)};
}

template <ExprOp kOp>
std::int32_t unary_expression(const Node&, const std::vector<std::int32_t>& operands,
                              ExprProgram& program) {
  return program.emit(kOp, operands[0]);
}

// Return 1 - v^2 and 1 + v^2.
Value* one_minus_square(GraphBuilder& g, Value* v) {
  return g.sub(g.scalar_like(v, 1), g.mul(v, v));
}
Value* one_plus_square(GraphBuilder& g, Value* v) {
  return g.add(g.scalar_like(v, 1), g.mul(v, v));
}
Value* is_positive(GraphBuilder& g, Value* v) { return g.greater(v, g.scalar_like(v, 0)); }

// y = -x;  dx = -dy.
Value* neg_rule(const Unary& u, GraphBuilder& g) { return g.neg(u.dy); }
// y = |x|;  dx = dy sign(x), 0 at 0.
Value* abs_rule(const Unary& u, GraphBuilder& g) { return g.mul(u.dy, g.sign(u.x)); }
// y = e^x;  dx = dy y.
Value* exp_rule(const Unary& u, GraphBuilder& g) { return g.mul(u.dy, u.y); }
// y = ln x;  dx = dy / x.
Value* log_rule(const Unary& u, GraphBuilder& g) { return g.div(u.dy, u.x); }
// y = sqrt(x);  dx = dy / (2 y).
Value* sqrt_rule(const Unary& u, GraphBuilder& g) { return g.div(g.scale(u.dy, 0.5), u.y); }
// y = 1 / x;  dx = -dy y^2.
Value* reciprocal_rule(const Unary& u, GraphBuilder& g) {
  return g.neg(g.mul(u.dy, g.mul(u.y, u.y)));
}
// y = tanh x;  dx = dy (1 - y^2).
Value* tanh_rule(const Unary& u, GraphBuilder& g) { return g.mul(u.dy, one_minus_square(g, u.y)); }
// y = 1 / (1 + e^-x);  dx = dy y (1 - y).
Value* sigmoid_rule(const Unary& u, GraphBuilder& g) {
  return g.mul(u.dy, g.mul(u.y, g.sub(g.scalar_like(u.y, 1), u.y)));
}
// y = erf x;  dx = dy 2 / sqrt(pi) e^(-x^2).
Value* erf_rule(const Unary& u, GraphBuilder& g) {
  return g.mul(g.scale(u.dy, 2 * std::numbers::inv_sqrtpi), g.exp(g.neg(g.mul(u.x, u.x))));
}
// y = sin x;  dx = dy cos x.
Value* sin_rule(const Unary& u, GraphBuilder& g) { return g.mul(u.dy, g.op("Cos", {u.x})); }
// y = cos x;  dx = -dy sin x.
Value* cos_rule(const Unary& u, GraphBuilder& g) { return g.neg(g.mul(u.dy, g.op("Sin", {u.x}))); }
// y = tan x;  dx = dy (1 + y^2).
Value* tan_rule(const Unary& u, GraphBuilder& g) { return g.mul(u.dy, one_plus_square(g, u.y)); }
// y = asin x;  dx = dy / sqrt(1 - x^2).
Value* asin_rule(const Unary& u, GraphBuilder& g) {
  return g.div(u.dy, g.sqrt(one_minus_square(g, u.x)));
}
// y = acos x;  dx = -dy / sqrt(1 - x^2).
Value* acos_rule(const Unary& u, GraphBuilder& g) { return g.neg(asin_rule(u, g)); }
// y = atan x;  dx = dy / (1 + x^2).
Value* atan_rule(const Unary& u, GraphBuilder& g) { return g.div(u.dy, one_plus_square(g, u.x)); }
// y = sinh x;  dx = dy cosh x.
Value* sinh_rule(const Unary& u, GraphBuilder& g) { return g.mul(u.dy, g.op("Cosh", {u.x})); }
// y = cosh x;  dx = dy sinh x.
Value* cosh_rule(const Unary& u, GraphBuilder& g) { return g.mul(u.dy, g.op("Sinh", {u.x})); }
// y = asinh x;  dx = dy / sqrt(1 + x^2).
Value* asinh_rule(const Unary& u, GraphBuilder& g) {
  return g.div(u.dy, g.sqrt(one_plus_square(g, u.x)));
}
// y = acosh x;  dx = dy / sqrt((x - 1) (x + 1)), exact near 1.
Value* acosh_rule(const Unary& u, GraphBuilder& g) {
  Value* one = g.scalar_like(u.x, 1);
  return g.div(u.dy, g.sqrt(g.mul(g.sub(u.x, one), g.add(u.x, one))));
}
// y = atanh x;  dx = dy / ((1 - x) (1 + x)), exact near -1 and 1.
Value* atanh_rule(const Unary& u, GraphBuilder& g) {
  Value* one = g.scalar_like(u.x, 1);
  return g.div(u.dy, g.mul(g.sub(one, u.x), g.add(one, u.x)));
}
// y = ln(1 + e^x);  dx = dy / (1 + e^-x).
Value* softplus_rule(const Unary& u, GraphBuilder& g) {
  return g.mul(u.dy, g.op("Sigmoid", {u.x}));
}
// y = x / (1 + |x|);  dx = dy / (1 + |x|)^2.
Value* softsign_rule(const Unary& u, GraphBuilder& g) {
  Value* base = g.add(g.scalar_like(u.x, 1), g.abs(u.x));
  return g.div(u.dy, g.mul(base, base));
}
// y = max(x, 0);  dx = y > 0 ? dy : 0.
Value* relu_rule(const Unary& u, GraphBuilder& g) {
  return keep_where(g, is_positive(g, u.y), u.dy);
}
// y = x < 0 ? alpha x : x;  dx = x > 0 ? dy : alpha dy.
Value* leaky_relu_rule(const Unary& u, GraphBuilder& g) {
  const auto alpha = static_cast<double>(u.node.float_attribute("alpha"));
  return g.where(is_positive(g, u.x), u.dy, g.scale(u.dy, alpha));
}
// y = x < 0 ? alpha (e^x - 1) : x;  dx = x > 0 ? dy : dy (y + alpha), without an exponential that
// could overflow.
Value* elu_rule(const Unary& u, GraphBuilder& g) {
  const auto alpha = static_cast<double>(u.node.float_attribute("alpha"));
  Value* slope = g.add(u.y, g.scalar_like(u.y, alpha));
  return g.where(is_positive(g, u.x), u.dy, g.mul(u.dy, slope));
}

constexpr float kSeluAlpha = 1.67326319217681884765625f;  // the schema's defaults
constexpr float kSeluGamma = 1.05070102214813232421875f;

// y = gamma (x > 0 ? x : alpha (e^x - 1));  dx = x > 0 ? gamma dy : dy (y + gamma alpha).
Value* selu_rule(const Unary& u, GraphBuilder& g) {
  const auto alpha = static_cast<double>(u.node.float_attribute("alpha"));
  const auto gamma = static_cast<double>(u.node.float_attribute("gamma"));
  Value* slope = g.add(u.y, g.scalar_like(u.y, gamma * alpha));
  return g.where(is_positive(g, u.x), g.scale(u.dy, gamma), g.mul(u.dy, slope));
}
// y = max(0, min(1, alpha x + beta));  dx = 0 < y < 1 ? alpha dy : 0.
Value* hard_sigmoid_rule(const Unary& u, GraphBuilder& g) {
  const auto alpha = static_cast<double>(u.node.float_attribute("alpha"));
  Value* inside = g.op("And", {is_positive(g, u.y), g.less(u.y, g.scalar_like(u.y, 1))});
  return keep_where(g, inside, g.scale(u.dy, alpha));
}
// y = x max(0, min(1, x / 6 + 1 / 2));  dx = dy (x / 3 + 1 / 2) within (-3, 3), else as for Relu.
Value* hard_swish_rule(const Unary& u, GraphBuilder& g) {
  Value* inside = g.less(g.abs(u.x), g.scalar_like(u.x, 3));
  Value* slope = g.add(g.scale(u.x, 1.0 / 3), g.scalar_like(u.x, 0.5));
  return g.where(inside, g.mul(u.dy, slope), keep_where(g, is_positive(g, u.x), u.dy));
}

constexpr double kGeluCubic = 0.044715;
constexpr double kGeluScale = 0.7978845608028654;  // sqrt(2 / pi)

// y = x (1 + erf(x / sqrt 2)) / 2;  dx = dy ((1 + erf(x / sqrt 2)) / 2 + x e^(-x^2 / 2) / sqrt(2
// pi)).
Value* exact_gelu_rule(const Unary& u, GraphBuilder& g) {
  Value* erf = g.op("Erf", {g.scale(u.x, std::numbers::sqrt2 / 2)});
  Value* cdf = g.scale(g.add(erf, g.scalar_like(u.x, 1)), 0.5);
  Value* bell = g.exp(g.scale(g.mul(u.x, u.x), -0.5));
  Value* density = g.scale(bell, std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2);
  return g.mul(u.dy, g.add(cdf, g.mul(u.x, density)));
}
// y = x (1 + t) / 2, t = tanh(s (x + c x^3));  dx = dy ((1 + t) + x (1 - t^2) s (1 + 3 c x^2)) / 2.
Value* tanh_gelu_rule(const Unary& u, GraphBuilder& g) {
  Value* square = g.mul(u.x, u.x);
  Value* one = g.scalar_like(u.x, 1);
  Value* inner = g.mul(g.scale(u.x, kGeluScale), g.add(one, g.scale(square, kGeluCubic)));
  Value* t = g.op("Tanh", {inner});
  Value* slope = g.scale(g.add(one, g.scale(square, 3 * kGeluCubic)), kGeluScale);
  Value* bent = g.mul(g.mul(u.x, one_minus_square(g, t)), slope);
  return g.mul(g.scale(u.dy, 0.5), g.add(g.add(one, t), bent));
}
Value* gelu_rule(const Unary& u, GraphBuilder& g) {
  return u.node.string_attribute("approximate") == "tanh" ? tanh_gelu_rule(u, g)
                                                          : exact_gelu_rule(u, g);
}

std::int32_t softsign_expression(const Node&, const std::vector<std::int32_t>& operands,
                                 ExprProgram& program) {
  const std::int32_t size = program.emit(ExprOp::kAbs, operands[0]);
  const std::int32_t base = program.emit(ExprOp::kAdd, program.constant(1), size);
  return program.emit(ExprOp::kDiv, operands[0], base);
}

std::int32_t is_inf_expression(const Node& node, const std::vector<std::int32_t>& operands,
                               ExprProgram& program) {
  const bool positive = node.int_attribute("detect_positive") != 0;
  const bool negative = node.int_attribute("detect_negative") != 0;
  const std::int32_t is_inf = program.emit(ExprOp::kIsInf, operands[0]);
  if (positive && negative) return is_inf;
  if (!positive && !negative) return program.emit(ExprOp::kXor, is_inf, is_inf);
  const std::int32_t is_sign =
      program.emit(positive ? ExprOp::kGreater : ExprOp::kLess, operands[0], program.constant(0));
  return program.emit(ExprOp::kAnd, is_inf, is_sign);
}

std::int32_t leaky_relu_expression(const Node& node, const std::vector<std::int32_t>& operands,
                                   ExprProgram& program) {
  const std::int32_t x = operands[0];
  const std::int32_t alpha = program.constant(static_cast<double>(node.float_attribute("alpha")));
  const std::int32_t is_negative = program.emit(ExprOp::kLess, x, program.constant(0));
  return program.emit(ExprOp::kSelect, is_negative, program.emit(ExprOp::kMul, alpha, x), x);
}

// Emits x < 0 ? alpha (e^x - 1) : x, for Elu and Selu.
std::int32_t emit_elu(std::int32_t x, double alpha, ExprProgram& program) {
  const std::int32_t is_negative = program.emit(ExprOp::kLess, x, program.constant(0));
  const std::int32_t exp_minus_one =
      program.emit(ExprOp::kSub, program.emit(ExprOp::kExp, x), program.constant(1));
  const std::int32_t scaled = program.emit(ExprOp::kMul, program.constant(alpha), exp_minus_one);
  return program.emit(ExprOp::kSelect, is_negative, scaled, x);
}

std::int32_t elu_expression(const Node& node, const std::vector<std::int32_t>& operands,
                            ExprProgram& program) {
  return emit_elu(operands[0], static_cast<double>(node.float_attribute("alpha")), program);
}

std::int32_t selu_expression(const Node& node, const std::vector<std::int32_t>& operands,
                             ExprProgram& program) {
  const auto alpha = static_cast<double>(node.float_attribute("alpha"));
  const auto gamma = static_cast<double>(node.float_attribute("gamma"));
  const std::int32_t elu = emit_elu(operands[0], alpha, program);
  return program.emit(ExprOp::kMul, program.constant(gamma), elu);
}

// Emits max(0, min(1, alpha x + beta)), for HardSigmoid and HardSwish.
std::int32_t emit_hard_sigmoid(std::int32_t x, double alpha, double beta, ExprProgram& program) {
  const std::int32_t scaled = program.emit(ExprOp::kMul, program.constant(alpha), x);
  const std::int32_t line = program.emit(ExprOp::kAdd, scaled, program.constant(beta));
  const std::int32_t below = program.emit(ExprOp::kMin, line, program.constant(1));
  return program.emit(ExprOp::kMax, below, program.constant(0));
}

std::int32_t hard_sigmoid_expression(const Node& node, const std::vector<std::int32_t>& operands,
                                     ExprProgram& program) {
  return emit_hard_sigmoid(operands[0], static_cast<double>(node.float_attribute("alpha")),
                           static_cast<double>(node.float_attribute("beta")), program);
}

std::int32_t hard_swish_expression(const Node&, const std::vector<std::int32_t>& operands,
                                   ExprProgram& program) {
  const std::int32_t gate = emit_hard_sigmoid(operands[0], 1.0 / 6, 0.5, program);
  return program.emit(ExprOp::kMul, operands[0], gate);
}

std::int32_t gelu_expression(const Node& node, const std::vector<std::int32_t>& operands,
                             ExprProgram& program) {
  const std::int32_t x = operands[0];
  std::int32_t bent = 0;
  if (node.string_attribute("approximate") == "tanh") {
    const std::int32_t square = program.emit(ExprOp::kMul, x, x);
    const std::int32_t cubic =
        program.emit(ExprOp::kMul, square, program.constant(kGeluScale * kGeluCubic));
    const std::int32_t slope = program.emit(ExprOp::kAdd, cubic, program.constant(kGeluScale));
    bent = program.emit(ExprOp::kTanh, program.emit(ExprOp::kMul, x, slope));
  } else {
    const std::int32_t scaled =
        program.emit(ExprOp::kMul, x, program.constant(std::numbers::sqrt2 / 2));
    bent = program.emit(ExprOp::kErf, scaled);
  }
  const std::int32_t half = program.emit(ExprOp::kMul, x, program.constant(0.5));
  const std::int32_t one_plus = program.emit(ExprOp::kAdd, program.constant(1), bent);
  return program.emit(ExprOp::kMul, half, one_plus);
}

struct Row {
  std::string_view op_type;
  int since_version;
  opdef::ExpressionFn expression;
  opdef::VjpFn vjp = nullptr;  // nullptr: the gradient is zero wherever it exists
  std::vector<AttributeSpec> attributes = {};
};

std::vector<Row> plain_rows() {
  return {
      {"Neg", 13, unary_expression<ExprOp::kNeg>, unary_vjp<neg_rule>},
      {"Abs", 13, unary_expression<ExprOp::kAbs>, unary_vjp<abs_rule>},
      {"Exp", 13, unary_expression<ExprOp::kExp>, unary_vjp<exp_rule>},
      {"Log", 13, unary_expression<ExprOp::kLog>, unary_vjp<log_rule>},
      {"Sqrt", 13, unary_expression<ExprOp::kSqrt>, unary_vjp<sqrt_rule>},
      {"Reciprocal", 13, unary_expression<ExprOp::kReciprocal>, unary_vjp<reciprocal_rule>},
      {"Tanh", 13, unary_expression<ExprOp::kTanh>, unary_vjp<tanh_rule>},
      {"Sigmoid", 13, unary_expression<ExprOp::kSigmoid>, unary_vjp<sigmoid_rule>},
      {"Erf", 13, unary_expression<ExprOp::kErf>, unary_vjp<erf_rule>},
      {"Sin", 22, unary_expression<ExprOp::kSin>, unary_vjp<sin_rule>},
      {"Cos", 22, unary_expression<ExprOp::kCos>, unary_vjp<cos_rule>},
      {"Tan", 22, unary_expression<ExprOp::kTan>, unary_vjp<tan_rule>},
      {"Asin", 22, unary_expression<ExprOp::kAsin>, unary_vjp<asin_rule>},
      {"Acos", 22, unary_expression<ExprOp::kAcos>, unary_vjp<acos_rule>},
      {"Atan", 22, unary_expression<ExprOp::kAtan>, unary_vjp<atan_rule>},
      {"Sinh", 22, unary_expression<ExprOp::kSinh>, unary_vjp<sinh_rule>},
      {"Cosh", 22, unary_expression<ExprOp::kCosh>, unary_vjp<cosh_rule>},
      {"Asinh", 22, unary_expression<ExprOp::kAsinh>, unary_vjp<asinh_rule>},
      {"Acosh", 22, unary_expression<ExprOp::kAcosh>, unary_vjp<acosh_rule>},
      {"Atanh", 22, unary_expression<ExprOp::kAtanh>, unary_vjp<atanh_rule>},
      {"Softplus", 22, unary_expression<ExprOp::kSoftplus>, unary_vjp<softplus_rule>},
      {"Softsign", 22, softsign_expression, unary_vjp<softsign_rule>},
      {"Relu", 14, unary_expression<ExprOp::kRelu>, unary_vjp<relu_rule>},
      {"HardSwish", 22, hard_swish_expression, unary_vjp<hard_swish_rule>},
      {"Sign", 13, unary_expression<ExprOp::kSign>},
      {"Floor", 13, unary_expression<ExprOp::kFloor>},
      {"Ceil", 13, unary_expression<ExprOp::kCeil>},
      {"Round", 22, unary_expression<ExprOp::kRound>},
      {"Not", 1, unary_expression<ExprOp::kNot>},
      {"IsNaN", 20, unary_expression<ExprOp::kIsNan>},
  };
}

std::vector<Row> rows_with_attributes() {
  return {
      {"IsInf",
       20,
       is_inf_expression,
       nullptr,
       {flag_attribute("detect_negative", true), flag_attribute("detect_positive", true)}},
      {"LeakyRelu",
       16,
       leaky_relu_expression,
       unary_vjp<leaky_relu_rule>,
       {float_attribute("alpha", 0.01F)}},
      {"Elu", 22, elu_expression, unary_vjp<elu_rule>, {float_attribute("alpha", 1)}},
      {"Selu",
       22,
       selu_expression,
       unary_vjp<selu_rule>,
       {float_attribute("alpha", kSeluAlpha), float_attribute("gamma", kSeluGamma)}},
      {"HardSigmoid",
       22,
       hard_sigmoid_expression,
       unary_vjp<hard_sigmoid_rule>,
       {float_attribute("alpha", 0.2F), float_attribute("beta", 0.5F)}},
      {"Gelu",
       20,
       gelu_expression,
       unary_vjp<gelu_rule>,
       {choice_attribute("approximate", {"none", "tanh"})}},
  };
}

// y = x;  dx = dy.
std::vector<Value*> identity_vjp(VjpContext& ctx, GraphBuilder&) { return {ctx.cotangent(0)}; }

// y = x;  dx = 0.
ir::Function stop_gradient_body(std::string_view base, const std::vector<Value*>&,
                                const std::vector<Attribute>& attributes) {
  FunctionBody f(base, "identity", attributes);
  Value* const y = f.identity(f.input("x"));
  return std::move(f).finish({y});
}

void add_row(opdef::OpRegistry& registry, Row row) {
  opdef::OpDef def{.op_type = row.op_type,
                   .since_version = row.since_version,
                   .attributes = std::move(row.attributes),
                   .vjp = row.vjp,
                   .expression = row.expression,
                   .zero_gradient = row.vjp == nullptr};
  if (row.vjp != nullptr) def.differentiable_inputs = {0};
  registry.add(std::move(def));
}

}  // namespace

void register_unary(opdef::OpRegistry& registry) {
  for (Row& row : plain_rows()) add_row(registry, std::move(row));
  for (Row& row : rows_with_attributes()) add_row(registry, std::move(row));
  registry.add({.op_type = "Identity",
                .since_version = 25,
                .differentiable_inputs = {0},
                .vjp = identity_vjp,
                .passage = opdef::Passage::kUnchanged,
                .is_identity = [](const Node&) { return true; }});
  // Marks where stop_gradient= ends the gradient: an Identity with a zero gradient. Searches for
  // layers look through it; the search for the logits that the loss is attached to does not.
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "StopGradient",
                .function_body = stop_gradient_body,
                .passage = opdef::Passage::kPermuted,
                .is_identity = [](const Node&) { return true; },
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::unary_op

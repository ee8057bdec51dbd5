#include "opdef/registry.h"
#include "ops/rules.h"

// Sum, Mean, Max and Min of any number of broadcast inputs. y: output, dy: its cotangent.

namespace onnxgrad::ops::variadic_op {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

template <ExprOp kOp>
std::int32_t fold_expression(const Node&, const std::vector<std::int32_t>& operands,
                             ExprProgram& program) {
  std::int32_t result = operands[0];
  for (std::size_t i = 1; i < operands.size(); ++i) {
    result = program.emit(kOp, result, operands[i]);
  }
  return result;
}

std::int32_t mean_expression(const Node& node, const std::vector<std::int32_t>& operands,
                             ExprProgram& program) {
  const std::int32_t sum = fold_expression<ExprOp::kAdd>(node, operands, program);
  const std::int32_t count = program.constant(static_cast<double>(operands.size()));
  return program.emit(ExprOp::kDiv, sum, count);
}

// y = sum_i x_i;  dx_i = dy.
std::vector<Value*> sum_vjp(VjpContext& ctx, GraphBuilder&) {
  return std::vector<Value*>(ctx.num_inputs(), ctx.cotangent(0));
}

// y = sum_i x_i / n;  dx_i = dy / n.
std::vector<Value*> mean_vjp(VjpContext& ctx, GraphBuilder& g) {
  const auto count = static_cast<double>(ctx.num_inputs());
  return std::vector<Value*>(ctx.num_inputs(), g.scale(ctx.cotangent(0), 1 / count));
}

// y = max_i x_i (or min_i);  dx_i = x_i == y ? dy / (number of j with x_j == y) : 0.
// Tied inputs receive equal parts of the gradient.
std::vector<Value*> extremum_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);
  if (ctx.num_inputs() == 1) return {dy};
  std::vector<Value*> winners;
  std::vector<Value*> counted;
  for (std::size_t i = 0; i < ctx.num_inputs(); ++i) {
    winners.push_back(g.equal(ctx.input(i), ctx.output(0)));
    counted.push_back(g.cast_like(winners.back(), dy));
  }
  Value* share = g.div(dy, g.op("Sum", counted));
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  for (std::size_t i = 0; i < ctx.num_inputs(); ++i) {
    if (ctx.needs(i)) gradients[i] = keep_where(g, winners[i], share);
  }
  return gradients;
}

// Computes x_1 + ... + x_n from left to right, as one node does, in nodes of at most kMaxOperands
// inputs, so that such a node and its producers fit into one kernel.
Value* fold(std::string_view op_type, const std::vector<Value*>& operands, GraphBuilder& g) {
  constexpr std::size_t kMaxOperands = 32;
  std::vector<Value*> group;
  for (Value* operand : operands) {
    if (group.size() == kMaxOperands) group = {g.op(op_type, group)};
    group.push_back(operand);
  }
  return group.size() == operands.size() ? nullptr : g.op(op_type, group);
}

std::optional<std::vector<Value*>> split_fold(const Node& node, GraphBuilder& g) {
  Value* result = fold(node.op_type, node.inputs, g);
  if (result == nullptr) return std::nullopt;
  return std::vector{result};
}

std::optional<std::vector<Value*>> split_mean(const Node& node, GraphBuilder& g) {
  Value* sum = fold("Sum", node.inputs, g);
  if (sum == nullptr) return std::nullopt;
  return std::vector{g.div(sum, g.scalar_like(sum, static_cast<double>(node.inputs.size())))};
}

struct Row {
  std::string_view op_type;
  opdef::ExpressionFn expression;
  opdef::VjpFn vjp;
  opdef::SplitFn split;
};

const Row kRows[] = {
    {"Sum", fold_expression<ExprOp::kAdd>, sum_vjp, split_fold},
    {"Mean", mean_expression, mean_vjp, split_mean},
    {"Max", fold_expression<ExprOp::kMax>, extremum_vjp, split_fold},
    {"Min", fold_expression<ExprOp::kMin>, extremum_vjp, split_fold},
};

}  // namespace

void register_variadic(opdef::OpRegistry& registry) {
  for (const Row& row : kRows) {
    registry.add({.op_type = row.op_type,
                  .since_version = 13,
                  .differentiable_inputs = {0, -1},
                  .vjp = row.vjp,
                  .split = row.split,
                  .expression = row.expression,
                  .broadcasts = true,
                  .is_identity = [](const Node& node) { return node.inputs.size() == 1; }});
  }
}

}  // namespace onnxgrad::ops::variadic_op

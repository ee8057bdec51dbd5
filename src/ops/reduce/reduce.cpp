#include "opdef/registry.h"
#include "ops/rules.h"

// Reductions over the axes in input 1 (none: all axes, or no axis with noop_with_empty_axes).
// x: data, y: reduced, dy: its cotangent; "kept" values have the reduced axes as axes of size 1, so
// that they broadcast against x.

namespace onnxgrad::ops::reduce_op {
namespace {

// Returns true if the node reduces no axis: none is given, and the node defines that to mean none.
bool reduces_nothing(const Node& node) {
  if (node.int_attribute("noop_with_empty_axes") == 0) return false;
  if (node.input(1) == nullptr) return true;
  const auto axes = constant_ints(node.input(1));
  return axes && axes->empty();
}

bool reduces_everything(const Node& node) {
  if (node.int_attribute("noop_with_empty_axes") != 0) return false;
  if (node.input(1) == nullptr) return true;
  const auto axes = constant_ints(node.input(1));
  return axes && axes->empty();
}

// Reshapes `v`, of the shape of y, to keep the reduced axes with size 1. A scalar broadcasts
// anyway.
Value* kept(VjpContext& ctx, GraphBuilder& g, Value* v) {
  const Node& node = ctx.node();
  if (node.int_attribute("keepdims") != 0) return v;
  if (reduces_everything(node) || reduces_nothing(node)) return v;
  return g.op("Unsqueeze", {v, node.input(1)});
}

// Applies another reduction over the same axes, with the axes kept.
Value* reduce_again(VjpContext& ctx, GraphBuilder& g, std::string_view op_type, Value* v) {
  const Node& node = ctx.node();
  std::vector<Attribute> attributes;
  if (node.int_attribute("noop_with_empty_axes") != 0) {
    attributes.push_back({"noop_with_empty_axes", std::int64_t{1}});
  }
  return g.op(op_type, {v, node.input(1)}, std::move(attributes));
}

Value* expand_like(GraphBuilder& g, Value* v, Value* x) { return g.expand(v, shape_value(g, x)); }

// y = sum x;  dx = dy, spread over the axes.
std::vector<Value*> sum_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (reduces_nothing(ctx.node())) return {ctx.cotangent(0)};
  return {expand_like(g, kept(ctx, g, ctx.cotangent(0)), ctx.input(0))};
}

// Returns the number of elements of x per element of y, in x's dtype.
Value* reduced_count(VjpContext& ctx, GraphBuilder& g) {
  const auto x = ctx.input(0)->type.static_dims();
  const auto y = ctx.output(0)->type.static_dims();
  if (x && y) {
    const std::int64_t groups = std::max<std::int64_t>(y->num_elements(), 1);
    const std::int64_t count = x->num_elements() / groups;
    return g.scalar_like(ctx.input(0), static_cast<double>(count));
  }
  Value* groups = g.op("Max", {g.size_of(ctx.output(0)), g.int_scalar(1)});
  return g.cast_like(g.div(g.size_of(ctx.input(0)), groups), ctx.input(0));
}

// y = sum x / n;  dx = dy / n, spread.
std::vector<Value*> mean_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (reduces_nothing(ctx.node())) return {ctx.cotangent(0)};
  Value* share = g.div(ctx.cotangent(0), reduced_count(ctx, g));
  return {expand_like(g, kept(ctx, g, share), ctx.input(0))};
}

// y = max x (or min x);  dx = x == y ? dy / (number of elements equal to y) : 0.
// Tied elements receive equal parts of the gradient.
std::vector<Value*> extremum_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);
  if (reduces_nothing(ctx.node())) return {dy};
  Value* is_extremum = g.equal(ctx.input(0), kept(ctx, g, ctx.output(0)));
  Value* count = reduce_again(ctx, g, "ReduceSum", g.cast_like(is_extremum, dy));
  return {keep_where(g, is_extremum, g.div(kept(ctx, g, dy), count))};
}

// y = prod x;  dx_i = dy prod_{j != i} x_j. With q = the product of the nonzero factors, that is
// q / x_i if no other factor is zero (q for x_i = 0 itself), else 0: exact for any zeros.
std::vector<Value*> prod_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* dy = ctx.cotangent(0);
  if (reduces_nothing(ctx.node())) return {dy};
  Value* is_zero = g.equal(x, g.scalar_like(x, 0));
  Value* zero_as_number = g.cast_like(is_zero, x);
  Value* factors = g.where(is_zero, g.scalar_like(x, 1), x);
  Value* product = reduce_again(ctx, g, "ReduceProd", factors);
  Value* zeros = reduce_again(ctx, g, "ReduceSum", zero_as_number);
  Value* others_are_nonzero = g.equal(zeros, zero_as_number);
  Value* others = keep_where(g, others_are_nonzero, g.div(product, factors));
  return {g.mul(kept(ctx, g, dy), others)};
}

// y = sum x^2;  dx = 2 x dy.
std::vector<Value*> sum_square_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.mul(g.scale(kept(ctx, g, ctx.cotangent(0)), 2), ctx.input(0))};
}

// y = sum |x|;  dx = sign(x) dy.
std::vector<Value*> l1_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.mul(kept(ctx, g, ctx.cotangent(0)), g.sign(ctx.input(0)))};
}

// y = sqrt(sum x^2);  dx = x dy / y, 0 where y is 0.
std::vector<Value*> l2_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* y = ctx.output(0);
  Value* is_zero = g.equal(y, g.scalar_like(y, 0));
  Value* ratio = g.div(ctx.cotangent(0), g.where(is_zero, g.scalar_like(y, 1), y));
  return {g.mul(kept(ctx, g, ratio), ctx.input(0))};
}

// y = ln sum x;  dx = dy e^-y.
std::vector<Value*> log_sum_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* slope = g.mul(ctx.cotangent(0), g.exp(g.neg(ctx.output(0))));
  return {expand_like(g, kept(ctx, g, slope), ctx.input(0))};
}

// y = ln sum e^x;  dx = dy e^(x - y), or 0 where y is -inf and depends on nothing.
std::vector<Value*> log_sum_exp_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);
  Value* y = ctx.output(0);
  Value* is_unused = g.op("And", {g.op("IsInf", {y}), g.equal(dy, g.scalar_like(dy, 0))});
  Value* log_share = g.sub(ctx.input(0), kept(ctx, g, drop_where(g, is_unused, y)));
  return {g.mul(kept(ctx, g, dy), g.exp(log_share))};
}

struct Row {
  std::string_view op_type;
  int since_version;
  opdef::VjpFn vjp;
  bool is_identity_without_axes;  // else its element-wise function is applied
};

const Row kRows[] = {
    {"ReduceSum", 13, sum_vjp, true},         {"ReduceMean", 18, mean_vjp, true},
    {"ReduceMax", 20, extremum_vjp, true},    {"ReduceMin", 20, extremum_vjp, true},
    {"ReduceProd", 18, prod_vjp, true},       {"ReduceSumSquare", 18, sum_square_vjp, false},
    {"ReduceL1", 18, l1_vjp, false},          {"ReduceL2", 18, l2_vjp, false},
    {"ReduceLogSum", 18, log_sum_vjp, false}, {"ReduceLogSumExp", 18, log_sum_exp_vjp, false},
};

}  // namespace

void register_reduce(opdef::OpRegistry& registry) {
  for (const Row& row : kRows) {
    opdef::OpDef def{.op_type = row.op_type,
                     .since_version = row.since_version,
                     .differentiable_inputs = {0},
                     .attributes = {flag_attribute("keepdims", true),
                                    flag_attribute("noop_with_empty_axes", false)},
                     .vjp = row.vjp,
                     .planned_inputs = {1}};
    if (row.is_identity_without_axes) def.is_identity = reduces_nothing;
    registry.add(std::move(def));
  }
}

}  // namespace onnxgrad::ops::reduce_op

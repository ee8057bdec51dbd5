#include <string>

#include "opdef/registry.h"
#include "ops/rules.h"

// ScatterElements and ScatterND: y = x with `updates` written to, added to, multiplied into or
// compared with the elements at `indices`. Both have one rule, in terms of the scatter operator
// itself and the gather operator with the same indices.

namespace onnxgrad::ops::scatter_op {
namespace {

// Gather and scatter operators with the same indices.
class Places {
 public:
  Places(VjpContext& ctx, GraphBuilder& g) : node_(ctx.node()), g_(g) {}

  Value* scatter(Value* data, Value* updates, const std::string& reduction) const {
    std::vector<Attribute> attributes = axis();
    if (reduction != "none") attributes.push_back({"reduction", reduction});
    return g_.op(node_.op_type, {data, node_.input(1), updates}, std::move(attributes));
  }
  Value* pick(Value* data) const {
    const char* op_type = node_.op_type == "ScatterND" ? "GatherND" : "GatherElements";
    return g_.op(op_type, {data, node_.input(1)}, axis());
  }

 private:
  std::vector<Attribute> axis() const {
    if (node_.op_type == "ScatterND") return {};
    return {{"axis", node_.int_attribute("axis")}};
  }
  const Node& node_;
  GraphBuilder& g_;
};

// y = updates where one was written, else x;  dx = dy where none was written, dupdates = dy
// gathered at the indices.
std::vector<Value*> overwrite_vjp(VjpContext& ctx, GraphBuilder& g, const Places& places) {
  Value* dy = ctx.cotangent(0);
  std::vector<Value*> gradients(3, nullptr);
  if (ctx.needs(0)) {
    gradients[0] = places.scatter(dy, g.zeros_like(ctx.input(2)), "none");
  }
  if (ctx.needs(2)) gradients[2] = places.pick(dy);
  return gradients;
}

// y = x + sum of updates;  dx = dy, dupdates = dy gathered at the indices.
std::vector<Value*> add_vjp(VjpContext& ctx, const Places& places) {
  Value* dy = ctx.cotangent(0);
  return {dy, nullptr, ctx.needs(2) ? places.pick(dy) : nullptr};
}

// y = x prod of updates. Each factor's gradient is dy times the product of the others: with q the
// product of the nonzero factors, q / factor if no other factor is zero, else 0.
std::vector<Value*> multiply_vjp(VjpContext& ctx, GraphBuilder& g, const Places& places) {
  Value* dy = ctx.cotangent(0);
  Value* zero = g.scalar_like(dy, 0);
  Value* one = g.scalar_like(dy, 1);
  struct Factors {
    Value* is_zero;  // 1 where zero, else 0
    Value* safe;     // 1 in place of 0
  };
  const auto factors = [&](Value* v) -> Factors {
    Value* is_zero = g.equal(v, zero);
    return {g.cast_like(is_zero, dy), g.where(is_zero, one, v)};
  };
  const Factors x = factors(ctx.input(0));
  const Factors updates = factors(ctx.input(2));
  Value* product = g.mul(dy, places.scatter(x.safe, updates.safe, "mul"));
  Value* zeros = places.scatter(x.is_zero, updates.is_zero, "add");
  std::vector<Value*> gradients(3, nullptr);
  if (ctx.needs(0)) {
    gradients[0] = keep_where(g, g.equal(zeros, x.is_zero), g.div(product, x.safe));
  }
  if (ctx.needs(2)) {
    gradients[2] = keep_where(g, g.equal(places.pick(zeros), updates.is_zero),
                              g.div(places.pick(product), updates.safe));
  }
  return gradients;
}

// y = max (or min) of x and updates; all that are equal to y receive an equal part of dy.
std::vector<Value*> extremum_vjp(VjpContext& ctx, GraphBuilder& g, const Places& places) {
  Value* dy = ctx.cotangent(0);
  Value* y = ctx.output(0);
  Value* x_wins = g.equal(ctx.input(0), y);
  Value* update_wins = g.equal(ctx.input(2), places.pick(y));
  Value* count = places.scatter(g.cast_like(x_wins, dy), g.cast_like(update_wins, dy), "add");
  Value* share = g.div(dy, count);
  return {ctx.needs(0) ? keep_where(g, x_wins, share) : nullptr, nullptr,
          ctx.needs(2) ? keep_where(g, update_wins, places.pick(share)) : nullptr};
}

std::vector<Value*> scatter_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Places places(ctx, g);
  const std::string reduction = ctx.node().string_attribute("reduction");
  if (reduction == "add") return add_vjp(ctx, places);
  if (reduction == "mul") return multiply_vjp(ctx, g, places);
  if (reduction == "none") return overwrite_vjp(ctx, g, places);
  return extremum_vjp(ctx, g, places);
}

}  // namespace

void register_scatter(opdef::OpRegistry& registry) {
  const AttributeSpec reduction =
      choice_attribute("reduction", {"none", "add", "mul", "max", "min"});
  registry.add({
      .op_type = "ScatterElements",
      .since_version = 18,
      .differentiable_inputs = {0, 2},
      .attributes = {axis_attribute("axis", 0), reduction},
      .vjp = scatter_vjp,
  });
  registry.add({
      .op_type = "ScatterND",
      .since_version = 18,
      .differentiable_inputs = {0, 2},
      .attributes = {reduction},
      .vjp = scatter_vjp,
  });
}

}  // namespace onnxgrad::ops::scatter_op

#include "opdef/registry.h"
#include "ops/rules.h"

// Y = alpha op(A) op(B) + beta C, op(A): [m, k], op(B): [k, n], C broadcast to [m, n].

namespace onnxgrad::ops::gemm_op {
namespace {

Value* product(GraphBuilder& g, Value* a, bool trans_a, Value* b, bool trans_b, float alpha) {
  std::vector<Attribute> attributes;
  if (alpha != 1) attributes.push_back({"alpha", alpha});
  if (trans_a) attributes.push_back({"transA", std::int64_t{1}});
  if (trans_b) attributes.push_back({"transB", std::int64_t{1}});
  return g.op("Gemm", {a, b}, std::move(attributes));
}

// d op(A) = alpha dY op(B)^T, d op(B) = alpha op(A)^T dY, each transposed where its operand is;
// dC = beta dY, summed to C's shape.
std::vector<Value*> gemm_vjp(VjpContext& ctx, GraphBuilder& g) {
  const bool trans_a = ctx.node().int_attribute("transA") != 0;
  const bool trans_b = ctx.node().int_attribute("transB") != 0;
  const float alpha = ctx.node().float_attribute("alpha");
  const float beta = ctx.node().float_attribute("beta");
  Value* a = ctx.input(0);
  Value* b = ctx.input(1);
  Value* dy = ctx.cotangent(0);
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) {
    gradients[0] = trans_a ? product(g, b, trans_b, dy, true, alpha)
                           : product(g, dy, false, b, !trans_b, alpha);
  }
  if (ctx.needs(1)) {
    gradients[1] = trans_b ? product(g, dy, true, a, trans_a, alpha)
                           : product(g, a, !trans_a, dy, false, alpha);
  }
  if (ctx.input(2) != nullptr && ctx.needs(2)) {
    Value* scaled = beta == 1 ? dy : g.scale(dy, static_cast<double>(beta));
    gradients[2] = g.sum_to(scaled, ctx.input(2));
  }
  return gradients;
}

}  // namespace

void register_gemm(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Gemm",
                .since_version = 13,
                .differentiable_inputs = {0, 1, 2},
                .attributes = {float_attribute("alpha", 1), float_attribute("beta", 1),
                               flag_attribute("transA", false), flag_attribute("transB", false)},
                .vjp = gemm_vjp,
                .weight_inputs = {0, 1, 2}});
}

}  // namespace onnxgrad::ops::gemm_op

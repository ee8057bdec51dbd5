#include <limits>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Det of matrices [..., n, n]:  d det(X) / dX = C, the cofactors: C_ij = (-1)^(i + j) times the
// determinant of X without row i and column j. Cofactors exist for singular matrices too, unlike
// det(X) X^-T.

namespace onnxgrad::ops::det_op {
namespace {

std::vector<Value*> det_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* cofactors = g.call("Cofactors", {ctx.input(0)}, 1)[0];
  return {g.mul(g.unsqueeze(ctx.cotangent(0), {-1, -2}), cofactors)};
}

// Computes the cofactors of x: determinants of the minors, which are gathered.
ir::Function cofactors_body(std::string_view base_name, const std::vector<Value*>& /*inputs*/,
                            const std::vector<Attribute>& attributes) {
  FunctionBody f(base_name, "minors", attributes);
  Value* x = f.input("x");
  Value* shape = f.shape_of(x);
  Value* n =
      f.op("Slice", {shape, f.ints({-1}), f.ints({std::numeric_limits<std::int64_t>::max()})});
  Value* count = f.op("ReduceProd", {f.dims_of(x, 0, -2)});  // -1 is not allowed for empty matrices
  Value* matrices = f.reshape(x, f.concat({count, n, n}, 0));
  const auto range = [&](Value* stop) {
    return f.op("Range", {f.int_scalar(0), f.squeeze(stop, {0}), f.int_scalar(1)});
  };
  // rest[i] = 0, ..., n - 1 without i.
  Value* i = f.unsqueeze(range(n), {1});
  Value* k = f.unsqueeze(range(f.sub(n, f.ints({1}))), {0});
  Value* rest = f.add(k, f.cast(f.op("GreaterOrEqual", {k, i}), DataType::kInt64));
  Value* minors = f.gather(f.gather(matrices, rest, 1), rest, 3);  // [b, n, n - 1, n, n - 1]
  Value* dets = f.op("Det", {f.transpose(minors, {0, 1, 3, 2, 4})});
  Value* parity = f.op("Mod", {f.add(i, f.transpose(i, {1, 0})), f.ints({2})});
  Value* cofactors = f.where(f.equal(parity, f.ints({0})), dets, f.neg(dets));
  return std::move(f).finish({f.reshape(cofactors, shape)});
}

}  // namespace

void register_det(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "Det", .since_version = 22, .differentiable_inputs = {0}, .vjp = det_vjp});
  registry.add(
      {.domain = ir::kFunctionDomain, .op_type = "Cofactors", .function_body = cofactors_body});
}

}  // namespace onnxgrad::ops::det_op

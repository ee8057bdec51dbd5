#include <string>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// CumProd: y_i = product of x_j over j <= i (j < i if exclusive; from the other end if reverse).
//
// With p_k the product of the x_j before k, and r_k the sum over i >= k of dy_i times the product
// of the x_j with k < j <= i:  dx_k = p_k r_k. There is no division, so zeros need no special case.
// The kernel uses r_k = dy_k + x_{k+1} r_{k+1}. If exclusive, y_i lacks x_i, and r_k is the sum
// over i > k of dy_i times the product of the x_j with k < j < i.

namespace onnxgrad::ops::cumprod_op {
namespace {

std::vector<Value*> cumprod_vjp(VjpContext& ctx, GraphBuilder& g) {
  std::vector<Attribute> attributes;
  for (const char* flag : {"exclusive", "reverse"}) {
    attributes.push_back({flag, ctx.node().int_attribute(flag)});
  }
  return {g.call("CumProdGrad", {ctx.cotangent(0), ctx.input(0), ctx.input(1)}, 1,
                 std::move(attributes))[0],
          nullptr};
}

// Gradient as a function of (dy, x, axis), on rows [n, m] with the axis first. The products of the
// x_j with k < j <= i are a cumulative product over a matrix [n, n, m] with ones up to the
// diagonal.
ir::Function grad_body(std::string_view base_name, const std::vector<Value*>& /*inputs*/,
                       const std::vector<Attribute>& attributes) {
  bool is_exclusive = false;
  bool is_reverse = false;
  for (const Attribute& attribute : attributes) {
    const bool is_set = std::get<std::int64_t>(attribute.value) != 0;
    (attribute.name == "reverse" ? is_reverse : is_exclusive) = is_set;
  }
  FunctionBody f(
      base_name,
      std::string(is_exclusive ? "exclusive" : "inclusive") + (is_reverse ? "_reverse" : ""),
      attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  Value* axis = f.reshape(f.input("axis"), {1});
  // [outer, n, inner]: the axis in the middle, for any rank.
  Value* shape = f.shape_of(x);
  Value* rank = f.shape_of(shape);
  Value* place = f.op("Mod", {f.cast(axis, DataType::kInt64), rank});
  const auto product = [&](Value* first, Value* last) {
    Value* dims = f.concat({f.ints({1}), f.op("Slice", {shape, first, last})}, 0);
    return f.op("ReduceProd", {dims}, {{"keepdims", std::int64_t{1}}});
  };
  Value* n = f.op("Slice", {shape, place, f.add(place, f.ints({1}))});
  Value* rows =
      f.concat({product(f.ints({0}), place), n, product(f.add(place, f.ints({1})), rank)}, 0);
  Value* xs = f.reshape(x, rows);
  Value* dys = f.reshape(dy, rows);
  // Indices k [n, 1] and i [1, n]; behind: i comes after k in the direction of the product.
  Value* numbers = f.op("Range", {f.int_scalar(0), f.squeeze(n, {0}), f.int_scalar(1)});
  Value* k = f.unsqueeze(numbers, {1});
  Value* i = f.unsqueeze(numbers, {0});
  Value* behind = is_reverse ? f.less(i, k) : f.greater(i, k);
  const auto spread = [&](Value* matrix) { return f.unsqueeze(matrix, {0, 3}); };
  Value* factors = f.where(spread(behind), f.unsqueeze(xs, {1}), f.scalar_like(x, 1));
  const std::vector<Attribute> flags = {{"exclusive", std::int64_t{is_exclusive ? 1 : 0}},
                                        {"reverse", std::int64_t{is_reverse ? 1 : 0}}};
  Value* products = f.op("CumProd", {factors, f.int_scalar(2)}, flags);
  Value* counted =
      is_exclusive ? behind : f.op("Not", {is_reverse ? f.greater(i, k) : f.less(i, k)});
  Value* terms = f.mul(products, f.unsqueeze(dys, {1}));
  Value* r = f.reduce_sum(f.where(spread(counted), terms, f.scalar_like(x, 0)), {2}, false);
  Value* p = f.op("CumProd", {xs, f.int_scalar(1)},
                  {{"exclusive", std::int64_t{1}}, {"reverse", std::int64_t{is_reverse ? 1 : 0}}});
  return std::move(f).finish({f.reshape(f.mul(p, r), shape)});
}

}  // namespace

void register_cumprod(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "CumProd",
       .since_version = 26,
       .differentiable_inputs = {0},
       .attributes = {flag_attribute("exclusive", false), flag_attribute("reverse", false)},
       .vjp = cumprod_vjp,
       .planned_inputs = {1}});
  registry.add(
      {.domain = ir::kFunctionDomain,
       .op_type = "CumProdGrad",
       .attributes = {flag_attribute("exclusive", false), flag_attribute("reverse", false)},
       .function_body = grad_body,
       .planned_inputs = {2}});
}

}  // namespace onnxgrad::ops::cumprod_op

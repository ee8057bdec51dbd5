#include "opdef/registry.h"
#include "ops/rules.h"

// C = A B over the last two axes, with broadcast batch axes; one-dimensional operands are a row (A)
// or a column (B) whose axis is dropped from C.

namespace onnxgrad::ops::matmul_op {
namespace {

// dA = dC B^T, dB = A^T dC for matrices; the transpositions are attributes of Gemm.
std::vector<Value*> matrix_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dc = ctx.cotangent(0);
  const Attribute trans_a{"transA", std::int64_t{1}};
  const Attribute trans_b{"transB", std::int64_t{1}};
  return {ctx.needs(0) ? g.op("Gemm", {dc, ctx.input(1)}, {trans_b}) : nullptr,
          ctx.needs(1) ? g.op("Gemm", {ctx.input(0), dc}, {trans_a}) : nullptr};
}

// A [..., m, k] with one matrix B [k, n]: dB = (A as [*, k])^T (dC as [*, n]), one matrix product
// that also sums over the batch.
Value* shared_matrix_gradient(Value* a, Value* dc, std::size_t rank_a, GraphBuilder& g) {
  const auto last = static_cast<std::int64_t>(rank_a) - 1;
  Value* rows = g.op("Flatten", {a}, {{"axis", last}});
  Value* cotangents = g.op("Flatten", {dc}, {{"axis", last}});
  return g.op("Gemm", {rows, cotangents}, {{"transA", std::int64_t{1}}});
}

std::vector<Value*> matmul_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* a = ctx.input(0);
  Value* b = ctx.input(1);
  const std::size_t rank_a = required_rank(ctx, 0);
  const std::size_t rank_b = required_rank(ctx, 1);
  if (rank_a == 2 && rank_b == 2) return matrix_vjp(ctx, g);

  // Vectors become matrices; dC gets the axes that C lacks.
  Value* dc = ctx.cotangent(0);
  Value* left = rank_a == 1 ? g.unsqueeze(a, {0}) : a;
  Value* right = rank_b == 1 ? g.unsqueeze(b, {1}) : b;
  if (rank_b == 1) dc = g.unsqueeze(dc, {-1});
  if (rank_a == 1) dc = g.unsqueeze(dc, {-2});
  Value* da = nullptr;
  Value* db = nullptr;
  if (ctx.needs(0)) {
    da = g.sum_to(g.matmul(dc, g.transpose_last(right)), left);
    if (rank_a == 1) da = g.squeeze(da, {0});
  }
  if (ctx.needs(1)) {
    db = rank_a > 2 && rank_b <= 2 ? shared_matrix_gradient(left, dc, rank_a, g)
                                   : g.sum_to(g.matmul(g.transpose_last(left), dc), right);
    if (rank_b == 1) db = g.squeeze(db, {1});
  }
  return {da, db};
}

}  // namespace

void register_matmul(opdef::OpRegistry& registry) {
  registry.add({.op_type = "MatMul",
                .since_version = 13,
                .differentiable_inputs = {0, 1},
                .vjp = matmul_vjp,
                .weight_inputs = {0, 1}});
}

}  // namespace onnxgrad::ops::matmul_op

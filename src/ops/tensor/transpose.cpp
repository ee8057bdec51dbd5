#include <algorithm>

#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::transpose_op {
namespace {

// y[i_perm] = x[i];  dx = dy transposed by the inverse permutation (reversing the axes is its own
// inverse).
std::vector<Value*> transpose_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::vector<std::int64_t> perm = ctx.node().ints_attribute("perm");
  if (perm.empty()) return {g.op("Transpose", {ctx.cotangent(0)})};
  std::vector<std::int64_t> inverse(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i) {
    inverse.at(static_cast<std::size_t>(perm[i])) = static_cast<std::int64_t>(i);
  }
  return {g.transpose(ctx.cotangent(0), inverse)};
}

bool moves_nothing(const Node& node) {
  const std::vector<std::int64_t> perm = node.ints_attribute("perm");
  if (perm.empty()) return node.inputs[0]->type.has_rank() && node.inputs[0]->type.rank() <= 1;
  return std::ranges::is_sorted(perm);
}

}  // namespace

void register_transpose(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Transpose",
                .since_version = 25,
                .differentiable_inputs = {0},
                .attributes = {{.name = "perm",
                                .type = AttributeType::kInts,
                                .min = 0,
                                .max = static_cast<std::int64_t>(Dims::kMaxRank) - 1,
                                .max_count = Dims::kMaxRank}},
                .vjp = transpose_vjp,
                .passage = opdef::Passage::kPermuted,
                .is_identity = moves_nothing});
}

}  // namespace onnxgrad::ops::transpose_op

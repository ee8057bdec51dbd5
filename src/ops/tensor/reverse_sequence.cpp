#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::reverse_sequence_op {
namespace {

// y = x with the first lengths[b] elements along the time axis in reverse order, for each b of the
// batch axis. It is its own inverse, and a permutation:  dx = ReverseSequence(dy, lengths).
std::vector<Value*> reverse_sequence_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {g.op("ReverseSequence", {ctx.cotangent(0), ctx.input(1)},
               {{"batch_axis", ctx.node().int_attribute("batch_axis")},
                {"time_axis", ctx.node().int_attribute("time_axis")}}),
          nullptr};
}

AttributeSpec zero_or_one(std::string_view name, std::int64_t default_value) {
  return {.name = name,
          .type = AttributeType::kInt,
          .min = 0,
          .max = 1,
          .default_value = default_value};
}

}  // namespace

void register_reverse_sequence(opdef::OpRegistry& registry) {
  registry.add({.op_type = "ReverseSequence",
                .since_version = 10,
                .differentiable_inputs = {0},
                .attributes = {zero_or_one("batch_axis", 1), zero_or_one("time_axis", 0)},
                .vjp = reverse_sequence_vjp,
                .passage = opdef::Passage::kPermuted});
}

}  // namespace onnxgrad::ops::reverse_sequence_op

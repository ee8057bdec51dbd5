#include "opdef/registry.h"
#include "ops/rules.h"

// BitCast: the same bytes under another type. Its result is not a continuous function of its input,
// so it has no gradient.

namespace onnxgrad::ops::bitcast_op {

void register_bitcast(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "BitCast",
       .since_version = 26,
       .attributes =
           {{.name = "to", .type = AttributeType::kInt, .required = true, .min = 1, .max = 64}},
       .zero_gradient = true});
}

}  // namespace onnxgrad::ops::bitcast_op

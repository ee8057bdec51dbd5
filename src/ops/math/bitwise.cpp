#include "opdef/registry.h"
#include "ops/rules.h"

// Operators on the bits of integers. BitShift is for unsigned integers here; for signed ones, which
// opset 28 added, an upgrade rule writes it with these operators.

namespace onnxgrad::ops::bitwise_op {

void register_bitwise(opdef::OpRegistry& registry) {
  for (const char* op_type : {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}) {
    registry.add(
        {.op_type = op_type, .since_version = 18, .broadcasts = true, .zero_gradient = true});
  }
  registry.add({.op_type = "BitwiseNot", .since_version = 18, .zero_gradient = true});
  registry.add({.op_type = "BitShift",
                .since_version = 11,
                .attributes = {{.name = "direction",
                                .type = AttributeType::kString,
                                .required = true,
                                .choices = {"LEFT", "RIGHT"}}},
                .broadcasts = true,
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::bitwise_op

#include "ops/contrib/contrib.h"

// Unsupported operators of com.microsoft, each with the reason that its error message gives.

namespace onnxgrad::ops::left_out_op {
namespace {

Lowered refuse_ordered(const Node& node, GraphBuilder&) {
  refuse_form(node,
              "its operands have the tiled layouts of cuBLASLt, which no standard operator has",
              "Quantize the model with QuantizeLinear and DequantizeLinear instead.");
}

}  // namespace

void register_left_out(opdef::OpRegistry& registry) {
  // Any attributes and inputs are accepted, so that the error is about the operator.
  std::vector<opdef::AttributeSpec> attributes;
  for (const std::string_view name :
       {"axis", "epsilon", "num_heads", "order_A", "order_B", "order_X", "order_Y",
        "order_global_weight", "order_input", "order_output", "order_weight", "qkv_hidden_sizes",
        "unidirectional", "window"}) {
    attributes.push_back({.name = name, .type = opdef::AttributeType::kOther});
  }
  for (const std::string_view op_type :
       {"QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization",
        "QOrderedLongformerAttention", "QOrderedMatMul", "QuantizeWithOrder",
        "DequantizeWithOrder"}) {
    registry.add({.domain = kMicrosoft,
                  .op_type = op_type,
                  .attributes = attributes,
                  .lower = refuse_ordered});
  }
}

}  // namespace onnxgrad::ops::left_out_op

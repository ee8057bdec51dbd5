#include "runtime/element_types.h"

#include <fmt/format.h>

#include "onnxgrad/error.h"

namespace onnxgrad::runtime {
namespace {

bool is_other_float(const ir::Value* value) {
  return value != nullptr && value->type.is_tensor() && is_floating(value->type.dtype) &&
         value->type.dtype != DataType::kFloat32 && value->type.dtype != DataType::kFloat64;
}

const ir::Value* find_other_float(const ir::Node& node) {
  for (const ir::Value* value : node.inputs) {
    if (is_other_float(value)) return value;
  }
  for (const ir::Value* value : node.outputs) {
    if (is_other_float(value)) return value;
  }
  return nullptr;
}

}  // namespace

void check_element_types(const ir::Graph& graph, const opdef::OpRegistry& ops) {
  for (const ir::Node* node : graph.nodes) {
    for (const ir::Graph* subgraph : node->subgraphs()) check_element_types(*subgraph, ops);
    const opdef::OpDef* def = ops.find(*node);
    if (def == nullptr || (def->expression == nullptr && def->weight_inputs.empty())) continue;
    const ir::Value* value = find_other_float(*node);
    if (value == nullptr) continue;
    throw UnsupportedOperatorError(
        {.what = fmt::format("the model computes in {}, which the engine does not support",
                             dtype_name(value->type.dtype)),
         .where = {.node = node->name, .op_type = node->op_type, .value = value->name},
         .detail = fmt::format("'{}' is {}; the engine computes in float32 and float64.",
                               value->name, value->type.to_string()),
         .hint = "Export the model in float32, or convert its weights and inputs to float32."});
  }
}

}  // namespace onnxgrad::runtime

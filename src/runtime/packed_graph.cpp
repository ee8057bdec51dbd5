#include "runtime/packed_graph.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::runtime {
namespace {

using Kind = ir::Type::Kind;
using opdef::PackedKind;

PackedKind kind_of(const ir::Value* value) {
  if (value == nullptr) return PackedKind::kAbsent;
  const ir::Type& type = value->type;
  if (type.kind == Kind::kSequence) return PackedKind::kSequence;
  if (type.kind != Kind::kOptional) return PackedKind::kTensor;
  const bool holds_sequence = type.element != nullptr && type.element->kind == Kind::kSequence;
  return holds_sequence ? PackedKind::kOptionalSequence : PackedKind::kOptionalTensor;
}

bool gives_texts(const ir::Node& node) {
  return std::ranges::any_of(node.outputs, [](const ir::Value* value) {
    return value != nullptr && value->dtype() == DataType::kString;
  });
}

void move_nodes(ir::Graph& graph, const opdef::KernelRegistry& kernels) {
  for (ir::Node* node : graph.nodes) {
    for (ir::Graph* body : node->subgraphs()) move_nodes(*body, kernels);
    if (!runs_packed(*node, kernels)) continue;
    std::vector<std::int64_t> kinds;
    for (const ir::Value* value : node->inputs) {
      kinds.push_back(static_cast<std::int64_t>(kind_of(value)));
    }
    for (const ir::Value* value : node->outputs) {
      kinds.push_back(static_cast<std::int64_t>(kind_of(value)));
    }
    node->domain = ir::kFusedDomain;
    node->set_attribute("kinds", std::move(kinds));
  }
}

void change_type(ir::Value* value) {
  if (value != nullptr) value->type = packed_type(value->type);
}

void change_types(ir::Graph& graph) {
  for (ir::Value* input : graph.inputs) change_type(input);
  for (ir::Node* node : graph.nodes) {
    for (ir::Value* output : node->outputs) change_type(output);
    for (ir::Graph* body : node->subgraphs()) change_types(*body);
  }
}

}  // namespace

bool runs_packed(const ir::Node& node, const opdef::KernelRegistry& kernels) {
  // Operators of ai.onnx.ml are registered under their own domain as well: a node of a file may
  // have any name there, also that of an operator of sequences.
  const bool is_ml = node.domain == "ai.onnx.ml";
  if (!node.domain.empty() && !is_ml) return false;
  if (is_ml && kernels.dynamic(node.domain, node.op_type) == nullptr) return false;
  if (kernels.dynamic(ir::kFusedDomain, node.op_type) == nullptr) return false;
  // Operators with kernels for plans have the other form for texts, which no plan holds.
  return kernels.offers("", node.op_type).empty() || gives_texts(node);
}

bool is_packed(const ir::Type& type) {
  if (type.kind == Kind::kMap) return type.element == nullptr || type.element->is_tensor();
  if (type.kind == Kind::kOptional) {
    return type.element == nullptr || type.element->is_tensor() || is_packed(*type.element);
  }
  return type.kind == Kind::kSequence && (type.element == nullptr || type.element->is_tensor());
}

ir::Type packed_type(const ir::Type& type) {
  if (!is_packed(type)) return type;
  return ir::Type::tensor(DataType::kUint8, ir::SymbolicShape{ir::Dim()});
}

void pack_values(ir::Graph& graph, const opdef::KernelRegistry& kernels) {
  move_nodes(graph, kernels);
  change_types(graph);
}

}  // namespace onnxgrad::runtime

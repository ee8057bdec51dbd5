#include <optional>
#include <utility>
#include <vector>

#include "opdef/fused.h"
#include "opdef/quantized_weight.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: onnxgrad.fused.Gemm whose B is computed from constants of few bits. Both passes read the
// same constants, the backward one transposed, so that no float matrix lives between them.

namespace onnxgrad::passes {
namespace {

// A before its Cast from the 16-bit type to which B is rounded too.
ir::Value* left_operand(ir::Value* a, DataType rounded) {
  if (rounded == DataType::kUndefined || a->producer == nullptr || !a->producer->domain.empty() ||
      a->producer->op_type != "Cast") {
    return a;
  }
  ir::Value* stored = a->producer->inputs[0];
  return stored->dtype() == rounded ? stored : a;
}

std::optional<opdef::QuantizedWeight> weight_of(const ir::Node& node) {
  if (!opdef::is_plain_matmul(&node) || node.outputs[0]->dtype() != DataType::kFloat32) {
    return std::nullopt;
  }
  auto weight = opdef::find_quantized_weight(node.inputs[1]);
  if (!weight || !weight->codes->is_constant() || !weight->scales->is_constant()) {
    return std::nullopt;
  }
  return weight;
}

std::optional<ir::Node> quantized_gemm_of(const ir::Node& node) {
  const auto weight = weight_of(node);
  if (!weight) return std::nullopt;
  const auto gemm = opdef::Gemm::read(node);
  const opdef::QuantizedGemm made{.transpose_a = gemm.transpose_a,
                                  .transpose_b = gemm.transpose_b != weight->is_transposed,
                                  .form = weight->form};
  return candidate(opdef::kQuantizedGemm,
                   {left_operand(node.inputs[0], weight->form.rounded), weight->codes,
                    weight->scales, weight->zeros, weight->groups},
                   {node.outputs[0]}, made.attributes(), node.name);
}

}  // namespace

bool fuse_quantized_gemm(ir::Graph& graph, const PassContext& context) {
  const auto is_candidate = [](const ir::Node& node) { return opdef::is_plain_matmul(&node); };
  if (!any_node(graph, is_candidate)) return false;
  bool changed = false;
  Rewriter out(graph);
  for (ir::Node* node : out.before()) {
    auto quantized = quantized_gemm_of(*node);
    if (!quantized || !context.prefers(*quantized)) {
      out.keep(node);
      continue;
    }
    ir::Value* result = node->outputs[0];
    Rewriter::take_over(
        result, out.emit(quantized->domain, quantized->op_type, std::move(quantized->inputs),
                         result->type, std::move(quantized->attributes), node->name));
    changed = true;
  }
  out.finish();
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes

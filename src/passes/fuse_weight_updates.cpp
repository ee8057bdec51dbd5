#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/uses.h"
#include "opdef/fused.h"
#include "opdef/registry.h"
#include "passes/passes.h"
#include "passes/step_patterns.h"

// Pattern: onnxgrad.WeightUpdate, as train/optimizers writes it, of a gradient that is an
// onnxgrad.fused.Gemm that nothing else reads. The product joins the update as
// onnxgrad.fused.GemmWeightUpdate: the gradient is never stored.

namespace onnxgrad::passes {
namespace {

using ir::Node;

bool is_matmul(const Node* node) {
  return opdef::is_plain_matmul(node) && node->outputs[0]->type.rank() == 2;
}

}  // namespace

bool fuse_weight_updates(ir::Graph& graph, const PassContext& context) {
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (!is_weight_update(*node) || node->outputs[0]->dtype() == DataType::kUndefined) continue;
    const ir::Value* gradient = node->inputs[0];
    const Node* product = gradient->producer;
    if (!is_matmul(product) || uses.count(gradient) != 1) continue;
    Node fused = *node;
    fused.domain = ir::kFusedDomain;
    fused.op_type = opdef::kGemmWeightUpdate;
    fused.inputs[0] = product->inputs[1];
    fused.inputs.insert(fused.inputs.begin(), product->inputs[0]);
    const auto gemm = opdef::Gemm::read(*product);
    fused.attributes = opdef::GemmWeightUpdate{.transpose_a = gemm.transpose_a,
                                               .transpose_b = gemm.transpose_b,
                                               .update = opdef::WeightUpdate::read(*node)}
                           .attributes();
    if (!context.prefers(fused)) continue;
    *node = std::move(fused);
    changed = true;
  }
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes

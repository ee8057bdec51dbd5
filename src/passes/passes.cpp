#include "passes/passes.h"

namespace onnxgrad::passes {
namespace {

bool convert_elementwise(ir::Graph& graph, const PassContext& context) {
  return fuse_elementwise(graph, context, /*merge=*/false);
}

bool merge_elementwise(ir::Graph& graph, const PassContext& context) {
  return fuse_elementwise(graph, context, /*merge=*/true);
}

// Passes without fusion, for debugging and the search for a node whose result is not finite: one
// kernel per node.
constexpr Pass kSimplify[] = {
    {"widen_f16", widen_f16},
    {"fold_constants", fold_constants},
    {"eliminate_identities", eliminate_identities},
    {"merge_common_subexpressions", merge_common_subexpressions},
    {"fuse_elementwise", convert_elementwise},
};

// Passes of all other plans, in groups whose order matters.
constexpr Pass kFuse[] = {
    // Simplifications: Casts first, so that all later passes see float32 nodes; then constants,
    // which complete attributes and shapes; identities before equal nodes are merged, since these
    // have equal inputs then.
    {"widen_f16", widen_f16},
    {"fold_constants", fold_constants},
    {"eliminate_identities", eliminate_identities},
    {"merge_common_subexpressions", merge_common_subexpressions},
    // Patterns of standard nodes, before fuse_gemm and fuse_elementwise replace their parts.
    {"keep_gates", keep_gates},
    {"keep_log_sums", keep_log_sums},
    {"fuse_pool_gradients", fuse_pool_gradients},
    {"fuse_attention", fuse_attention},
    {"fuse_activations", fuse_activations},
    // Casts move before the Transposes of operands, which fuse_gemm makes flags of GEMM.
    {"lift_casts", lift_casts},
    // Nodes with the sums and activations around them, before fuse_elementwise takes these. Matmuls
    // are still standard nodes: fuse_layer_norms leaves their sums to epilogues.
    {"fuse_normalization", fuse_normalization},
    {"fuse_layer_norms", fuse_layer_norms},
    {"fuse_convolutions", fuse_convolutions},
    // GEMM, then the updates: most look for the operators that passes before them make.
    {"fuse_gemm", fuse_gemm},
    {"fuse_quantized_gemm", fuse_quantized_gemm},
    {"fuse_gemm_updates", fuse_gemm_updates},
    {"fuse_linear_steps", fuse_linear_steps},
    {"fuse_weight_updates", fuse_weight_updates},
    {"fuse_scatter_updates", fuse_scatter_updates},
    // Removal of the Casts around kernels that read 16 bits, fused ones too; then
    // fuse_conv_updates: gradients of images of 16 bits stay nodes of their own.
    {"narrow_matmuls", narrow_matmuls},
    {"fuse_conv_updates", fuse_conv_updates},
    // Element-wise nodes, when all named patterns are found: each gets the Casts that it reads,
    // they become groups, and a group that alone reads a GEMM becomes its epilogue.
    {"spread_casts", spread_casts},
    {"fuse_elementwise", merge_elementwise},
    {"fuse_epilogues", fuse_epilogues},
    // Chains of the convolutions that are left, with their residuals and activations.
    {"chain_convolutions", chain_convolutions},
};

}  // namespace

std::span<const Pass> plan_passes(bool fuse) {
  return fuse ? std::span<const Pass>(kFuse) : std::span<const Pass>(kSimplify);
}

void run_passes(ir::Graph& graph, const PassContext& context, bool fuse) {
  for (const Pass& pass : plan_passes(fuse)) pass.run(graph, context);
}

}  // namespace onnxgrad::passes

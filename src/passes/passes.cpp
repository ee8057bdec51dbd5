#include "passes/passes.h"

namespace onnxgrad::passes {

void run_passes(ir::Graph& graph, const PassContext& context, bool fuse) {
  fold_constants(graph, context);
  eliminate_identities(graph, context);
  merge_common_subexpressions(graph, context);
  ir::eliminate_dead_nodes(graph);
  if (fuse) {
    fuse_gemm(graph, context);
    ir::eliminate_dead_nodes(graph);
    fuse_gemm_updates(graph, context);
    fuse_weight_updates(graph, context);
  }
  fuse_elementwise(graph, context, fuse);
  if (fuse) fuse_epilogues(graph, context);
}

}  // namespace onnxgrad::passes

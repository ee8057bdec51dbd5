#ifndef ONNXGRAD_PASSES_PASSES_H_
#define ONNXGRAD_PASSES_PASSES_H_

#include <functional>
#include <span>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/graph.h"
#include "ir/pointer_map.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

// Passes over the graph of a plan: all shapes that can be known are numbers. Each rewrites the
// graph in place, preserves what its outputs compute and returns whether it changed anything; a
// second run right after changes nothing. They are declared by subject; passes.cpp has the order in
// which a plan runs them. After each of them ir::find_fault finds none.

namespace onnxgrad::passes {

struct PassContext {
  const opdef::OpRegistry& ops;
  const ir::TypeInferer& inferer;
  const opdef::Evaluator& evaluator;
  /// Outputs that become the next value of a state (a weight, a slot of an optimizer).
  std::unordered_set<const ir::Value*> next_states = {};
  /// Whether a kernel runs a node, whose shapes are known, on the types that it has. Without it no
  /// node is widened.
  std::function<bool(const ir::Node&)> has_kernel = {};
  /// Whether the device wants a node instead of those that it would replace: asked before it is
  /// made (candidate.h), so that passes know no sizes of caches and no costs. Its shapes are known.
  /// See opdef::KernelRequest::is_candidate.
  std::function<bool(const ir::Node&)> prefers = [](const ir::Node&) { return false; };
  /// Whether the CPU runs a node for a device that has no kernel for it: the form of single
  /// element-wise nodes.
  std::function<bool(const ir::Node&)> is_left_to_cpu = [](const ir::Node&) { return false; };
  /// Types that are numbers need not be inferred again.
  bool is_inferred = false;
  /// Nodes whose types are known to be those that would be inferred; nullptr: none.
  const ir::PointerSet<ir::Node>* inferred = nullptr;
};

struct Pass {
  const char* name;
  /// True if it changed anything. Preserves what the outputs compute, though other values may
  /// replace them in `graph.outputs`.
  bool (*run)(ir::Graph& graph, const PassContext& context);
};

/// All passes in the order of a plan. Without `fuse`, element-wise nodes are only converted.
std::span<const Pass> plan_passes(bool fuse);

/// Runs plan_passes.
void run_passes(ir::Graph& graph, const PassContext& context, bool fuse);

/// Infers types node by node and replaces known values by constants: nodes whose inputs are all
/// constants (results of at most 64 KiB, or of the size of the node's inputs), Shape etc. A node
/// that can then be replaced by one of its subgraphs (If) becomes the nodes of that. All nodes have
/// complete attributes afterwards. In a plan only widen_f16 runs before it.
bool fold_constants(ir::Graph& graph, const PassContext& context);

/// Nodes that only float32 kernels can run are put between Casts from and to float16 and bfloat16.
/// Does nothing where there are no such types.
bool widen_f16(ir::Graph& graph, const PassContext& context);

/// Drops nodes that return their input.
bool eliminate_identities(ir::Graph& graph, const PassContext& context);

/// Merges equal nodes with equal inputs, and small constants of equal value.
bool merge_common_subexpressions(ir::Graph& graph, const PassContext& context);

/// BatchNormalization in training mode and its gradient take in the sums, Relu and Clip around them
/// and share the statistics: onnxgrad.fused.BatchNormalization, ...Grad.
bool fuse_normalization(ir::Graph& graph, const PassContext& context);

/// Relu's mask and a bias's sum move before the gradient of a MaxPool, where there are fewer
/// numbers; gradients of pools no longer keep the pool's input: onnxgrad.fused.MaxPoolGrad,
/// AveragePoolGrad.
bool fuse_pool_gradients(ir::Graph& graph, const PassContext& context);

/// Conv takes in the sum with a residual, Relu and Clip after it: onnxgrad.fused.Conv.
bool fuse_convolutions(ir::Graph& graph, const PassContext& context);

/// Convolutions each of which alone reads the result of the one before become
/// onnxgrad.fused.ConvChain, as many as the device prefers together.
bool chain_convolutions(ir::Graph& graph, const PassContext& context);

/// MatMul and Gemm of matrices become onnxgrad.fused.Gemm; Transposes of operands become flags.
bool fuse_gemm(ir::Graph& graph, const PassContext& context);

/// Products with a matrix that is computed from constants of 2, 4 or 8 bits read these:
/// onnxgrad.fused.QuantizedGemm. fold_constants leaves such matrices alone beyond its limit.
bool fuse_quantized_gemm(ir::Graph& graph, const PassContext& context);

/// Casts from 16 bits come before the Transposes of products' operands, not after them.
bool lift_casts(ir::Graph& graph, const PassContext& context);

/// Products whose operands are Casts of 16-bit values read these, and write 16 bits if a Cast is
/// all that reads the result, where a kernel does that.
bool narrow_matmuls(ir::Graph& graph, const PassContext& context);

/// Every element-wise node that reads a Cast of a 16-bit value gets a Cast of its own, which it can
/// be fused with, and so do nodes that are far from each other: the 16-bit value lives longer.
/// Undone by merge_common_subexpressions.
bool spread_casts(ir::Graph& graph, const PassContext& context);

/// LayerNormalization with the Dropout and the sum with a residual before it, and its gradient with
/// the sum, the mask and the sum over rows after it, become onnxgrad.fused.LayerNormalization and
/// LayerNormalizationGrad, for float32.
bool fuse_layer_norms(ir::Graph& graph, const PassContext& context);

/// W - rate * op(A) op(B) becomes onnxgrad.fused.GemmUpdate if nothing else reads the product.
bool fuse_gemm_updates(ir::Graph& graph, const PassContext& context);

/// The whole step of a linear model with one column of scores, squared errors and plain gradient
/// descent becomes onnxgrad.fused.LinearStep.
bool fuse_linear_steps(ir::Graph& graph, const PassContext& context);

/// onnxgrad.WeightUpdate of a product that nothing else reads becomes
/// onnxgrad.fused.GemmWeightUpdate.
bool fuse_weight_updates(ir::Graph& graph, const PassContext& context);

/// An update of a weight whose gradient is a ScatterND of rows into zeros that nothing else reads,
/// by onnxgrad.WeightUpdate or plain gradient descent, becomes onnxgrad.fused.ScatterWeightUpdate
/// or ScatterDescent.
bool fuse_scatter_updates(ir::Graph& graph, const PassContext& context);

/// An update of a weight whose gradient is onnxgrad.ConvWeightGrad, of a convolution, becomes
/// onnxgrad.fused.ConvWeightUpdate or ConvDescent.
bool fuse_conv_updates(ir::Graph& graph, const PassContext& context);

/// LSTM, GRU and RNN whose gates are computed again for their gradient (onnxgrad.LSTMGates, ...)
/// become onnxgrad.fused.LSTM, ...: the results of both nodes, computed once.
bool keep_gates(ir::Graph& graph, const PassContext& context);

/// SoftmaxCrossEntropyLoss whose log-probabilities only its gradient reads becomes
/// onnxgrad.fused.SoftmaxCrossEntropyLoss, which returns log(sum(exp(scores))) of each row instead.
bool keep_log_sums(ir::Graph& graph, const PassContext& context);

/// MatMul, scale, masks, Softmax, Dropout, MatMul become onnxgrad.fused.Attention, and the nodes of
/// their gradient onnxgrad.fused.AttentionGradient: no tensor [queries, keys] is stored.
bool fuse_attention(ir::Graph& graph, const PassContext& context);

/// Nodes that compute GELU or SiLU, in whatever form, become onnxgrad.fused.Activation, and those
/// of its gradient a product with the slope that it returns.
bool fuse_activations(ir::Graph& graph, const PassContext& context);

/// Every element-wise node becomes (part of) an onnxgrad.fused.Elementwise; with `merge`, connected
/// nodes over the same index space, trailing reductions and nodes after these become one.
bool fuse_elementwise(ir::Graph& graph, const PassContext& context, bool merge);

/// An element-wise node that is the only reader of a product becomes the product's epilogue.
bool fuse_epilogues(ir::Graph& graph, const PassContext& context);

/// BatchNormalization in inference mode of a Conv or Gemm whose weight and whose statistics are
/// constants becomes part of weight and bias (new initializers), also in subgraphs. Shapes may be
/// symbolic: for a model that only runs, once, before it is compiled for shapes. Returns whether it
/// changed anything.
bool fold_batch_norms(ir::Graph& graph);

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_PASSES_H_

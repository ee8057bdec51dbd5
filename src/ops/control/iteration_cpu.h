#ifndef ONNXGRAD_OPS_CONTROL_ITERATION_CPU_H_
#define ONNXGRAD_OPS_CONTROL_ITERATION_CPU_H_

#include <cstdint>
#include <vector>

#include "opdef/body.h"
#include "ops/kernel_support.h"

// Kernels of Scan and Loop. Both carry states from iteration to iteration and stack the other
// outputs of the body; they differ in the order of the operands and in the stop condition.

namespace onnxgrad::ops {

/// Scanned operand, viewed as [outer, length, inner]; one iteration reads or writes [outer, inner].
struct ScannedOperand {
  std::int64_t axis = 0;  ///< may be negative
  bool backward = false;
};

/// Operands of a node by role. The inputs of its body are, in order: iteration number (Loop),
/// states, scanned inputs, captured values.
struct Iteration {
  const ir::Graph* body = nullptr;
  std::size_t first_input = 0;               ///< index of the first state among the node's inputs
  std::size_t num_states = 0;                ///< without the condition
  bool is_loop = false;                      ///< inputs 0 and 1 are trip count and condition
  std::vector<ScannedOperand> scanned = {};  ///< inputs after the states
  std::vector<ScannedOperand> stacked = {};  ///< outputs after the states
};

/// Offers a kernel that runs the body of `request.node`, a node in its closed form.
KernelOffer offer_iteration(const KernelRequest& request, const Iteration& roles);

/// Runs a node whose number of iterations, or whose shapes inside the body, depend on data. Shapes
/// that are the same in all iterations are compiled for once; others are compiled for at each
/// iteration.
std::vector<Tensor> run_iteration(const DynamicCall& call, const Iteration& roles);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTROL_ITERATION_CPU_H_

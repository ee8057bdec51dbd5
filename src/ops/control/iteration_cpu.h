#ifndef ONNXGRAD_OPS_CONTROL_ITERATION_CPU_H_
#define ONNXGRAD_OPS_CONTROL_ITERATION_CPU_H_

#include <cstdint>
#include <vector>

#include "opdef/body.h"
#include "opdef/kernel.h"

// What the kernels of Scan and Loop share. Both carry states from iteration to iteration and stack
// what the body gives besides; they differ in where the operands stand and in what ends them.

namespace onnxgrad::ops {

/// A scanned operand: elements [outer, length, inner] of which an iteration has [outer, inner].
struct ScannedOperand {
  std::int64_t axis = 0;  ///< may be negative
  bool backward = false;
};

/// The operands of a node by role. The inputs of its body are, in order: the number of the
/// iteration (Loop), the states, the scanned inputs, captured values.
struct Iteration {
  const ir::Graph* body = nullptr;
  std::size_t first_input = 0;               ///< of the states among the node's inputs
  std::size_t num_states = 0;                ///< without the condition
  bool is_loop = false;                      ///< inputs 0 and 1 are trip count and condition
  std::vector<ScannedOperand> scanned = {};  ///< inputs after the states
  std::vector<ScannedOperand> stacked = {};  ///< outputs after the states
};

/// A kernel that runs the body of `request.node`, a node in its closed form.
opdef::KernelOffer offer_iteration(const opdef::KernelRequest& request, const Iteration& roles);

/// Runs a node whose number of iterations, or whose shapes in them, depend on values. Shapes that
/// no iteration changes are compiled for; others, at each iteration, as they come.
std::vector<Tensor> run_iteration(const opdef::DynamicCall& call, const Iteration& roles);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTROL_ITERATION_CPU_H_

#ifndef ONNXGRAD_OPS_CONTROL_ITERATION_H_
#define ONNXGRAD_OPS_CONTROL_ITERATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "opdef/op_def.h"

namespace onnxgrad::ops {

/// View of a Scan or Loop for its gradient. With S states, K scanned inputs, Y stacked outputs: the
/// node's inputs are [.., S, K], its outputs [S, Y]; the body's inputs are [.., S, K, captured],
/// its outputs [.., S, Y]. Scanned and stacked axes are all axis 0.
struct IterationRoles {
  ir::Graph* body = nullptr;
  std::size_t first_input = 0;   ///< index of the first state among the node's inputs
  std::size_t first_formal = 0;  ///< index of the first state among the body's inputs
  std::size_t first_result = 0;  ///< index of the first state among the body's outputs
  std::size_t num_states = 0;
  bool is_loop = false;
  std::vector<bool> scans_backward = {};   ///< per scanned input: from the last row to the first
  std::vector<bool> stacks_backward = {};  ///< per stacked output
  ir::Dim length = {};                     ///< number of iterations, if known
  bool may_be_empty = false;               ///< a Loop that may have no iteration
};

/// Builds the gradient of a Scan or Loop: a Scan that runs from the last iteration to the first, or
/// a Loop if there may be no iteration (stock onnxruntime has no Scan of length 0) or if the
/// gradient reads or carries a value that is not a tensor of one shape. Its states are the
/// gradients of the primal states and the sums of the gradients of captured values. In each
/// iteration it reads the gradients of the stacked outputs and the primal values that the gradient
/// of the body needs. Those values become additional outputs of primal body and node: stacked or,
/// in a Loop whose shapes differ between iterations, collected in a sequence.
std::vector<ir::Value*> iteration_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g,
                                      const IterationRoles& roles);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTROL_ITERATION_H_

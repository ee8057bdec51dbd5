#ifndef ONNXGRAD_OPS_CONTROL_ITERATION_H_
#define ONNXGRAD_OPS_CONTROL_ITERATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "opdef/op_def.h"

namespace onnxgrad::ops {

/// Scan and Loop as their gradient sees them. With S states, K scanned inputs, Y stacked outputs:
/// the node's inputs are [.., S, K], its outputs [S, Y]; the body's inputs are [.., S, K,
/// captured], its outputs [.., S, Y]. All axes are the first.
struct IterationRoles {
  ir::Graph* body = nullptr;
  std::size_t first_input = 0;   ///< of the states among the node's inputs
  std::size_t first_formal = 0;  ///< among the body's inputs
  std::size_t first_result = 0;  ///< among the body's outputs
  std::size_t num_states = 0;
  bool is_loop = false;
  std::vector<bool> scans_backward = {};   ///< per scanned input: from the last row to the first
  std::vector<bool> stacks_backward = {};  ///< per stacked output
  ir::Dim length = {};                     ///< number of iterations, as far as it is known
  bool may_be_empty = false;               ///< of a Loop: perhaps there is no iteration
};

/// The gradient of such a node: a Scan that runs from the last iteration to the first, or a Loop
/// where there may be none (stock onnxruntime has no Scan over nothing) or where what it reads or
/// carries is no tensor of one shape. Its states are the gradients of the states and sums of those
/// of captured values; over the iterations it reads the gradients of the stacked outputs and what
/// the gradient of the body needs of its values. These become further outputs of body and node:
/// stacked, or, of a Loop where their shapes differ from iteration to iteration, in a sequence.
std::vector<ir::Value*> iteration_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g,
                                      const IterationRoles& roles);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTROL_ITERATION_H_

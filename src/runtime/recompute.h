#ifndef ONNXGRAD_RUNTIME_RECOMPUTE_H_
#define ONNXGRAD_RUNTIME_RECOMPUTE_H_

#include <cstdint>

#include "runtime/plan.h"
#include "runtime/program.h"

// Rematerialisation: values of a step that are read early and again late, as activations are by the
// backward pass, are computed a second time right before they are read again (T. Chen et al.,
// "Training deep nets with sublinear memory cost", 2016). Here the choice is greedy, on the
// schedule of the plan: at the position with most live bytes, the node that saves most of them for
// its cost is repeated, until the plan fits. Kernels are deterministic and draws depend on the node
// that they are for, so a step computes the same bits.

namespace onnxgrad::runtime {

/// A plan cannot be made within the memory that is left for it.
struct ArenaTooSmall {
  std::int64_t max_bytes = 0;    ///< memory that is left
  std::int64_t least_bytes = 0;  ///< smallest arena, with all possible recomputation
};

/// Makes the plan of `graph`, which is rewritten if the arena would have more than `max_bytes`,
/// with the layouts in `binding`; then bodies compute values again, too. Throws: ArenaTooSmall, and
/// what make_plan throws.
Plan make_plan_within(ir::Graph& graph, GraphBinding& binding, const Engine& engine, int threads,
                      const PlannedBodies* bodies, const MaxArenaBytes& max_bytes);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_RECOMPUTE_H_

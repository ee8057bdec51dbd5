#ifndef ONNXGRAD_RUNTIME_STREAMS_H_
#define ONNXGRAD_RUNTIME_STREAMS_H_

#include <cstddef>
#include <span>

#include "ir/graph.h"
#include "runtime/plan.h"
#include "runtime/views.h"

namespace onnxgrad::runtime {

/// Spreads the steps of each segment over the compute streams of a device: sets PlanStep::place,
/// with waits numbered from the begin of the segment. Steps whose uses of the same bytes conflict
/// are ordered, so that values may take turns in the arena; writers of states come after steps that
/// may throw, and exchanges with other workers are in the order of the plan. The same plan has
/// always the same places.
void assign_streams(Plan& plan, int num_streams);

/// True if another node than node `i` reads `old`, the root of a value, and computes nothing that
/// node `i` needs: on several streams both could run at the same time. `nodes`: in order.
bool has_independent_reader(std::span<const ir::Node* const> nodes, const ViewRoots& roots,
                            std::size_t i, const ir::Value* old);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_STREAMS_H_

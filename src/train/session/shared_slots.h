#ifndef ONNXGRAD_TRAIN_SESSION_SHARED_SLOTS_H_
#define ONNXGRAD_TRAIN_SESSION_SHARED_SLOTS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "train/session/step_runner.h"

// Slots of workers that share the update: each has its own elements, see StepGraph::owners.

namespace onnxgrad::train {

/// The part of a slot that this worker has: elements of a tensor of shape `whole`.
struct SlotPart {
  Dims whole = {};
  std::int64_t begin = 0;
};
/// The part of a state that this worker has; nullopt: all of it. `value`: the state in a step of
/// this graph.
std::optional<SlotPart> part_of_slot(const StepGraph& graph, std::string_view state,
                                     const Tensor& value);

/// Whether another worker alone has this state.
bool is_elsewhere(const StepGraph& graph, std::string_view state);

/// The elements of `part`, in the shape of `like`.
Tensor take_part_of(const Tensor& whole, const SlotPart& part, const Tensor& like);

/// Gives each worker its elements of the slots of `from`, which were distributed in another way.
/// All workers call it.
void move_slots(StepRunner& to, const StepRunner& from);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_SHARED_SLOTS_H_

#ifndef ONNXGRAD_TRAIN_SESSION_SHARED_SLOTS_H_
#define ONNXGRAD_TRAIN_SESSION_SHARED_SLOTS_H_

#include <string>
#include <string_view>

#include "train/checkpoints/checkpoint.h"
#include "train/session/step_runner.h"

// Slots of workers that share the update: each has its own elements, see StepGraph::owners.

namespace onnxgrad::train {

/// Adds the value of a state of this graph to a checkpoint under the name `stored`: as part of a
/// slot if other workers have the rest.
void add_state(Checkpoint& checkpoint, const StepGraph& graph, std::string_view state,
               const std::string& stored, const Tensor& value);

/// This worker's part of a whole slot, in the shape of its value in a step of this graph; `stored`
/// itself if it is no whole slot, or the worker has all of it.
Tensor own_part(const StepGraph& graph, std::string_view state, const Tensor& stored,
                const Tensor& value);

/// Whether another worker alone has this state.
bool is_elsewhere(const StepGraph& graph, std::string_view state);

/// Gives each worker its elements of the slots of `from`, which were distributed in another way.
/// All workers call it.
void move_slots(StepRunner& to, const StepRunner& from);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_SHARED_SLOTS_H_

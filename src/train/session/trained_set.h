#ifndef ONNXGRAD_TRAIN_SESSION_TRAINED_SET_H_
#define ONNXGRAD_TRAIN_SESSION_TRAINED_SET_H_

#include <span>
#include <string>

#include "train/session/step_runner.h"

// Changes of the set of trained weights: the step is rewritten and recompiled for another choice,
// and states keep their values by name. A weight that was not trained in all steps has its own
// update count from then on, so that its bias correction is right.

namespace onnxgrad::train {

/// The choice that a step was written for, without slots of held weights.
TrainedSet trained_set(const StepGraph& step);

/// Removes the trained weights of `working` that match from the set; these are held. Throws:
/// ModelError (a pattern that matches no trained weight, nothing left to train).
void freeze(TrainedSet& set, std::span<const std::string> patterns, const ir::Model& working);

/// Adds the floating-point weights of `working` that match and are not trained.
/// Throws: ModelError (a pattern that matches no such weight).
void unfreeze(TrainedSet& set, std::span<const std::string> patterns, const ir::Model& working);

/// Adds copies of the slots of the held weights, and of their counts. Partial sums over batches
/// are dropped.
void hold_slots(TrainedSet& set, const StepRunner& step);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_TRAINED_SET_H_

#ifndef ONNXGRAD_TRAIN_TRAINING_MODE_H_
#define ONNXGRAD_TRAIN_TRAINING_MODE_H_

#include <span>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/training_mode.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// Switches operators that compute a value of `needed` to training: with kOn all of them, with
/// kAuto those whose weights are among `trained` and those without weights (Dropout), also in the
/// branches of an If. Returns the running statistics: initializers, each with its value after
/// the step.
std::vector<ir::StateBinding> switch_on_training(ir::GraphBuilder& g,
                                                 const opdef::OpRegistry& registry,
                                                 const std::unordered_set<const ir::Value*>& needed,
                                                 std::span<ir::Value* const> trained,
                                                 TrainingMode mode);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRAINING_MODE_H_

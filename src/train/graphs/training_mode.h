#ifndef ONNXGRAD_TRAIN_TRAINING_MODE_H_
#define ONNXGRAD_TRAIN_TRAINING_MODE_H_

#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "onnxgrad/training_mode.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// The tensor of an initializer or of a Constant node; nullptr: `value` is neither.
const Tensor* constant_tensor(const ir::Value* value);

/// Puts operators that a file has in training mode into inference mode, also in subgraphs and
/// functions: BatchNormalization then uses the running statistics, unchanged, and Dropout passes
/// values on. A mode that is fed, or computed, is kept. For models of any opset. Returns whether
/// anything has changed.
bool leave_training(ir::Model& model);

/// Returns `model` in inference mode: itself if it is or nothing else holds it, else a copy.
std::shared_ptr<const ir::Model> in_inference_form(std::shared_ptr<const ir::Model> model);

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

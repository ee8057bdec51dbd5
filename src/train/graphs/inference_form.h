#ifndef ONNXGRAD_TRAIN_INFERENCE_FORM_H_
#define ONNXGRAD_TRAIN_INFERENCE_FORM_H_

#include <memory>

#include "ir/graph.h"

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

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_INFERENCE_FORM_H_

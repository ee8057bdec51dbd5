#ifndef ONNXGRAD_TRAIN_INFERENCE_FORM_H_
#define ONNXGRAD_TRAIN_INFERENCE_FORM_H_

#include <memory>

#include "ir/graph.h"

namespace onnxgrad::train {

/// The value of an initializer or of a Constant node; nullptr: it is none of these.
const Tensor* constant_tensor(const ir::Value* value);

/// Puts operators that a file has in training mode into inference mode, also in subgraphs and
/// functions: BatchNormalization then uses the running statistics, which it leaves as they are, and
/// Dropout passes values on. A mode that is fed, or computed, is left. For models of any opset.
/// Returns whether anything has changed.
bool leave_training(ir::Model& model);

/// Returns `model` in inference mode: itself if it is or nothing else holds it, else a copy.
std::shared_ptr<const ir::Model> in_inference_form(std::shared_ptr<const ir::Model> model);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_INFERENCE_FORM_H_

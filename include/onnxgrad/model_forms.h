#ifndef ONNXGRAD_MODEL_FORMS_H_
#define ONNXGRAD_MODEL_FORMS_H_

#include <cstdint>

#include "onnxgrad/model.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Treatment of a batch dimension that is a number in the file. Opening it means that
/// inputs may have any number of rows, as with open_batch().
enum class BatchOpening : std::uint8_t {
  kAuto,  ///< opened where possible; the trained model has the shapes of the file
  kOn,    ///< opened, also in the trained model; ModelError if that is not possible
  kOff,   ///< not opened: batches have the file's number of rows, smaller ones are filled up
};

/// `model` with an open batch dimension: a symbol in the shapes of inputs, values and outputs, and
/// constants that hold the number of rows replaced by what computes it. The new file is run on
/// random rows, twice as many as the old one takes, and each row compared with the old one's
/// result. Operators that the file has in training mode are compared in inference mode. Returns
/// `model` itself if its batch is open, or it has none. The cost is that of compiling and running
/// the model a few times. Throws: ModelError (rows are combined, or a shape cannot follow their
/// number: the message names the node).
Model open_batch(const Model& model);

/// `model` with the operators in inference mode that it has in training mode, as PyTorch exports
/// with training=TrainingMode.TRAINING: BatchNormalization then uses the running statistics, and
/// Dropout passes values on. A mode that is an input stays one. Everything else is unchanged.
Model to_inference(const Model& model);

}  // namespace onnxgrad

#endif  // ONNXGRAD_MODEL_FORMS_H_

#ifndef ONNXGRAD_TRAINING_MODE_H_
#define ONNXGRAD_TRAINING_MODE_H_

#include <cstdint>

namespace [[gnu::visibility("default")]] onnxgrad {

/// Selects the operators that are in inference mode in the file but run in training mode: Dropout,
/// which then drops, and BatchNormalization, which then uses batch statistics and updates running
/// ones. Evaluation, prediction and the returned file are always in inference mode; the file has
/// the running statistics of the training.
enum class TrainingMode : std::uint8_t {
  kAuto,  ///< Dropout, and each BatchNormalization whose scale or bias is trained
  kOn,    ///< all of them
  kOff,   ///< none: they compute the same as in inference
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAINING_MODE_H_

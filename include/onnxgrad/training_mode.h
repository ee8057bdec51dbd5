#ifndef ONNXGRAD_TRAINING_MODE_H_
#define ONNXGRAD_TRAINING_MODE_H_

#include <cstdint>

namespace [[gnu::visibility("default")]] onnxgrad {

/// What training does with operators that a file has in inference mode: Dropout, which then drops,
/// and BatchNormalization, which then takes the statistics of the batch and keeps running ones.
/// Evaluation, prediction and the file that is returned are in inference mode in any case; the
/// file has the running statistics of the training.
enum class TrainingMode : std::uint8_t {
  kAuto,  ///< Dropout, and each BatchNormalization whose scale or bias is trained
  kOn,    ///< all of them
  kOff,   ///< none: they compute what they do in inference
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAINING_MODE_H_

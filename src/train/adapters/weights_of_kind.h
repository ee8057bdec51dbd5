#ifndef ONNXGRAD_TRAIN_WEIGHTS_OF_KIND_H_
#define ONNXGRAD_TRAIN_WEIGHTS_OF_KIND_H_

#include <string>
#include <vector>

#include "onnxgrad/adapters.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {

/// Names of the trainable weights that an adapter without new ones trains: biases (kBias), or
/// scales and shifts of normalizations (kNorms). Throws: ModelError (the model has none).
std::vector<std::string> weights_of_kind(const std::vector<Weight>& weights, AdapterKind kind);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WEIGHTS_OF_KIND_H_

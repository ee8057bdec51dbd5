#ifndef ONNXGRAD_TRAIN_INITIALIZE_H_
#define ONNXGRAD_TRAIN_INITIALIZE_H_

#include <vector>

#include "ir/graph.h"
#include "onnxgrad/weights.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// New values for the chosen weights of a working copy, as initialize() of onnxgrad/weights.h
/// describes. Throws: ModelError (a pattern that matches nothing).
NamedTensors draw_weights(const ir::Model& working, const opdef::OpRegistry& registry,
                          const InitializeOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_INITIALIZE_H_

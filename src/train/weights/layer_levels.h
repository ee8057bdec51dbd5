#ifndef ONNXGRAD_TRAIN_LAYER_LEVELS_H_
#define ONNXGRAD_TRAIN_LAYER_LEVELS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/weights/weights.h"

namespace onnxgrad::train {

/// For each weight, the number of layers on the longest path from the node that reads it to the
/// end of the graph: 0 in a head; scales and biases have the level of the layer before them. Layers
/// are matrix products, convolutions, recurrent cells and embeddings with weights of their own. A
/// weight that several nodes read has the least of their levels; -1: nothing reads it.
std::vector<std::int64_t> layer_levels(std::span<const Weight> weights);

/// `patterns` with the names of weights instead of "head" (level 0) and "last:<n>" (the head and
/// the n layers before it), unless a weight has that name. Throws: ModelError (no such weights).
std::vector<std::string> expand_layer_groups(std::span<const std::string> patterns,
                                             std::span<const Weight> weights);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LAYER_LEVELS_H_

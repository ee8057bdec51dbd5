#ifndef ONNXGRAD_TRAIN_GRAPHS_ATTENTION_MAPS_H_
#define ONNXGRAD_TRAIN_GRAPHS_ATTENTION_MAPS_H_

#include <string>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::train {

/// Names of the attention maps of a working copy, in the order of its layers: results of a Softmax
/// over the last axis that a MatMul reads first, perhaps through a Dropout or a Cast.
std::vector<std::string> find_attention_maps(const ir::Graph& graph);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_GRAPHS_ATTENTION_MAPS_H_

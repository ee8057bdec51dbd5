#ifndef ONNXGRAD_TRAIN_GRAPH_DESCRIPTION_H_
#define ONNXGRAD_TRAIN_GRAPH_DESCRIPTION_H_

#include <string>
#include <unordered_set>

#include "ir/graph.h"
#include "train/graphs/training_graph.h"

// The computation of a graph as text, to check whether two graphs are the same: elements of weights
// are omitted, all other constants are represented by their checksum.

namespace onnxgrad::train {

/// One line for each input, constant, node and output, with the names of the file.
/// weights: names of initializers whose elements are ignored.
std::string describe_model(const ir::Model& model, const std::unordered_set<std::string>& weights);

/// The checksum of the computation of the loss and the new state of a training step. Intermediate
/// values are identified by position, not by name, and nodes that only further outputs need are
/// ignored.
std::string training_checksum(const StepGraph& step);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_GRAPH_DESCRIPTION_H_

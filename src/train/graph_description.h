#ifndef ONNXGRAD_TRAIN_GRAPH_DESCRIPTION_H_
#define ONNXGRAD_TRAIN_GRAPH_DESCRIPTION_H_

#include <string>
#include <unordered_set>

#include "ir/graph.h"

// What a graph computes, as text, to check whether two graphs are the same: numbers of weights
// are left out, all other constants go in by their checksum.

namespace onnxgrad::train {

/// One line for each input, constant, node and output, with the names of the file.
/// weights: names of initializers whose numbers do not count.
std::string describe_model(const ir::Model& model, const std::unordered_set<std::string>& weights);

/// The checksum of what makes up the loss (output 0) and the new state of a training step. Values
/// in between count by their place, not by their name, and what only further outputs need does not
/// count at all.
std::string training_checksum(const ir::Model& step);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_GRAPH_DESCRIPTION_H_

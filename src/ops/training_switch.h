#ifndef ONNXGRAD_OPS_TRAINING_SWITCH_H_
#define ONNXGRAD_OPS_TRAINING_SWITCH_H_

#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

// Operators that behave in another way in training than in a model that was exported for inference.
// The functions are defined in the files of their operators.

namespace onnxgrad::ops {

struct TrainingSwitch {
  /// Inputs that are trained where the operator takes part in training; empty: it always does.
  std::vector<std::size_t> weights = {};
  /// Changes `node`, a node of g.graph(), in place. Returns its running statistics: an initializer,
  /// and the value that it has after the step. A node that is in training mode already, or whose
  /// mode or statistics come from the graph, stays as it is.
  std::vector<ir::StateBinding> (*switch_on)(ir::Node& node, ir::GraphBuilder& g) = nullptr;
};

/// nullptr if the operator does the same in training.
const TrainingSwitch* find_training_switch(const ir::Node& node);

/// Dropout drops.
std::vector<ir::StateBinding> switch_on_dropout(ir::Node& node, ir::GraphBuilder& g);
/// BatchNormalization takes mean and variance of the batch, and keeps running ones.
std::vector<ir::StateBinding> switch_on_batch_normalization(ir::Node& node, ir::GraphBuilder& g);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TRAINING_SWITCH_H_

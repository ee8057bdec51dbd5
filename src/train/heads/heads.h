#ifndef ONNXGRAD_TRAIN_HEADS_HEADS_H_
#define ONNXGRAD_TRAIN_HEADS_HEADS_H_

#include "ir/graph.h"
#include "onnxgrad/losses.h"
#include "train/heads/head_walk.h"

// Search for the position of a loss: walk_back() walks back from each output of a model, and
// resolve_loss() chooses among what it found.

namespace onnxgrad::train {

/// A loss with its position in the graph.
struct ResolvedLoss {
  LossFunction function;
  ir::Value* scores = nullptr;
  LossInfo info;                    ///< `target` not yet named
  std::int64_t class_axis = 1;      ///< class axis of the scores
  bool is_class_axis_known = true;  ///< see ClassAxis
};

/// Chooses function and scores as onnxgrad/losses.h describes. `graph` has types inferred.
/// Throws: ModelError (nothing to apply a loss to; a function of scores applied to probabilities,
/// with the name of the scores; a function that does not match the number of columns, with the one
/// that does; unknown output with the nearest name).
ResolvedLoss resolve_loss(const ir::Graph& graph, const Loss& loss);

/// An output or inner value by name. Throws: ModelError naming the nearest.
ir::Value* find_loss_value(const ir::Graph& graph, const std::string& name);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_HEADS_HEADS_H_

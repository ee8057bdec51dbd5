#ifndef ONNXGRAD_TRAIN_HEADS_HEADS_H_
#define ONNXGRAD_TRAIN_HEADS_HEADS_H_

#include "ir/graph.h"
#include "onnxgrad/losses.h"
#include "train/heads/head_walk.h"

// Where a loss belongs: walk_back() looks behind each output of a model, and resolve_loss() chooses
// among what it found.

namespace onnxgrad::train {

/// A loss with its place in the graph.
struct ResolvedLoss {
  LossFunction function;
  ir::Value* scores = nullptr;
  LossInfo info;                    ///< `target` not yet named
  std::int64_t class_axis = 1;      ///< of the scores
  bool is_class_axis_known = true;  ///< see ClassAxis
};

/// Chooses function and scores as onnxgrad/losses.h describes. `graph` has types inferred.
/// Throws: ModelError (nothing to put a loss on; a function of scores named on probabilities, with
/// the name of the scores; a function that does not fit the number of columns, with the one that
/// does; unknown output with the nearest name).
ResolvedLoss resolve_loss(const ir::Graph& graph, const Loss& loss);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_HEADS_HEADS_H_

#ifndef ONNXGRAD_TRAIN_HEADS_H_
#define ONNXGRAD_TRAIN_HEADS_H_

#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/losses.h"

// Finding the head of a model: what its outputs are made from, and so where a loss belongs.
//
// From each output a Walk goes back through nodes that only rename, label or normalise, and stops
// at the scores. What it passes tells the kind of head and the list of classes. resolve_loss() then
// chooses among the outputs. New kinds of nodes are rows of the table in heads.cpp.

namespace onnxgrad::train {

/// What the walk ended at.
enum class HeadKind {
  kSoftmax,        ///< Softmax or LogSoftmax over the scores' columns
  kSigmoid,        ///< one score per row behind a Sigmoid; classes 0 and 1
  kSigmoids,       ///< a Sigmoid per column, not normalised: several labels per row
  kOneVsRest,      ///< a Sigmoid per column, normalised by the sum of the row
  kProbabilities,  ///< normalised, but no scores behind it
  kScores,         ///< the class is the largest score; no probabilities
  kValues,         ///< none of these: a regression
};

/// The labels that a model gives to its classes.
struct ClassList {
  Tensor labels = {};       ///< int64 or string [C]; undefined: none was found
  std::string source = {};  ///< "initializer 'classes'", "ZipMap node 'z'"
};

struct Head {
  HeadKind kind = HeadKind::kValues;
  ir::Value* scores = nullptr;
  /// The value of the last node that has probabilities; nullptr if there are none.
  ir::Value* probabilities = nullptr;
  std::string output = {};   ///< the model's output that the walk began at
  bool from_labels = false;  ///< the output is the label and not the probabilities
  ClassList classes = {};
};

/// Where the walk back from `value` ends.
Head walk_back(ir::Value* value);

/// A loss with its place in the graph.
struct ResolvedLoss {
  LossFunction function;
  ir::Value* scores = nullptr;
  LossInfo info;  ///< `target` not yet named
};

/// Chooses function and scores as onnxgrad/losses.h describes. `graph` has types inferred.
/// Throws: ModelError (nothing to put a loss on; a function of scores named on probabilities, with
/// the name of the scores; unknown output with the nearest name).
ResolvedLoss resolve_loss(const ir::Graph& graph, const Loss& loss);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_HEADS_H_

#ifndef ONNXGRAD_TRAIN_HEADS_HEAD_WALK_H_
#define ONNXGRAD_TRAIN_HEADS_HEAD_WALK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ir/graph.h"

// The walk back from an output of a model to the scores that it is computed from. It passes nodes
// that rename, label, normalise or squash, and stops at the first other one. The passed nodes
// determine the kind of head. New kinds of nodes are rows of the table in head_walk.cpp; patterns
// of several nodes are functions of head_patterns.h.

namespace onnxgrad::train {

/// The kind of node or value that the walk ended at.
enum class HeadKind {
  kSoftmax,        ///< Softmax or LogSoftmax over the scores' columns
  kSigmoid,        ///< one score per row before a Sigmoid; classes 0 and 1
  kSigmoids,       ///< a Sigmoid per column, not normalised: several labels per row
  kOneVsRest,      ///< a Sigmoid per column, normalised by the sum of the row
  kModifiedHuber,  ///< (clip(s, -1, 1) + 1) / 2 per column, or for one score per row
  kProbabilities,  ///< probabilities without scores before them
  kMargins,        ///< scores of a list of classes, without probabilities; [N, C], or one per row
  kScores,         ///< the class number is the index of the largest score, which is no layer's or
                   ///< has no list of classes
  kValues,         ///< none of these: a regression
};

/// The labels of a model's classes.
struct ClassList {
  Tensor labels = {};       ///< int64 or string [C]; undefined: none was found
  std::string source = {};  ///< "initializer 'classes'", "ZipMap node 'z'"
};

struct Head {
  HeadKind kind = HeadKind::kValues;
  ir::Value* scores = nullptr;
  /// The value nearest to the output that has probabilities, one column per class if
  /// there is such a value; nullptr if there are none.
  ir::Value* probabilities = nullptr;
  bool is_log = false;       ///< `probabilities` has their logarithms
  std::string output = {};   ///< the model's output that the walk began at
  bool from_labels = false;  ///< the output is the label, not the probabilities
  ClassList classes = {};
  /// The axis of the scores, from 0, that a Softmax or ArgMax on the way goes over.
  std::optional<std::int64_t> class_axis = {};
};

/// Walks back from `value` to the scores. Time is linear in the nodes that it passes.
Head walk_back(ir::Value* value);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_HEADS_HEAD_WALK_H_

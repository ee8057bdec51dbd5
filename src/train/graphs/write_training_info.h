#ifndef ONNXGRAD_TRAIN_WRITE_TRAINING_INFO_H_
#define ONNXGRAD_TRAIN_WRITE_TRAINING_INFO_H_

#include "onnxgrad/training_info.h"
#include "train/graphs/training_graph.h"

namespace onnxgrad::train {

/// A step, and its initial values.
struct TrainingToWrite {
  const ir::Model& file;     ///< the user's file, with the current weights
  const ir::Model& working;  ///< the copy for training that `step` was written for
  const StepGraph& step;
  const NamedTensors& state;  ///< current values; of states that it lacks, the first ones
  double learning_rate = 0;
  /// The model is written from `working`, which has other weights than the file: see
  /// train/weights/tied_weights.h.
  bool is_rewritten = false;
};

/// `file` with the step as its training information; see add_training_info(). Throws: ModelError.
ir::Model write_training_info(const TrainingToWrite& training, const TrainingInfoOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WRITE_TRAINING_INFO_H_

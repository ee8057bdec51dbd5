#ifndef ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_
#define ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_

#include <cstdint>
#include <span>
#include <string>

#include "onnxgrad/trainer.h"
#include "train/checkpoints/checkpoint.h"

namespace onnxgrad::train {

/// Writes the epochs and the first `steps` losses of steps; where training went back there are
/// more.
void write_history(Checkpoint& checkpoint, const FitOptions& options, const History& history,
                   std::int64_t steps);

/// Puts what write_history wrote into `history`. `targets`: outputs, where several have losses.
/// Throws: CheckpointError (columns of different lengths; metrics that are not there).
void read_history(const Checkpoint& checkpoint, const FitOptions& options,
                  std::span<const std::string> targets, History& history);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_

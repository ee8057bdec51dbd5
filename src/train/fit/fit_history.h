#ifndef ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_
#define ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_

#include <cstdint>
#include <span>
#include <string>

#include "onnxgrad/trainer.h"
#include "train/checkpoints/checkpoint.h"

namespace onnxgrad::train {

/// Adds an epoch; those that FitOptions::max_history = `most` omits are removed. Amortised constant
/// cost.
void append_epoch(History& history, const EpochLog& log, std::int64_t most);

/// Writes the epochs and, if they are kept, the first `steps` losses of steps; after training
/// rolled back there are more.
void write_history(Checkpoint& checkpoint, const FitOptions& options, const History& history,
                   std::int64_t steps);

/// Reads the data of write_history into `history`. `targets`: outputs, if several have losses.
/// Throws: CheckpointError (columns of different lengths; epochs that are not consecutive;
/// missing metrics).
void read_history(const Checkpoint& checkpoint, const FitOptions& options,
                  std::span<const std::string> targets, History& history);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_

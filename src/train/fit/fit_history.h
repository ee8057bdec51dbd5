#ifndef ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_
#define ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_

#include <cstdint>
#include <span>
#include <string>

#include "onnxgrad/trainer.h"
#include "train/checkpoints/checkpoint.h"

namespace onnxgrad::train {

/// Adds an epoch; those that FitOptions::max_history = `most` leaves out are taken away. Costs the
/// same for each, on average.
void append_epoch(History& history, const EpochLog& log, std::int64_t most);

/// Writes the epochs and, if they are kept, the first `steps` losses of steps; where training went
/// back there are more.
void write_history(Checkpoint& checkpoint, const FitOptions& options, const History& history,
                   std::int64_t steps);

/// Puts what write_history wrote into `history`. `targets`: outputs, where several have losses.
/// Throws: CheckpointError (columns of different lengths; epochs that do not follow each other;
/// metrics that are not there).
void read_history(const Checkpoint& checkpoint, const FitOptions& options,
                  std::span<const std::string> targets, History& history);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_HISTORY_H_

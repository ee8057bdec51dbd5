#ifndef ONNXGRAD_TRAIN_FIT_BEST_EPOCH_H_
#define ONNXGRAD_TRAIN_FIT_BEST_EPOCH_H_

#include <cstdint>
#include <optional>

#include "onnxgrad/trainer.h"
#include "train/fit/state_snapshot.h"

namespace onnxgrad::train {

/// Tracks the best epoch, its weights if requested by the options, and early stopping.
class BestEpoch {
 public:
  /// The arguments outlive this.
  BestEpoch(const FitOptions& options, StepRunner& step, History& history);

  /// Checks the monitor before the first step; `counts_correct_rows`: a validation has an accuracy.
  /// Throws: DataError (no epoch will have EarlyStopping::monitor; names those that it will have).
  void check_monitor(bool has_validation, bool counts_correct_rows) const;

  /// Adds an epoch with the monitored number; sets EpochLog::is_best.
  void add(EpochLog& log);
  /// True if there was no improvement for as long as the options allow.
  bool has_waited() const;
  /// Restores the weights of the best epoch; false: they were not kept.
  bool restore() const;

  /// True if the last epoch was the best, and no checkpoint has it.
  bool is_unsaved() const { return is_unsaved_; }
  void mark_saved() { is_unsaved_ = false; }
  void add_to(Checkpoint& checkpoint) const;
  /// Restore from a checkpoint, in two parts, so that nothing is changed if something is missing.
  /// `has_best`: there was a best epoch. Throws: CheckpointError.
  void take_weights(const Checkpoint& checkpoint, bool has_best);
  void take_numbers(const Checkpoint& checkpoint);

 private:
  const FitOptions& options_;
  History& history_;
  std::optional<StateSnapshot> snapshot_;
  double loss_ = 0;
  std::int64_t epochs_without_improvement_ = 0;
  bool is_unsaved_ = false;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_BEST_EPOCH_H_

#ifndef ONNXGRAD_TRAIN_FIT_FIT_CHECKPOINT_H_
#define ONNXGRAD_TRAIN_FIT_FIT_CHECKPOINT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/checkpoints/checkpoint_folder.h"
#include "train/fit/best_epoch.h"
#include "train/fit/fit_progress.h"
#include "train/fit/rate_schedule.h"
#include "train/session.h"

namespace onnxgrad::train {

/// What a checkpoint has of a fit; all of it outlives its FitCheckpoints.
struct FitParts {
  FitSession& session;
  const FitOptions& options;
  BatchFeed& feed;
  FitProgress& progress;
  RateSchedule& rates;
  BestEpoch& best;
  History& history;
};

/// Writes checkpoints of a fit, and continues from one.
class FitCheckpoints {
 public:
  explicit FitCheckpoints(const FitParts& fit) : fit_(fit) {}

  /// Opens the folder that the options name, and resumes as they say. `block`: that the fit is in
  /// then; nullptr: it is between two epochs. False: `stop` became true while rows were read.
  /// Throws: OptionError, CheckpointError, what the feed throws.
  bool open(const RowBlock*& block, StopFlag& stop);

  bool is_due_at_step() const { return steps_ > 0 && fit_.progress.step % steps_ == 0; }
  /// At the end of an epoch, after the callbacks, which may have changed the learning rate.
  void end_epoch(const EpochLog& log);
  void save();
  /// Where training ends, however it does. A step that failed half way may have changed the state.
  void end_fit();

 private:
  std::optional<Checkpoint> find();
  bool resume(const Checkpoint& checkpoint, const RowBlock*& block, StopFlag& stop);
  void check_fit(const Checkpoint& checkpoint) const;
  bool seek_rows(const Checkpoint& checkpoint, const FitProgress& place, const RowBlock*& block,
                 StopFlag& stop);
  std::array<std::int64_t, 3> here() const;
  Checkpoint make() const;
  std::vector<std::pair<std::string, std::string>> fixed_options() const;

  FitParts fit_;
  std::optional<CheckpointFolder> folder_;
  std::int64_t steps_ = 0;  ///< from one checkpoint to the next; 0: by epochs
  std::array<std::int64_t, 3> saved_at_{-1, -1, -1};
  std::optional<Clock::time_point> saved_time_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_CHECKPOINT_H_

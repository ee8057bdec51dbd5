#ifndef ONNXGRAD_TRAIN_FIT_FIT_CHECKPOINT_H_
#define ONNXGRAD_TRAIN_FIT_FIT_CHECKPOINT_H_

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/checkpoints/checkpoint_folder.h"
#include "train/fit/best_epoch.h"
#include "train/fit/fit_progress.h"
#include "train/fit/rate_schedule.h"
#include "train/session/session.h"

namespace onnxgrad::train {

/// The parts of a fit that a checkpoint covers; they outlive the FitCheckpoints.
struct FitParts {
  Session& session;
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

  /// Opens the folder in the options, and resumes according to them. `block`: the block that the
  /// fit is in then; nullptr: it is between two epochs. False: `stop` became true while reading
  /// rows. Throws: OptionError, CheckpointError, what the feed throws.
  bool open(const RowBlock*& block, StopFlag& stop);

  bool is_due_at_step() const { return steps_ > 0 && fit_.progress.step % steps_ == 0; }
  /// Number of steps until one is due.
  std::int64_t steps_until_due() const {
    return steps_ > 0 ? steps_ - fit_.progress.step % steps_ : kNever;
  }
  /// Called at the end of an epoch, after the callbacks, which may have changed the learning rate.
  void end_epoch(const EpochLog& log);
  void save();
  /// Called when training ends, however it ends. A step that failed midway may have changed the
  /// state.
  void end_fit();

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::optional<Checkpoint> find();
  std::optional<Checkpoint> find_for_all();
  template <class Action>
  void on_first_worker(Action&& action);
  bool is_first_worker() const;
  std::string write_parts();
  bool is_own(const std::string& name) const;
  CheckpointLog write(bool is_finite, bool is_best);
  bool resume(const Checkpoint& checkpoint, const RowBlock*& block, StopFlag& stop);
  void check_fit(const Checkpoint& checkpoint) const;
  bool seek_rows(const Checkpoint& checkpoint, const FitProgress& place, const RowBlock*& block,
                 StopFlag& stop);
  std::optional<double> changed_rate(const Checkpoint& checkpoint) const;
  void take_rate(const Checkpoint& checkpoint, double rate);
  std::array<std::int64_t, 3> here() const;
  Checkpoint make(bool of_worker = false) const;
  std::vector<std::pair<std::string, std::string>> fixed_options() const;

  FitParts fit_;
  bool has_part_ = false;  ///< this worker's states are in a part of the checkpoint
  bool writes_ = false;    ///< whether checkpoints are written
  std::optional<CheckpointFolder> folder_;  ///< only on the first worker, which writes them
  std::string data_hash_;                   ///< hash for the checkpoint being written
  std::int64_t steps_ = 0;                  ///< steps from one checkpoint to the next; 0: by epochs
  std::array<std::int64_t, 3> saved_at_{-1, -1, -1};
  std::optional<Clock::time_point> saved_time_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_CHECKPOINT_H_

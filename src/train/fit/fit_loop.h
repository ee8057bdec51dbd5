#ifndef ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_
#define ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/checkpoints/checkpoint_folder.h"
#include "train/data/dataset.h"
#include "train/data/stop_flag.h"
#include "train/fit/batch_binder.h"
#include "train/fit/batch_feed.h"
#include "train/fit/epoch_loss.h"
#include "train/fit/evaluator.h"
#include "train/fit/fault_search.h"
#include "train/fit/state_snapshot.h"
#include "train/schedules/schedules.h"
#include "train/session.h"

// The epoch loop, whatever the rows come from (BatchFeed): stops, schedule, history, validation,
// early stopping, the best weights, faults, checkpoints. Rows in memory are checked and converted,
// and their plans compiled, before the first step; an epoch is then a loop over {bind, run, read
// the loss}. Start reading at FitLoop::run.

namespace onnxgrad::train {

using Clock = std::chrono::steady_clock;

class FitLoop {
 public:
  /// `history` is cleared. `stop` is asked after every step, and while rows are awaited.
  /// `source` outlives this.
  FitLoop(Session& session, const Dataset& data, const FitOptions& options, StopFlag& stop,
          History& history);
  FitLoop(Session& session, DataSource& source, const FitOptions& options, StopFlag& stop,
          History& history);
  /// Throws: ConvergenceError, DataError of a kernel or of a chunk, and what sources and callbacks
  /// throw.
  void run();

 private:
  struct RunEnder;
  FitLoop(Session& session, const FitOptions& options, StopFlag& stop, History& history);
  void prepare();
  bool has_stopped();
  void prepare_schedule(double rate);
  void reserve_history();
  void run_epochs();
  bool run_epoch(EpochLog& log);
  bool train_epoch();
  bool run_blocks();
  bool begin_block(bool is_first);
  bool run_block();
  bool run_batch(std::int64_t begin, std::int64_t rows);
  bool check_state();
  void take_snapshot();
  bool handle_fault(const std::string& fault_seen);
  bool call_step_callback(double loss, const runtime::Execution& execution);
  bool is_time_over();
  bool end_with(std::string reason);
  void fill_log(EpochLog& log) const;
  void note_unchanged_weights();
  double data_wait_s() const;
  void mark_best(EpochLog& log);
  bool notice_early_stop();

  // fit_checkpoint.cpp: going on where another fit ended.
  void open_checkpoints();
  std::optional<Checkpoint> find_checkpoint();
  void resume_from(const Checkpoint& checkpoint);
  void check_fit(const Checkpoint& checkpoint) const;
  bool seek_rows(const Checkpoint& checkpoint, std::int64_t epoch, std::int64_t row);
  Checkpoint make_checkpoint() const;
  void save_checkpoint();
  void save_last_checkpoint();
  std::vector<std::pair<std::string, std::string>> fixed_options() const;

  Session& session_;
  Session::FitScope fit_;
  FitOptions options_;
  StopFlag& stop_;
  StopFlag::Scope stop_scope_;
  History& history_;

  BatchBinder binder_;
  std::unique_ptr<BatchFeed> feed_;
  std::optional<Validation> validation_;
  std::optional<ScheduleRun> schedule_;
  std::vector<double> schedule_state_;  ///< that it goes on from, once there is one
  double first_rate_ = 0;               ///< of the session, before the schedule
  std::int64_t steps_per_update_ = 1;

  std::optional<FaultSearch> search_;  ///< OnNonFinite::kRaise and kStop
  std::int64_t snapshot_step_ = 0;     ///< where its snapshot was taken
  std::int64_t snapshot_row_ = 0;
  std::int64_t snapshot_steps_ = 0;  ///< within a block, from one to the next; 0: none
  std::optional<StateSnapshot> best_;
  std::optional<StateSnapshot> before_;  ///< FitOptions::discard
  double best_loss_ = 0;
  std::int64_t epochs_without_improvement_ = 0;

  const RowBlock* block_ = nullptr;   ///< that is trained on
  std::int64_t block_first_row_ = 0;  ///< rows of the epoch before it
  std::int64_t epoch_ = 1;            ///< that runs, or is the next
  std::int64_t row_ = 0;              ///< rows of the epoch that are done
  std::int64_t step_ = 0;             ///< of this fit
  std::int64_t epoch_first_step_ = 0;
  std::int64_t countdown_ = 0;  ///< steps until the step callback
  EpochLoss loss_;              ///< of the epoch
  double seconds_before_ = 0;   ///< of this epoch, before the fit was resumed
  double waited_before_ = 0;    ///< for rows, the same
  double feed_waited_ = 0;      ///< of feed_, when the epoch began
  Clock::time_point epoch_began_ = {};
  Clock::time_point deadline_ = {};

  std::optional<CheckpointFolder> checkpoints_;
  std::int64_t checkpoint_steps_ = 0;  ///< from one checkpoint to the next; 0: by epochs
  std::array<std::int64_t, 3> saved_at_{-1, -1, -1};  ///< steps of the session, epoch_, row_
  std::optional<Clock::time_point> saved_time_;
  bool is_new_best_ = false;  ///< the last epoch was the best, and is not saved
  bool is_inside_step_ = false;
  bool is_stopped_ = false;  ///< before the first step: nothing has changed
};

double seconds_since(Clock::time_point start);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_

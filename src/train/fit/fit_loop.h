#ifndef ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_
#define ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "onnxgrad/trainer.h"
#include "train/data/dataset.h"
#include "train/data/stop_flag.h"
#include "train/fit/batch_binder.h"
#include "train/fit/batch_feed.h"
#include "train/fit/best_epoch.h"
#include "train/fit/evaluator.h"
#include "train/fit/fault_search.h"
#include "train/fit/fit_checkpoint.h"
#include "train/fit/fit_progress.h"
#include "train/fit/rate_schedule.h"
#include "train/fit/state_snapshot.h"
#include "train/session/session.h"

// The epoch loop, independent of the source of rows (BatchFeed). Rows in memory are checked and
// converted, and their plans compiled, before the first step; an epoch is then a loop over {bind,
// run, read the loss}. Around it are the learning rates, the validation, and the observers of the
// fit: best epoch, faults, checkpoints, history. Start reading at FitLoop::run.

namespace onnxgrad::train {

class FitLoop {
 public:
  /// `history` is cleared. `stop` is checked after every step (short ones: after some ten
  /// microseconds), and while waiting for rows.
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
  void reserve_history();
  void run_epochs();
  bool run_epoch(EpochLog& log);
  bool train_epoch();
  bool run_blocks();
  bool begin_block(bool is_first);
  bool run_block();
  bool run_batch(std::int64_t begin, std::int64_t rows);
  std::int64_t num_quiet_steps(std::int64_t most) const;
  bool run_quiet_steps(std::int64_t begin, std::int64_t count);
  std::span<const double> run_series(std::int64_t begin, std::int64_t steps);
  std::span<const double> run_step(runtime::Execution& plan, std::int64_t rows);
  template <class F>
  std::span<const double> count_steps(std::int64_t rows, F&& run);
  bool check_state();
  bool handle_loss(double loss);
  bool handle_fault(const std::string& fault_seen);
  std::int64_t total_steps() const;
  void append_part_of_epoch();
  bool call_step_callback(double loss, const runtime::Execution& plan);
  bool is_time_over();
  bool has_done_steps();
  bool end_with(std::string reason);
  bool wants_stop();
  std::string reason_to_stop() const;
  double wish_to_stop();
  bool ends_by_wish(const runtime::Execution& plan);
  bool any_worker(bool flag) const {
    return step_.workers() == nullptr ? flag : step_.workers()->any(flag);
  }
  /// Seconds that this worker has waited for others so far.
  double network_wait() const;
  void share_times(double computed, double waited, EpochLog& log) const;
  void check_workers() const;
  /// One of several workers does not end alone while rows are read.
  StopFlag& reading_stop() { return step_.workers() == nullptr ? stop_ : never_; }
  void fill_log(EpochLog& log) const;
  void note_unchanged_weights();
  bool notice_early_stop();

  FitSession session_;
  StepRunner& step_;
  FitOptions options_;
  StopFlag& stop_;
  StopFlag::Scope stop_scope_;
  History& history_;

  BatchBinder binder_;
  std::unique_ptr<BatchFeed> feed_;
  RateSchedule rates_;
  std::optional<Validation> validation_;
  const RowBlock* block_ = nullptr;  ///< block that is being trained on
  FitProgress progress_;
  BestEpoch best_;
  std::optional<FaultSearch> faults_;  ///< OnNonFinite::kRaise and kStop
  std::optional<FitCheckpoints> checkpoints_;
  std::optional<StateSnapshot> before_;  ///< FitOptions::discard

  struct Series {
    std::int64_t steps = 1;  ///< steps of the next series
    std::array<double, kLongestSeries> losses = {};
  };
  Series series_;
  std::int64_t countdown_ = 0;  ///< steps until the step callback
  StopFlag never_;
  std::exception_ptr interruption_;  ///< rethrown when all workers have ended
  bool callback_stops_ = false;      ///< with several workers: all end with the next step
  Clock::time_point deadline_ = {};
  bool is_stopped_ = false;  ///< before the first step: nothing has changed
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_

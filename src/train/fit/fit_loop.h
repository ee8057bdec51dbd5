#ifndef ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_
#define ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/data/dataset.h"
#include "train/data/stop_flag.h"
#include "train/fit/batch_binder.h"
#include "train/fit/batch_feed.h"
#include "train/fit/epoch_report.h"
#include "train/fit/fit_checkpoint.h"
#include "train/fit/fit_progress.h"
#include "train/fit/fit_stop.h"
#include "train/fit/loss_policy.h"
#include "train/fit/rate_schedule.h"
#include "train/fit/state_snapshot.h"
#include "train/session/session.h"

// The epoch loop, independent of the source of rows (BatchFeed). Rows in memory are checked and
// converted, and their plans compiled, before the first step; an epoch is then a loop over series
// of steps, as long as nothing is due between two of them and nobody waits for long. Around it are
// the learning rates, the reports of epochs (validation, best epoch), the policy for losses that
// are not finite, checkpoints, and what ends the fit. Start reading at FitLoop::run.

namespace onnxgrad::train {

class FitLoop {
 public:
  /// `history` is cleared. `stop` is checked after every step (short ones: after some ten
  /// microseconds, on a device other than the host milliseconds), and while waiting for rows.
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
  bool run_steps(std::int64_t begin, std::int64_t rows, std::int64_t count);
  std::int64_t steps_until_due(std::int64_t most) const;
  std::span<const double> next_rates(std::int64_t steps);
  std::size_t run_series(std::int64_t begin, std::int64_t rows, std::int64_t steps,
                         std::span<const double> rates);
  std::size_t run_one_by_one(std::int64_t begin, std::int64_t rows, std::int64_t steps,
                             std::span<const double> rates);
  void choose_length(std::int64_t steps, double seconds);
  template <class F>
  std::size_t count_steps(std::int64_t rows, std::span<const double> rates, F&& run);
  void note_results(std::size_t steps, std::int64_t rows);
  bool end_steps(std::size_t steps, const runtime::Execution& plan);
  std::int64_t total_steps() const;
  bool call_step_callback(StepResults::Row results);
  bool has_done_steps();
  void check_workers() const;

  FitScope scope_;
  Session& session_;
  StepRunner& step_;
  FitOptions options_;
  FitStop stop_;
  History& history_;

  BatchBinder binder_;
  std::unique_ptr<BatchFeed> feed_;
  RateSchedule rates_;
  const RowBlock* block_ = nullptr;  ///< that is being trained on
  FitProgress progress_;
  EpochReport report_;
  std::optional<LossPolicy> losses_;
  std::optional<FitCheckpoints> checkpoints_;
  std::optional<StateSnapshot> before_;  ///< FitOptions::discard

  /// Steps that are run together, and what they returned.
  struct Series {
    std::int64_t steps = 1;            ///< maximum of the next series
    std::size_t width = 0;             ///< numbers of a step
    std::vector<double> results = {};  ///< step after step
    std::vector<double> rates = {};    ///< learning rates
    std::span<double> of(std::size_t step) {
      return std::span(results).subspan(step * width, width);
    }
  };
  Series series_;
  std::int64_t countdown_ = 0;  ///< steps until the step callback
  bool is_stopped_ = false;     ///< before the first step: nothing has changed
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_LOOP_H_

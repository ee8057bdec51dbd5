#ifndef ONNXGRAD_TRAIN_FIT_LOOP_H_
#define ONNXGRAD_TRAIN_FIT_LOOP_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/checkpoint_folder.h"
#include "train/dataset.h"
#include "train/evaluator.h"
#include "train/schedules.h"
#include "train/session.h"

// The epoch loop. Everything is checked, converted, compiled and allocated before the first step;
// an epoch is then a loop over {bind, run, read the loss}. Start reading at FitLoop::run.

namespace onnxgrad::train {

/// Copies of all state tensors, for going back.
class StateSnapshot {
 public:
  explicit StateSnapshot(Session& session);
  ~StateSnapshot();
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;
  /// Allocates nothing.
  void take(const Session& session);
  void restore(Session& session) const;
  /// Into a checkpoint under names of their own, and back. False: it is not in the checkpoint.
  void add_to(Checkpoint& checkpoint, std::string_view purpose, const Session& session) const;
  bool take_from(const Checkpoint& checkpoint, std::string_view purpose, const Session& session);

 private:
  Session& session_;
  std::int64_t bytes_ = 0;
  std::vector<Tensor> copies_;
  std::int64_t steps_ = 0;
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start);

/// Copies these rows of `row_bytes` bytes each.
void copy_rows(const std::byte* from, std::int64_t row_bytes, std::span<const std::int64_t> rows,
               std::byte* to);

/// Of names, types, shapes and numbers; `validation` may be nullptr.
std::string checksum_of(const PreparedData& data, const PreparedData* validation);

class FitLoop {
 public:
  /// `history` is cleared. `stop` is looked at after every step.
  FitLoop(Session& session, const Dataset& data, const FitOptions& options, std::atomic<bool>& stop,
          History& history);
  /// Throws: ConvergenceError, DataError of a kernel, and what callbacks throw.
  void run();

 private:
  void run_epochs();
  void prepare_rows(const Dataset& data);
  void choose_batch_size();
  void prepare_plans();
  void order_rows(std::int64_t epoch);
  void prepare_schedule(double rate);
  void reserve_history();
  bool run_epoch(std::int64_t epoch, EpochLog& log);
  bool run_batches();
  bool run_batch(runtime::Execution& execution, std::int64_t begin, std::int64_t rows);
  void bind_batch(runtime::Execution& execution, std::int64_t begin, std::int64_t rows);
  std::vector<Dims> batch_dims(std::int64_t rows) const;
  void add_loss(const runtime::Execution& execution, double loss, std::int64_t rows);
  bool handle_fault(const std::string& fault_seen);
  template <class F>
  void replay(F&& is_wanted);
  bool is_time_over();
  std::string go_back_and_find_fault();
  std::string describe_rows(std::int64_t batch) const;
  bool call_step_callback(double loss);
  const std::byte* gather(std::size_t column, std::int64_t begin, std::int64_t rows);
  void validate(EpochLog& log);
  void mark_best(EpochLog& log);
  bool notice_early_stop();

  // fit_checkpoint.cpp: going on where another fit ended.
  void open_checkpoints();
  std::optional<Checkpoint> find_checkpoint();
  void resume_from(const Checkpoint& checkpoint);
  void check_fit(const Checkpoint& checkpoint) const;
  void read_history(const Checkpoint& checkpoint);
  Checkpoint make_checkpoint() const;
  void write_history(Checkpoint& checkpoint) const;
  void save_checkpoint();
  void save_last_checkpoint();
  std::vector<std::pair<std::string, std::int64_t>> fixed_options() const;

  Session& session_;
  Session::FitScope fit_;
  FitOptions options_;
  std::atomic<bool>& stop_;
  History& history_;

  PreparedData data_;
  std::vector<std::int64_t> train_rows_;  ///< empty: all rows of data_
  std::vector<std::int64_t> order_;       ///< rows in the order of the epoch; empty: as they come
  std::vector<Tensor> staging_;           ///< per column, one batch
  std::vector<std::size_t> ports_;        ///< per column
  std::int64_t num_rows_ = 0;             ///< of an epoch: whole batches with Sampling::kWindows
  std::int64_t batch_size_ = 0;
  runtime::Execution* full_ = nullptr;
  runtime::Execution* tail_ = nullptr;
  std::vector<runtime::Pin> pins_;  ///< of these two
  std::optional<Validation> validation_;
  std::optional<ScheduleRun> schedule_;
  double first_rate_ = 0;  ///< of the session, before the schedule
  std::int64_t steps_per_update_ = 1;

  bool has_denominator_ = false;  // of the loss, as output 1 of the step
  std::optional<StateSnapshot> epoch_start_;
  std::optional<StateSnapshot> best_;
  std::optional<StateSnapshot> before_;  ///< FitOptions::discard
  double best_loss_ = 0;
  std::int64_t epochs_without_improvement_ = 0;
  std::int64_t epoch_ = 1;  ///< that runs, or is the next
  std::int64_t row_ = 0;    ///< first one of the next batch, in the order of the epoch
  std::int64_t step_ = 0;   ///< of this fit
  std::int64_t epoch_first_step_ = 0;
  std::vector<double> epoch_rates_;  ///< per step of the epoch
  std::int64_t countdown_ = 0;       ///< steps until the step callback
  double loss_sum_ = 0;
  double weight_sum_ = 0;
  double seconds_before_ = 0;  ///< of this epoch, before the fit was resumed
  Clock::time_point epoch_began_ = {};
  Clock::time_point deadline_ = {};

  std::optional<CheckpointFolder> checkpoints_;
  std::int64_t checkpoint_steps_ = 0;  ///< from one checkpoint to the next; 0: by epochs
  std::string data_hash_;              ///< with checkpoints_ or options_.resume
  std::array<std::int64_t, 3> saved_at_{-1, -1, -1};  ///< steps of the session, epoch_, row_
  bool is_new_best_ = false;  ///< the last epoch was the best, and is not saved
  bool is_inside_step_ = false;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_LOOP_H_

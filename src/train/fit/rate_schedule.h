#ifndef ONNXGRAD_TRAIN_FIT_RATE_SCHEDULE_H_
#define ONNXGRAD_TRAIN_FIT_RATE_SCHEDULE_H_

#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/data/stop_flag.h"
#include "train/fit/batch_feed.h"
#include "train/fit/fit_progress.h"
#include "train/schedules/schedules.h"

namespace onnxgrad::train {

/// The learning rates of a fit.
class RateSchedule {
 public:
  /// The arguments outlive this.
  RateSchedule(const FitOptions& options, StepRunner& step);

  /// Sets the schedule's lengths. Called again when the first block (`has_block`) has shown the
  /// size of batches used as they come. Throws: DataError (rows that cannot be counted).
  void prepare(BatchFeed& feed, bool has_block, StopFlag& stop);
  bool is_prepared() const { return !options_.schedule || schedule_.has_value(); }
  /// Whether steps have rates of their own: those of fill().
  bool may_change() const { return schedule_.has_value() || options_.learning_rate; }
  /// Whether a function of the user is called for each.
  bool calls_function() const { return static_cast<bool>(options_.learning_rate); }
  /// Writes the learning rates of the next steps; returns their number: if the user's function
  /// throws, those before are run first, and the next call throws.
  std::size_t fill(const FitProgress& progress, std::span<double> rates);
  void end_epoch(double monitored_loss, const FitProgress& progress);
  /// Restores the previous rate.
  void end_fit();

  /// The initial rate, and the position in the schedule: for checkpoints.
  double first_rate() const { return first_rate_; }
  void set_first_rate(double rate) { first_rate_ = rate; }
  std::vector<double> state() const { return schedule_ ? schedule_->state() : resumed_state_; }
  void resume(std::vector<double> state);

 private:
  const FitOptions& options_;
  StepRunner& step_;
  std::int64_t updates_every_;  ///< steps of an update
  double first_rate_;
  std::optional<ScheduleRun> schedule_;
  std::exception_ptr thrown_;          ///< by the user's function, for a later step
  std::vector<double> resumed_state_;  ///< state to continue from, once the schedule is prepared
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_RATE_SCHEDULE_H_

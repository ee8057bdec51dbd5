#ifndef ONNXGRAD_TRAIN_FIT_FIT_STOP_H_
#define ONNXGRAD_TRAIN_FIT_FIT_STOP_H_

#include <exception>
#include <string>

#include "onnxgrad/trainer.h"
#include "train/data/stop_flag.h"
#include "train/fit/fit_progress.h"
#include "train/session/step_runner.h"

namespace onnxgrad::train {

/// When a fit ends before its last epoch, and why: its stop flag, the time limit, a callback.
/// Several workers end with the same step: each tells the others its wish in the next one.
class FitStop {
 public:
  /// All outlive this.
  FitStop(StopFlag& flag, const FitOptions& options, StepRunner& step, History& history);

  /// Begins the time that is limited.
  void begin();
  /// Returns false, for its callers; the first reason is kept.
  bool end_with(std::string reason);
  /// Ends with reason(), after one of the functions below returned true.
  bool end() { return end_with(reason()); }
  bool end_by_callback();
  bool has_ended() const { return !history_.stop_reason.empty(); }
  /// Throws what an interrupt has thrown, which waits until all workers have ended.
  void rethrow_interruption() const {
    if (interruption_ != nullptr) std::rethrow_exception(interruption_);
  }

  StopFlag& flag() { return flag_; }
  /// For reading rows, while which one of several workers does not end alone.
  StopFlag& reading_flag() { return workers_.has_others() ? never_ : flag_; }
  /// Whether any worker wants to end now. All ask.
  bool is_wanted() { return workers_.any(wants_stop()); }
  /// Whether any worker's callback has asked to end. All ask.
  bool is_wanted_by_callback() const { return workers_.any(callback_stops_); }
  /// The step callback has asked to end: returns whether the fit goes on, until all workers end.
  bool note_callback();

  /// Before and after each step. The second returns whether the fit ends with it.
  void begin_step() {
    if (workers_.has_others()) step_.set_signal(wish_to_stop());
  }
  bool ends_with_step(const runtime::Execution& plan);

 private:
  std::string reason() const;
  bool wants_stop();
  double wish_to_stop();
  bool ends_by_wish(const runtime::Execution& plan);
  bool is_time_over() const { return options_.max_seconds > 0 && Clock::now() >= deadline_; }
  bool end_by_time();

  StopFlag& flag_;
  StopFlag::Scope scope_;
  const FitOptions& options_;
  StepRunner& step_;
  const Workers& workers_;
  History& history_;
  StopFlag never_;
  std::exception_ptr interruption_;  ///< of one of several workers
  bool callback_stops_ = false;      ///< of one of several workers: all end with the next step
  Clock::time_point deadline_ = {};
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_STOP_H_

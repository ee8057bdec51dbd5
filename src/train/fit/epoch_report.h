#ifndef ONNXGRAD_TRAIN_FIT_EPOCH_REPORT_H_
#define ONNXGRAD_TRAIN_FIT_EPOCH_REPORT_H_

#include <optional>

#include "onnxgrad/trainer.h"
#include "train/fit/batch_feed.h"
#include "train/fit/best_epoch.h"
#include "train/fit/evaluator.h"
#include "train/fit/fit_progress.h"
#include "train/fit/fit_stop.h"

namespace onnxgrad::train {

/// The logs of the epochs of a fit: training and validation results, times, the best epoch and the
/// early stop that follows from it.
class EpochReport {
 public:
  struct Parts {
    StepRunner& step;
    const FitOptions& options;
    const FitProgress& progress;
    History& history;
  };
  /// All of `fit` outlive this.
  explicit EpochReport(const Parts& fit);

  /// The validation requested by the options, if any.
  /// Throws: DataError (no epoch will have what the options monitor).
  void open_validation(BatchFeed& feed) {
    feed.open_validation(validation_);
    best_.check_monitor(validation_.has_value(), validation_ && validation_->counts_correct_rows());
  }
  /// Around the steps of an epoch: their time, and what of it this worker waits for others.
  void begin_steps();
  void end_steps();
  /// The log of the epoch, or of the part of it that is done. `waited_s`: by the feed so far.
  void fill(EpochLog& log, double waited_s) const;
  /// The validation results; none if `stop` becomes true meanwhile.
  void validate(EpochLog& log, StopFlag& stop);
  /// Whether it is the best epoch, and its times: the same on all workers.
  void finish(EpochLog& log);
  /// Adds it to the history.
  void append(const EpochLog& log);
  /// Adds the part of an epoch in which the fit has ended; checkpoints continue without it.
  void append_part(double waited_s);
  /// Ends the fit if there was no improvement for as long as the options allow. Returns whether.
  bool stops_early(FitStop& stop) const;
  BestEpoch& best() { return best_; }

 private:
  double network_wait() const;
  void share_times(EpochLog& log) const;

  Parts fit_;
  const Workers& workers_;
  std::optional<Validation> validation_;
  BestEpoch best_;
  Clock::time_point began_ = {};
  double waited_ = 0;    ///< for others, in seconds: before, then in the steps of the epoch
  double computed_ = 0;  ///< seconds
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_EPOCH_REPORT_H_

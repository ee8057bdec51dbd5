#ifndef ONNXGRAD_TRAIN_FIT_LOSS_POLICY_H_
#define ONNXGRAD_TRAIN_FIT_LOSS_POLICY_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "onnxgrad/trainer.h"
#include "train/fit/batch_feed.h"
#include "train/fit/fault_search.h"
#include "train/fit/fit_progress.h"
#include "train/fit/fit_stop.h"

namespace onnxgrad::train {

/// FitOptions::on_non_finite: the fit counts skipped steps and goes on, or goes back to the last
/// finite state, and raises or stops.
class LossPolicy {
 public:
  struct Parts {
    StepRunner& step;
    BatchBinder& binder;
    const BatchFeed& feed;
    const FitOptions& options;
    FitProgress& progress;
    FitStop& stop;
    History& history;
  };
  /// All of `fit` outlive this.
  explicit LossPolicy(const Parts& fit);

  /// Room for so many steps of an epoch.
  void reserve(std::int64_t steps) {
    if (faults_) faults_->reserve(steps);
  }
  /// Steps of this block can be repeated. False: the state is not finite, and training ends; this
  /// is so of all that follow.
  bool begin_block(const RowBlock& block, bool is_first);
  /// Whether the update of a step whose loss is not finite is skipped.
  bool skips() const { return fit_.options.on_non_finite == OnNonFinite::kSkip; }
  /// Whether it goes back to the state before a step whose loss is not finite.
  bool goes_back() const { return faults_.has_value(); }
  /// Number of the next steps, at most `most`, of which only the last may have a snapshot after it.
  std::int64_t steps_until_snapshot(std::int64_t most) const {
    return faults_ ? std::min(most, faults_->steps_until_snapshot()) : most;
  }
  /// After steps with these rates, or with the present one.
  void note_steps(std::size_t steps, std::span<const double> rates) {
    if (faults_) faults_->note_steps(steps, rates);
  }
  /// Whether the loss of a step counts in the epoch; counts the skipped step if not.
  bool counts(double loss) {
    if (!skips() || std::isfinite(loss)) return true;
    ++fit_.history.skipped_steps;
    return false;
  }
  bool is_fault(double loss) const { return !std::isfinite(loss) && faults_.has_value(); }
  /// After a step with such a loss, of `block`: goes back. Throws: ConvergenceError. Returns false.
  bool handle_loss(double loss, const RowBlock* block);
  /// After a step: takes a snapshot that is due.
  bool end_step(const RowBlock* block);
  /// Checks the state, if the steps since the snapshot can be repeated: they are of `block`
  /// (nullptr: it is over), or their batches were kept.
  bool check_state(const RowBlock* block);
  void end_epoch() {
    if (faults_) faults_->forget_batches();
  }
  /// Weights whose gradient is zero in all steps of the first epoch: training continues, but that
  /// is worth a note.
  void note_unchanged_weights();

 private:
  bool handle_fault(const std::string& fault_seen, const RowBlock* block);

  Parts fit_;
  std::optional<FaultSearch> faults_;  ///< OnNonFinite::kRaise and kStop
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_LOSS_POLICY_H_

#ifndef ONNXGRAD_TRAIN_FIT_EPOCH_LOSS_H_
#define ONNXGRAD_TRAIN_FIT_EPOCH_LOSS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/session/step_runner.h"
#include "train/tools/mean.h"

namespace onnxgrad::train {

/// Means over the steps of an epoch, taken before each update: the loss, with batches weighted by
/// the denominators of their losses; the losses of several targets, in the same way; the norm of
/// the gradient, with equal weights.
class EpochLoss {
 public:
  /// Adds a step that was run on this many rows.
  void add(const StepRunner& step, const runtime::Execution& plan, double loss, std::int64_t rows) {
    const double counted = step.denominator(plan).value_or(static_cast<double>(rows));
    const double share = step.graph().is_mean ? counted : 1;
    add(loss, counted, share);
    if (step.has_log_results()) add_log_results(step, plan, share);
  }
  /// Adds a step whose loss counts `share` times, and `counted` times in the mean.
  void add(double loss, double counted, double share) {
    sum_ += loss * share;
    weight_ += counted;
    steps_ += 1;
  }
  /// Removes all steps; keeps the memory.
  void clear();

  /// Mean loss; NaN if all steps were skipped.
  double mean() const {
    return steps_ == 0 ? std::numeric_limits<double>::quiet_NaN() : mean_of(sum_, weight_);
  }
  /// Writes the means into the log of the epoch.
  void write_to(EpochLog& log, const StepGraph& graph) const;

  /// All sums as numbers, for checkpoints. set_state() returns false for a row that state() did not
  /// make for this many targets.
  std::vector<double> state() const;
  bool set_state(const std::vector<double>& state, std::size_t num_targets);

 private:
  void add_log_results(const StepRunner& step, const runtime::Execution& plan, double share);

  double sum_ = 0;
  double weight_ = 0;
  double norm_sum_ = 0;
  double steps_ = 0;
  std::vector<double> target_sums_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_EPOCH_LOSS_H_

#ifndef ONNXGRAD_TRAIN_FIT_FIT_PROGRESS_H_
#define ONNXGRAD_TRAIN_FIT_FIT_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/session/forward_runner.h"
#include "train/session/step_runner.h"

namespace onnxgrad::train {

/// Means over the steps of an epoch, taken before each update: the loss, with batches weighted by
/// the denominators of their losses; the losses of several targets, in the same way; the norm of
/// the gradient, with equal weights.
class EpochLoss {
 public:
  /// Adds a step that was run on this many rows.
  void add(const StepRunner& step, StepResults::Row results, std::int64_t rows) {
    const double counted = step.results().denominator(results).value_or(static_cast<double>(rows));
    const double share = step.graph().is_mean ? counted : 1;
    add(results[0], counted, share);
    if (results.size() > 1) add_log_results(step, results, share, counted);
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
  void add_log_results(const StepRunner& step, StepResults::Row results, double share, double rows);

  /// Sums for the noise scale: of an update under way, then estimates of all.
  struct Noise {
    double small = 0;  ///< squared norms of gradients of single batches
    double batches = 0;
    double rows = 0;
    double variance = 0;  ///< tr(S)
    double square = 0;    ///< |G|^2
  };
  void add_noise(double small, double large, std::int64_t batches, double rows);

  Noise noise_;
  double sum_ = 0;
  double weight_ = 0;
  double norm_sum_ = 0;
  double steps_ = 0;
  std::vector<double> target_sums_;
};

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The time of an epoch, part of which may have passed before the fit was resumed. Waits are waits
/// for rows, in seconds; `waited`: total wait of the feed so far.
struct EpochClock {
  double seconds_before = 0;
  double wait_before = 0;
  double waited_at_start = 0;
  Clock::time_point start = {};

  void begin(double waited) {
    start = Clock::now();
    waited_at_start = waited;
  }
  double seconds() const {  // a resumed fit may end before its first step
    return seconds_before + (start == Clock::time_point{} ? 0 : seconds_since(start));
  }
  double wait(double waited) const { return wait_before + waited - waited_at_start; }
};

/// The position of a fit.
struct FitProgress {
  std::int64_t epoch = 1;             ///< the current one, or the next
  std::int64_t row = 0;               ///< rows of the epoch that are done
  std::int64_t step = 0;              ///< steps of the fit that are done
  std::int64_t epoch_first_step = 0;  ///< steps that were done when the epoch began
  std::int64_t block_first_row = 0;   ///< rows of the epoch before the current block
  EpochLoss loss = {};                ///< loss of the epoch so far
  EpochClock clock = {};              ///< times of the epoch so far
  bool is_inside_step = false;        ///< the state may be that of an incomplete step
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FIT_PROGRESS_H_

#ifndef ONNXGRAD_TRAIN_FIT_FIT_PROGRESS_H_
#define ONNXGRAD_TRAIN_FIT_FIT_PROGRESS_H_

#include <chrono>
#include <cstdint>

#include "train/fit/epoch_loss.h"

namespace onnxgrad::train {

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
  double seconds() const { return seconds_before + seconds_since(start); }
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

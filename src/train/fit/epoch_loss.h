#ifndef ONNXGRAD_TRAIN_FIT_EPOCH_LOSS_H_
#define ONNXGRAD_TRAIN_FIT_EPOCH_LOSS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/mean.h"
#include "train/session.h"

namespace onnxgrad::train {

/// Means over the steps of an epoch, each before its update: of the loss, where batches count by
/// the denominators of their losses; of the losses of several targets in the same way; of the norm
/// of the gradient, where steps count alike.
class EpochLoss {
 public:
  /// A step that was run on so many rows.
  void add(const Session& session, const runtime::Execution& execution, double loss,
           std::int64_t rows) {
    const double counted = session.graph().has_denominator
                               ? read_scalar(execution.output(1), session.loss_dtype())
                               : static_cast<double>(rows);
    const double share = session.reduces_by_mean() ? counted : 1;
    sum_ += loss * share;
    weight_ += counted;
    steps_ += 1;
    if (session.has_log_outputs()) add_log_outputs(session, execution, share);
  }
  /// Keeps its memory.
  void clear();

  /// NaN without steps: all of them were skipped.
  double mean() const {
    return steps_ == 0 ? std::numeric_limits<double>::quiet_NaN() : mean_of(sum_, weight_);
  }
  /// Into the log of the epoch.
  void tell(const Session& session, EpochLog& log) const;

  /// All numbers, for checkpoints. set_state() returns false for a row that state() did not make.
  std::vector<double> state() const;
  bool set_state(const Session& session, const std::vector<double>& state);

 private:
  void add_log_outputs(const Session& session, const runtime::Execution& execution, double share);

  double sum_ = 0;
  double weight_ = 0;
  double norm_sum_ = 0;
  double steps_ = 0;
  std::vector<double> target_sums_;
};

/// The norm of the gradient that a step gave; nothing where it gives none.
std::optional<double> gradient_norm(const Session& session, const runtime::Execution& execution);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_EPOCH_LOSS_H_

#ifndef ONNXGRAD_TRAIN_EPOCH_LOSS_H_
#define ONNXGRAD_TRAIN_EPOCH_LOSS_H_

#include <cstdint>

#include "train/mean.h"
#include "train/session.h"

namespace onnxgrad::train {

/// The mean of the loss over an epoch's rows, each before its update; batches count by the
/// denominators of their losses.
struct EpochLoss {
  double sum = 0;
  double weight = 0;

  /// A step that was run on so many rows.
  void add(const Session& session, const runtime::Execution& execution, double loss,
           std::int64_t rows) {
    const double counted = session.graph().has_denominator
                               ? read_scalar(execution.output(1), session.loss_dtype())
                               : static_cast<double>(rows);
    sum += session.reduces_by_mean() ? loss * counted : loss;
    weight += counted;
  }
  double mean() const { return mean_of(sum, weight); }
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_EPOCH_LOSS_H_

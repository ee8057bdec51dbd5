#ifndef ONNXGRAD_TRAIN_SESSION_SESSION_WEIGHTS_H_
#define ONNXGRAD_TRAIN_SESSION_SESSION_WEIGHTS_H_

#include "onnxgrad/optimizers.h"

namespace onnxgrad::train {

/// Whether evaluations begin with the average of the weights.
bool evaluates_average(const UpdateOptions& options);
/// Throws: OptionError (an average, and an optimizer that has its own).
void check_average(const UpdateOptions& options, const Optimizer& optimizer);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_SESSION_WEIGHTS_H_

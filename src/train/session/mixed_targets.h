#ifndef ONNXGRAD_TRAIN_SESSION_MIXED_TARGETS_H_
#define ONNXGRAD_TRAIN_SESSION_MIXED_TARGETS_H_

#include "onnxgrad/losses.h"

namespace onnxgrad::train {

/// Whether the targets of a loss are class numbers, which cannot be mixed. Throws: OptionError
/// (there is no form of the loss that reads probabilities).
bool needs_mixed_form(const LossInfo& loss);

/// A copy of `loss` that reads probabilities in place of class numbers. `found`: what it is applied
/// to.
Loss mixed_form(const Loss& loss, const LossInfo& found);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_MIXED_TARGETS_H_

#ifndef ONNXGRAD_TRAIN_SELF_CHECK_H_
#define ONNXGRAD_TRAIN_SELF_CHECK_H_

#include <string>

#include "runtime/engine.h"

namespace onnxgrad::train {

/// Computes values and gradients of a small network with a convolution, a large and a small
/// product, a lookup, a normalisation and element-wise functions on a device and on the CPU.
/// Returns "" if they agree, else what differs, or the message of the error. Takes the time of the
/// first use of the device and its libraries.
std::string self_check(const runtime::Engine& engine);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SELF_CHECK_H_

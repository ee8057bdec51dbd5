#ifndef ONNXGRAD_BASE_INTERRUPT_H_
#define ONNXGRAD_BASE_INTERRUPT_H_

#include "onnxgrad/interrupt.h"

namespace onnxgrad::base {

/// Call this in loops over the nodes or bytes of a model: a few nanoseconds. Throws: Interrupted,
/// if the innermost InterruptScope of this thread wants to stop.
void poll_interrupt();

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_INTERRUPT_H_

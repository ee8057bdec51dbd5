#ifndef ONNXGRAD_PYTHON_BINDINGS_UNLOCKED_H_
#define ONNXGRAD_PYTHON_BINDINGS_UNLOCKED_H_

#include <nanobind/nanobind.h>

#include "onnxgrad/interrupt.h"

namespace onnxgrad::python {

/// The interpreter lock is free, and Python's handlers of signals run every few milliseconds while
/// a model is read, differentiated or compiled. What one raises (Ctrl-C: KeyboardInterrupt) ends
/// the call.
class InterruptibleCall {
 public:
  InterruptibleCall();

 private:
  nanobind::gil_scoped_release unlocked_;
  InterruptScope scope_;
};

using Unlocked = nanobind::call_guard<InterruptibleCall>;

/// Raises what the handler raised, for a call that ended with Interrupted. Holds the lock.
void raise_interrupt();

}  // namespace onnxgrad::python

#endif  // ONNXGRAD_PYTHON_BINDINGS_UNLOCKED_H_

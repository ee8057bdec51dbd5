#ifndef ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_
#define ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_

#include <csignal>
#include <utility>
#include <vector>

#include "onnxgrad/trainer.h"

namespace onnxgrad::python {

/// While it lives, each of `signals` also makes the running fit() of `trainer` ask after its
/// current step (Trainer::interrupt), beside what it did before. They are those that Python code
/// handles: Python's own handler only notes the signal, and the function is called by
/// PyErr_CheckSignals. Create it in the main thread. Inside of another one, signals are for the
/// inner fit().
class InterruptGuard {
 public:
  InterruptGuard(Trainer& trainer, const std::vector<int>& signals);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  Trainer* outer_ = nullptr;
  /// Previous actions of the signals that it changed.
  std::vector<std::pair<int, struct sigaction>> previous_;
};

}  // namespace onnxgrad::python

#endif  // ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_

#ifndef ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_
#define ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_

#include <csignal>
#include <utility>
#include <vector>

#include "onnxgrad/trainer.h"

namespace onnxgrad::python {

/// Makes each of `signals`, during its lifetime, also interrupt the running fit() of `trainer`
/// after its current step (Trainer::interrupt), besides its previous action. These are signals that
/// Python code handles: Python's own handler only notes the signal, and PyErr_CheckSignals calls
/// the function. Create it in the main thread. With nested guards, signals are for the inner fit().
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

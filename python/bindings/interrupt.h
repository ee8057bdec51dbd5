#ifndef ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_
#define ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_

#include <csignal>

#include "onnxgrad/trainer.h"

namespace onnxgrad::python {

/// While it lives, Ctrl-C (SIGINT) ends the running fit() of `trainer` after its present step and
/// then does what it did before. Does nothing if SIGINT is ignored or has its default action.
/// Only one at a time does something; create it in the main thread.
class InterruptGuard {
 public:
  explicit InterruptGuard(Trainer& trainer);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Whether Ctrl-C came since the guard was made.
  static bool was_interrupted() noexcept;

 private:
  struct sigaction previous_ = {};
  bool is_installed_ = false;
};

}  // namespace onnxgrad::python

#endif  // ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_

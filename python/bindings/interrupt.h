#ifndef ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_
#define ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_

#include <array>
#include <csignal>

#include "onnxgrad/trainer.h"

namespace onnxgrad::python {

/// While it lives, Ctrl-C (SIGINT) and SIGTERM end the running fit() of `trainer` after its present
/// step and then do what they did before. Each is left alone where it is ignored or has its default
/// action. Only one guard at a time does something; create it in the main thread.
class InterruptGuard {
 public:
  explicit InterruptGuard(Trainer& trainer);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Whether one of them came since the guard was made.
  static bool was_interrupted() noexcept;

 private:
  static constexpr std::array<int, 2> kSignals{SIGINT, SIGTERM};

  bool is_active_ = false;
  std::array<struct sigaction, kSignals.size()> previous_ = {};
  std::array<bool, kSignals.size()> is_installed_ = {};
};

}  // namespace onnxgrad::python

#endif  // ONNXGRAD_PYTHON_BINDINGS_INTERRUPT_H_

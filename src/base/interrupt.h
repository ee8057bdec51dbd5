#ifndef ONNXGRAD_BASE_INTERRUPT_H_
#define ONNXGRAD_BASE_INTERRUPT_H_

#include <chrono>

#include "onnxgrad/interrupt.h"

namespace onnxgrad::base {

/// Thrown out of a call that ran into a TimeLimit. Like Interrupted no std::exception.
class TimeOver {};

/// During its lifetime, calls on this thread that can be interrupted throw TimeOver once `time`
/// has passed, unless an enclosing limit is over before.
class TimeLimit {
 public:
  explicit TimeLimit(std::chrono::milliseconds time) noexcept;
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  std::chrono::steady_clock::time_point previous_;
};

/// Call this in loops over the nodes or bytes of a model: a few nanoseconds. Throws: Interrupted,
/// if the innermost InterruptScope of this thread wants to stop; TimeOver, if a TimeLimit is over.
void poll_interrupt();

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_INTERRUPT_H_

#ifndef ONNXGRAD_API_CALL_GUARD_H_
#define ONNXGRAD_API_CALL_GUARD_H_

#include <atomic>
#include <thread>

#include "onnxgrad/error.h"

namespace onnxgrad::api {

/// Records which thread is inside a session, if any.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

 private:
  friend class CallGuard;
  std::atomic<std::thread::id> owner_{};
};

/// Admits one call at a time into a session and refuses others.
class CallGuard {
 public:
  enum class Kind {
    kAlone,         ///< refused from everywhere
    kFromCallback,  ///< admits the thread that is already inside: calls that callbacks may make
  };

  /// Throws: Error while this or another thread is inside.
  explicit CallGuard(Gate& gate, Kind kind = Kind::kAlone) : gate_(gate) {
    const std::thread::id self = std::this_thread::get_id();
    std::thread::id inside{};
    if (gate_.owner_.compare_exchange_strong(inside, self, std::memory_order_acquire)) return;
    is_owner_ = false;
    if (inside != self) {
      throw Error({.what = "the session is busy with a call from another thread",
                   .hint = "Use one session per thread, or wait for the call to end."});
    }
    if (kind == Kind::kFromCallback) return;
    throw Error(
        {.what = "the session is busy while fit() runs: its callbacks cannot make this call",
         .hint = "Callbacks may read (evaluate, predict, state, trained_model) and set the "
                 "learning rate; do anything else after the training."});
  }
  ~CallGuard() {
    if (is_owner_) gate_.owner_.store(std::thread::id{}, std::memory_order_release);
  }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

 private:
  Gate& gate_;
  bool is_owner_ = true;
};

}  // namespace onnxgrad::api

#endif  // ONNXGRAD_API_CALL_GUARD_H_

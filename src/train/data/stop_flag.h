#ifndef ONNXGRAD_TRAIN_DATA_STOP_FLAG_H_
#define ONNXGRAD_TRAIN_DATA_STOP_FLAG_H_

#include <atomic>
#include <functional>
#include <utility>

namespace onnxgrad::train {

/// Ends a fit() early: by stop(), or by the callback after interrupt(). Both may be called from
/// any thread or signal handler; the rest is only for the thread of fit().
class StopFlag {
 public:
  void stop() noexcept { state_.fetch_or(kStopped, std::memory_order_relaxed); }
  void interrupt() noexcept { state_.fetch_or(kInterrupted, std::memory_order_release); }

  /// Resets the flag for a new fit(). An interrupt just before it is kept; without
  /// `on_interrupt` it does nothing.
  class Scope {
   public:
    Scope(StopFlag& flag, std::function<bool()> on_interrupt) : flag_(flag) {
      flag_.on_interrupt_ = std::move(on_interrupt);
      flag_.was_interrupted_ = false;
      flag_.state_.fetch_and(flag_.on_interrupt_ ? kInterrupted : 0, std::memory_order_relaxed);
    }
    ~Scope() { flag_.on_interrupt_ = nullptr; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StopFlag& flag_;
  };

  /// Reason for the stop, once it is set.
  const char* reason() const noexcept {
    return was_interrupted_ ? "interrupted" : "stop() was called";
  }
  /// Whether to end. After interrupt() it calls `on_interrupt`, and throws what that throws.
  bool is_set() {
    if (state_.load(std::memory_order_relaxed) == 0) return false;
    return ask();
  }

 private:
  static constexpr int kStopped = 1;
  static constexpr int kInterrupted = 2;
  static_assert(std::atomic<int>::is_always_lock_free, "stop() is called from signal handlers");

  bool ask() {
    const int state = state_.fetch_and(~kInterrupted, std::memory_order_acquire);
    if ((state & kInterrupted) != 0 && on_interrupt_ && on_interrupt_()) {
      was_interrupted_ = true;
      stop();
    }
    return (state_.load(std::memory_order_relaxed) & kStopped) != 0;
  }

  std::atomic<int> state_{0};
  std::function<bool()> on_interrupt_;
  bool was_interrupted_ = false;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_STOP_FLAG_H_

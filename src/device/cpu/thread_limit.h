#ifndef ONNXGRAD_DEVICE_CPU_THREAD_LIMIT_H_
#define ONNXGRAD_DEVICE_CPU_THREAD_LIMIT_H_

#include <chrono>
#include <cstdint>

namespace onnxgrad::device {

/// Number of threads that a pool uses on a machine which it shares with other processes.
///
/// A thread that has lost its processor in the middle of a chunk keeps the others waiting for a
/// time slice, some milliseconds. Each such loss takes one thread away for a multiple of the time
/// lost, so that a single one costs little; if the next one follows soon after the thread is back,
/// the time doubles (exponential backoff).
class ThreadLimit {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr Clock::duration kLeast = std::chrono::milliseconds(2);
  static constexpr Clock::duration kMost = std::chrono::milliseconds(1000);
  static constexpr int kTimesLost = 4;

  bool is_limited() const { return limit_ != kNone; }

  /// Returns how many of `threads` to use now.
  std::int64_t of(std::int64_t threads, Clock::time_point now);
  /// Records that `threads` threads took `lost` longer than their work.
  void lose(std::int64_t threads, Clock::duration lost, Clock::time_point now);

 private:
  static constexpr std::int64_t kNone = INT64_MAX;

  std::int64_t limit_ = kNone;
  Clock::time_point until_ = {};  ///< when the limit rises
  Clock::time_point risen_ = {};  ///< when it last did
  Clock::duration time_ = {};     ///< how long a thread was taken away the last time
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_THREAD_LIMIT_H_

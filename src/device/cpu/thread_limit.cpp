#include "device/cpu/thread_limit.h"

#include <algorithm>

namespace onnxgrad::device {

std::int64_t ThreadLimit::of(std::int64_t threads, Clock::time_point now) {
  if (limit_ >= threads) return threads;
  if (now >= until_) {
    ++limit_;
    risen_ = now;
    until_ = now + time_;
    if (limit_ >= threads) {
      limit_ = kNone;
      return threads;
    }
  }
  return limit_;
}

void ThreadLimit::lose(std::int64_t threads, Clock::duration lost, Clock::time_point now) {
  if (threads <= 1) return;
  const bool is_repeated = time_ > Clock::duration::zero() && now - risen_ <= time_;
  const Clock::duration least = std::max(kLeast, kTimesLost * lost);
  time_ = std::min(kMost, is_repeated ? std::max(least, 2 * time_) : least);
  limit_ = threads - 1;
  until_ = now + time_;
}

}  // namespace onnxgrad::device

#include "base/interrupt.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace onnxgrad {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kInterval{20};

thread_local InterruptScope::WantsStop wants_stop_now = nullptr;
constinit thread_local Clock::time_point next_question{};
constinit thread_local Clock::time_point deadline = Clock::time_point::max();

}  // namespace

InterruptScope::InterruptScope(WantsStop wants_stop) noexcept
    : previous_(std::exchange(wants_stop_now, wants_stop)) {}

InterruptScope::~InterruptScope() { wants_stop_now = previous_; }

base::TimeLimit::TimeLimit(std::chrono::milliseconds time) noexcept
    : previous_(std::exchange(deadline, std::min(deadline, Clock::now() + time))) {}

base::TimeLimit::~TimeLimit() { deadline = previous_; }

void base::poll_interrupt() {
  const bool has_deadline = deadline != Clock::time_point::max();
  if (wants_stop_now == nullptr && !has_deadline) return;
  const Clock::time_point now = Clock::now();
  if (has_deadline && now >= deadline) throw TimeOver();
  if (wants_stop_now == nullptr || now < next_question) return;
  const bool wants_stop = wants_stop_now();
  next_question = Clock::now() + kInterval;
  if (wants_stop) throw Interrupted();
}

}  // namespace onnxgrad

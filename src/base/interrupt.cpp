#include "base/interrupt.h"

#include <chrono>
#include <utility>

namespace onnxgrad {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kInterval{20};

thread_local InterruptScope::WantsStop wants_stop_now = nullptr;
constinit thread_local Clock::time_point next_question{};

}  // namespace

InterruptScope::InterruptScope(WantsStop wants_stop) noexcept
    : previous_(std::exchange(wants_stop_now, wants_stop)) {}

InterruptScope::~InterruptScope() { wants_stop_now = previous_; }

void base::poll_interrupt() {
  if (wants_stop_now == nullptr) return;
  const Clock::time_point now = Clock::now();
  if (now < next_question) return;
  const bool wants_stop = wants_stop_now();
  next_question = Clock::now() + kInterval;
  if (wants_stop) throw Interrupted();
}

}  // namespace onnxgrad

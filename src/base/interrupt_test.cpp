#include "base/interrupt.h"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <thread>

namespace onnxgrad {
namespace interrupt_test {

bool always() { return true; }
bool never() { return false; }

void wait_for_the_next_question() { std::this_thread::sleep_for(std::chrono::milliseconds(25)); }

TEST(Interrupt, EndsWhereTheInnermostScopeSaysSo) {
  base::poll_interrupt();  // nobody asks for anything
  const InterruptScope outer(always);
  wait_for_the_next_question();
  EXPECT_THROW(base::poll_interrupt(), Interrupted);
  {
    const InterruptScope inner(never);
    wait_for_the_next_question();
    EXPECT_NO_THROW(base::poll_interrupt());
  }
  wait_for_the_next_question();
  EXPECT_THROW(base::poll_interrupt(), Interrupted);
}

TEST(Interrupt, ATimeLimitEndsCallsOnceItIsOver) {
  const base::TimeLimit far(std::chrono::hours(1));
  EXPECT_NO_THROW(base::poll_interrupt());
  {
    const base::TimeLimit none(std::chrono::milliseconds(0));
    const base::TimeLimit inner(std::chrono::hours(1));  // does not extend the outer one
    EXPECT_THROW(base::poll_interrupt(), base::TimeOver);
  }
  EXPECT_NO_THROW(base::poll_interrupt());
}

TEST(Interrupt, IsOfOneThread) {
  const InterruptScope scope(always);
  wait_for_the_next_question();
  std::thread([] { EXPECT_NO_THROW(base::poll_interrupt()); }).join();
}

TEST(Interrupt, IsNoStandardException) {
  static_assert(!std::is_base_of_v<std::exception, Interrupted>);
}

}  // namespace interrupt_test
}  // namespace onnxgrad

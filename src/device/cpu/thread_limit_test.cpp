#include "device/cpu/thread_limit.h"

#include <gtest/gtest.h>

#include <chrono>

namespace onnxgrad::device {
namespace {

using std::chrono::milliseconds;

class ThreadLimitTest : public testing::Test {
 protected:
  ThreadLimit::Clock::time_point at(int ms) const { return start_ + milliseconds(ms); }

  ThreadLimit limit_;

 private:
  ThreadLimit::Clock::time_point start_ = ThreadLimit::Clock::now();
};

TEST_F(ThreadLimitTest, NothingIsLimitedBeforeALoss) {
  EXPECT_FALSE(limit_.is_limited());
  EXPECT_EQ(limit_.of(16, at(0)), 16);
}

TEST_F(ThreadLimitTest, ALossTakesAThreadAwayForSomeTimesAsLong) {
  limit_.lose(4, milliseconds(5), at(0));
  EXPECT_TRUE(limit_.is_limited());
  EXPECT_EQ(limit_.of(4, at(19)), 3);
  EXPECT_EQ(limit_.of(2, at(19)), 2);  // no more than there are
  EXPECT_EQ(limit_.of(4, at(20)), 4);
  EXPECT_FALSE(limit_.is_limited());
}

TEST_F(ThreadLimitTest, OneThreadIsTheLeast) {
  limit_.lose(1, milliseconds(5), at(0));
  EXPECT_EQ(limit_.of(2, at(1)), 2);
  limit_.lose(2, milliseconds(5), at(2));
  EXPECT_EQ(limit_.of(2, at(3)), 1);
}

TEST_F(ThreadLimitTest, LossesInARowDoubleTheTimeUpToASecond) {
  int now = 0;
  for (const int time : {20, 40, 80, 160, 320, 640, 1000, 1000}) {
    limit_.lose(2, milliseconds(5), at(now));
    EXPECT_EQ(limit_.of(2, at(now + time - 1)), 1) << time;
    now += time;
    EXPECT_EQ(limit_.of(2, at(now)), 2) << time;
    ++now;
  }
  // After a time without any, a loss counts as the first one.
  limit_.lose(2, milliseconds(5), at(now + 2000));
  EXPECT_EQ(limit_.of(2, at(now + 2020)), 2);
}

TEST_F(ThreadLimitTest, ThreadsComeBackOneByOne) {
  limit_.lose(4, milliseconds(5), at(0));
  limit_.lose(3, milliseconds(5), at(1));
  EXPECT_EQ(limit_.of(4, at(20)), 2);
  EXPECT_EQ(limit_.of(4, at(21)), 3);
  EXPECT_EQ(limit_.of(4, at(22)), 3);
  EXPECT_EQ(limit_.of(4, at(41)), 4);
}

}  // namespace
}  // namespace onnxgrad::device

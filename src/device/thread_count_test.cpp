#include "device/thread_count.h"

#include <gtest/gtest.h>

#ifdef __linux__
#include <sched.h>
#endif

#include <fstream>
#include <string>
#include <thread>

namespace onnxgrad::device::thread_count_test {

class ControlGroups : public ::testing::Test {
 protected:
  ControlGroups() : root_(::testing::TempDir() + "onnxgrad_control_groups") {
    std::filesystem::remove_all(root_);
  }
  ~ControlGroups() override { std::filesystem::remove_all(root_); }

  void set_quota(const std::string& group, const std::string& text) const {
    std::filesystem::create_directories(root_ / group);
    std::ofstream(root_ / group / "cpu.max") << text << '\n';
  }

  std::filesystem::path root_;
};

TEST_F(ControlGroups, TheSmallestQuotaCounts) {
  EXPECT_EQ(quota_threads(root_, "0::/a/b\n"), std::nullopt);
  set_quota("", "max 100000");
  set_quota("a/b", "max 100000");
  EXPECT_EQ(quota_threads(root_, "0::/a/b\n"), std::nullopt);
  set_quota("a/b", "400000 100000");
  EXPECT_EQ(quota_threads(root_, "0::/a/b\n"), 4);
  set_quota("a", "250000 100000");
  EXPECT_EQ(quota_threads(root_, "0::/a/b\n"), 2);
  EXPECT_EQ(quota_threads(root_, "1:name=systemd:/x\n0::/a/b\n"), 2);
  EXPECT_EQ(quota_threads(root_, "0::/c\n"), std::nullopt);
  set_quota("a/b", "10000 100000");
  EXPECT_EQ(quota_threads(root_, "0::/a/b"), 1);
  set_quota("", "300000 100000");  // the root as a container sees it
  EXPECT_EQ(quota_threads(root_, "0::/\n"), 3);
}

TEST_F(ControlGroups, NonsenseIsNoQuota) {
  for (const char* text : {"", "many 100000", "100000", "0 100000", "-1 100000", "100000 0"}) {
    set_quota("", text);
    EXPECT_EQ(quota_threads(root_, "0::/\n"), std::nullopt) << text;
  }
  EXPECT_EQ(quota_threads(root_, ""), std::nullopt);
}

TEST(ThreadCount, ReadsOpenmpsVariable) {
  EXPECT_EQ(openmp_threads("3"), 3);
  EXPECT_EQ(openmp_threads(" 4, 2"), 4);
  for (const char* text : {"", "0", "-1", "many", "1.5", "99999999999", ",2", "2 3"}) {
    EXPECT_EQ(openmp_threads(text), std::nullopt) << text;
  }
}

TEST(ThreadCount, FollowsTheAffinityMask) {
  EXPECT_GE(available_threads(), 1);
#ifdef __linux__
  int count = 0;
  std::thread([&count] {  // the mask belongs to a thread
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
      if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    count = available_threads();
  })
      .join();
  EXPECT_EQ(count, 1);
#endif
}

TEST(AvailableThreads, AreDividedAmongProcesses) {
  const int all = available_threads();
  EXPECT_EQ(available_threads({.processors = 1.5, .processes = 1}), 1);
  EXPECT_EQ(available_threads({.processors = 0.25, .processes = 8}), 1);
  EXPECT_LE(available_threads({.processors = 1000, .processes = 1}), 1000);
  EXPECT_EQ(available_threads({.processors = static_cast<double>(all), .processes = 1}), all);
}

}  // namespace onnxgrad::device::thread_count_test

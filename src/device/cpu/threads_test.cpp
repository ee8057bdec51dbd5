#include "device/cpu/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace onnxgrad::device {
namespace {

// Thread counts, also larger than the processors of most machines.
constexpr int kCounts[] = {1, 2, 3, 8, 16, 64};

TEST(Threads, EachPartRunsOnceOnAThreadOfItsOwn) {
  for (const int count : kCounts) {
    std::vector<int> calls(static_cast<std::size_t>(count));
    std::mutex mutex;
    std::set<std::thread::id> ids;
    on_threads(count, [&](const Chunk& chunk) {
      const std::scoped_lock lock(mutex);
      EXPECT_EQ(chunk.threads, count);
      ++calls.at(static_cast<std::size_t>(chunk.thread));
      ids.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(calls, std::vector<int>(calls.size(), 1)) << count;
    EXPECT_EQ(ids.size(), calls.size()) << count;
  }
}

TEST(Threads, TheCallerIsThreadZero) {
  const auto caller = std::this_thread::get_id();
  on_threads(3, [&](const Chunk& chunk) {
    EXPECT_EQ(std::this_thread::get_id() == caller, chunk.thread == 0);
  });
}

TEST(Threads, WhatIsWrittenBeforeWaitIsThereAfterIt) {
  constexpr int kRounds = 50;
  for (const int count : kCounts) {
    std::vector<std::int64_t> written(static_cast<std::size_t>(count));
    std::atomic<int> wrong = 0;
    on_threads(count, [&](const Chunk& chunk) {
      for (std::int64_t round = 1; round <= kRounds; ++round) {
        written[static_cast<std::size_t>(chunk.thread)] = round;
        chunk.wait();
        const auto sum = std::accumulate(written.begin(), written.end(), std::int64_t{0});
        if (sum != round * count) ++wrong;
        chunk.wait();
      }
    });
    EXPECT_EQ(wrong, 0) << count;
    const auto sum = std::accumulate(written.begin(), written.end(), std::int64_t{0});
    EXPECT_EQ(sum, std::int64_t{kRounds} * count);  // also after the call
  }
}

TEST(Threads, ChunksCoverARange) {
  for (const int count : kCounts) {
    for (const std::int64_t total : {0, 1, 2, 7, 64, 1000}) {
      std::vector<int> calls(static_cast<std::size_t>(total));
      parallel_ranges(count, total, [&](std::int64_t first, std::int64_t last) {
        EXPECT_LT(first, last);
        for (std::int64_t i = first; i < last; ++i) ++calls[static_cast<std::size_t>(i)];
      });
      parallel_for(count, total, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      EXPECT_EQ(calls, std::vector<int>(calls.size(), 2)) << count << " of " << total;
    }
  }
}

// Threads stay between kernels of different counts, where GCC's OpenMP runtime makes threads anew.
TEST(Threads, KernelsOfDifferentCountsKeepTheThreads) {
  std::thread([] {
    std::mutex mutex;
    std::set<std::thread::id> ids;
    for (int round = 0; round < 20; ++round) {
      for (const int count : {8, 2, 1, 5, 3}) {
        on_threads(count, [&](const Chunk& /*chunk*/) {
          const std::scoped_lock lock(mutex);
          ids.insert(std::this_thread::get_id());
        });
      }
    }
    EXPECT_EQ(ids.size(), 8);
  }).join();
}

TEST(Threads, APartHasOneThread) {
  std::atomic<int> inner = 0;
  on_threads(4, [&](const Chunk& chunk) {
    on_threads(4, [&](const Chunk& nested) {
      EXPECT_EQ(nested.threads, 1);
      nested.wait();
      ++inner;
    });
    chunk.wait();
  });
  EXPECT_EQ(inner, 4);
}

TEST(Threads, CallersDoNotShareThem) {
  std::vector<std::thread> callers;
  std::atomic<int> total = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        on_threads(6, [&](const Chunk& chunk) {
          chunk.wait();
          ++total;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 20 * 6);
}

TEST(Threads, ThatSleepAreWoken) {
  for (int round = 0; round < 5; ++round) {
    int other = 0;
    on_threads(2, [&](const Chunk& chunk) {
      if (chunk.thread == 1) other = 1;
    });
    EXPECT_EQ(other, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// The processor time of threads that wait for a caller which does nothing meanwhile.
TEST(Threads, DoNotWaitActivelyForLong) {
  on_threads(16, [](const Chunk& /*chunk*/) {});
  const std::clock_t start = std::clock();  // of all threads of this process
  on_threads(16, [](const Chunk& chunk) {
    if (chunk.thread == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    chunk.wait();
  });
  const double busy_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(busy_s, 0.15);
}

TEST(Threads, AChildProcessHasItsOwn) {
  on_threads(4, [](const Chunk& /*chunk*/) {});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> parts = 0;
    on_threads(4, [&](const Chunk& /*chunk*/) { ++parts; });
    ::_exit(parts == 4 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Threads, TellHowManyWereUsed) {
  take_threads_used();
  EXPECT_EQ(take_threads_used(), 1);
  on_threads(3, [](const Chunk& /*chunk*/) {});
  on_threads(2, [](const Chunk& /*chunk*/) {});
  EXPECT_EQ(take_threads_used(), 3);
  EXPECT_EQ(take_threads_used(), 1);
}

}  // namespace
}  // namespace onnxgrad::device

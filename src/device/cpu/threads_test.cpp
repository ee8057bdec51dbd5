#include "device/cpu/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

TEST(Threads, EachChunkRunsOnce) {
  for (const int threads : kCounts) {
    for (const int chunks : {threads, 3 * threads + 1, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(chunks));
      std::atomic<int> wrong = 0;
      on_threads(threads, chunks, [&](const Chunk& chunk) {
        const bool is_alone = threads == 1 && chunk.count == 1;
        if (!is_alone && chunk.count != chunks) ++wrong;
        if (chunk.thread < 0 || chunk.thread >= threads) ++wrong;
        for (std::int64_t i = chunk.first(chunks); i < chunk.last(chunks); ++i) {
          ++calls[static_cast<std::size_t>(i)];
        }
      });
      EXPECT_EQ(wrong, 0) << threads << " threads, " << chunks;
      EXPECT_TRUE(std::ranges::all_of(calls, [](int count) { return count == 1; })) << threads;
    }
  }
}

TEST(Threads, OneThreadRunsChunksOneAfterTheOther) {
  constexpr int kThreads = 8;
  std::array<std::atomic<int>, kThreads> inside = {};
  std::atomic<int> wrong = 0;
  for (int round = 0; round < 100; ++round) {
    on_threads(kThreads, 64, [&](const Chunk& chunk) {
      std::atomic<int>& own = inside[static_cast<std::size_t>(chunk.thread)];
      if (++own != 1) ++wrong;
      --own;
    });
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, TheCallerIsThreadZero) {
  const auto caller = std::this_thread::get_id();
  on_threads(3, 12, [&](const Chunk& chunk) {
    EXPECT_EQ(std::this_thread::get_id() == caller, chunk.thread == 0);
  });
}

TEST(Threads, WritesOfACallAreVisibleToTheNextOne) {
  constexpr int kRounds = 50;
  for (const int count : kCounts) {
    std::vector<std::int64_t> written(static_cast<std::size_t>(count));
    std::atomic<int> wrong = 0;
    for (std::int64_t round = 1; round <= kRounds; ++round) {
      on_threads(count, [&](const Chunk& chunk) {
        written[static_cast<std::size_t>(chunk.index)] = round;
      });
      on_threads(count, [&](const Chunk& /*chunk*/) {
        const auto sum = std::accumulate(written.begin(), written.end(), std::int64_t{0});
        if (sum != round * count) ++wrong;
      });
    }
    EXPECT_EQ(wrong, 0) << count;
    const auto sum = std::accumulate(written.begin(), written.end(), std::int64_t{0});
    EXPECT_EQ(sum, std::int64_t{kRounds} * count);  // also after the calls
  }
}

// A thread without a processor has not begun its chunks: the others run them.
TEST(Threads, ChunksOfAThreadThatIsLateAreRunByOthers) {
  std::atomic<bool> is_over = false;
  std::atomic<int> late = 0;
  std::atomic<int> rest = 0;
  std::atomic<std::int64_t> late_thread = -1;
  std::thread([&] {  // whose pool has all its threads
    on_threads(2, 64, [&](const Chunk& chunk) {
      std::int64_t none = -1;
      if (late_thread.compare_exchange_strong(none, chunk.thread)) {
        ++late;
        while (!is_over) std::this_thread::yield();  // until the other thread has run all others
        return;
      }
      if (chunk.thread == late_thread) {
        ++late;
      } else if (++rest == 63) {
        is_over = true;
      }
    });
  })
      .join();
  EXPECT_EQ(late, 1);
  EXPECT_EQ(rest, 63);
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
    for (int round = 0; round < 200; ++round) {
      for (const int count : {8, 2, 1, 5, 3}) {
        on_threads(count, [&](const Chunk& /*chunk*/) {
          const std::scoped_lock lock(mutex);
          ids.insert(std::this_thread::get_id());
        });
      }
    }
    EXPECT_LE(ids.size(), 8);
  }).join();
}

TEST(Threads, APartHasOneThread) {
  std::atomic<int> inner = 0;
  on_threads(4, [&](const Chunk& /*chunk*/) {
    on_threads(4, [&](const Chunk& nested) {
      EXPECT_EQ(nested.count, 1);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 4);
}

TEST(Threads, CallersDoNotShareThem) {
  std::vector<std::thread> callers;
  std::atomic<int> total = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        on_threads(6, [&](const Chunk& /*chunk*/) { ++total; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 20 * 6);
}

// A pool that grows while its threads are late for earlier work.
TEST(Threads, PoolsGrowBetweenCalls) {
  std::thread([] {
    std::atomic<int> total = 0;
    int expected = 0;
    for (int threads = 2; threads <= 64; ++threads) {
      for (int round = 0; round < 4; ++round) {
        on_threads(threads, std::int64_t{3} * threads, [&](const Chunk& /*chunk*/) { ++total; });
        expected += 3 * threads;
      }
    }
    EXPECT_EQ(total, expected);
  }).join();
}

TEST(Threads, ThatSleepAreWoken) {
  constexpr int kMostRounds = 1000;
  on_threads(2, [](const Chunk& /*chunk*/) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::atomic<bool> is_awake = false;
  for (int round = 0; round < kMostRounds && !is_awake; ++round) {
    on_threads(2, [&](const Chunk& chunk) {
      if (chunk.thread == 1) is_awake = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  EXPECT_TRUE(is_awake);
}

// The processor time of threads that wait for a caller which does nothing meanwhile.
TEST(Threads, DoNotWaitActivelyForLong) {
  on_threads(16, [](const Chunk& /*chunk*/) {});
  const std::clock_t start = std::clock();  // of all threads of this process
  on_threads(16, [](const Chunk& chunk) {
    if (chunk.index == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
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

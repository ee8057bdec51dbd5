#include "base/parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace onnxgrad::base {
namespace {

using Parts = std::vector<std::pair<std::int64_t, std::int64_t>>;

Parts parts_of(std::int64_t bytes, int threads) {
  std::mutex mutex;
  Parts parts;
  in_parts(bytes, threads, [&](std::int64_t begin, std::int64_t end) {
    const std::scoped_lock lock(mutex);
    parts.emplace_back(begin, end);
  });
  std::ranges::sort(parts);
  return parts;
}

TEST(Parts, CoverAllBytesOnce) {
  for (const std::int64_t bytes : {0LL, 1LL, 5LL << 20, 17LL << 20, (64LL << 20) + 13}) {
    for (const int threads : {0, 1, 2, 3, 8}) {
      const Parts parts = parts_of(bytes, threads);
      ASSERT_FALSE(parts.empty());
      EXPECT_LE(parts.size(), std::max<std::size_t>(static_cast<std::size_t>(threads), 1));
      std::int64_t end = 0;
      for (const auto& part : parts) {
        EXPECT_EQ(part.first, end);
        end = part.second;
      }
      EXPECT_EQ(end, bytes);
    }
  }
}

TEST(Parts, SmallWorkIsDoneInOnePiece) {
  EXPECT_EQ(parts_of(1 << 20, 8).size(), 1U);
  EXPECT_EQ(parts_of(64 << 20, 4).size(), 4U);
}

TEST(Parts, ErrorsOfThreadsAreThrownAfterAllHaveEnded) {
  std::atomic<int> ended = 0;
  const auto fail_at_the_end = [&](std::int64_t, std::int64_t end) {
    ++ended;
    if (end == std::int64_t{64} << 20) throw std::runtime_error("the last part");
  };
  EXPECT_THROW(in_parts(std::int64_t{64} << 20, 4, fail_at_the_end), std::runtime_error);
  EXPECT_EQ(ended, 4);
  EXPECT_GE(num_processors(), 1);
}

}  // namespace
}  // namespace onnxgrad::base

#include "base/parts.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/memory_budget.h"

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

TEST(Parts, PopulatedMemoryIsResidentAndKeepsItsContents) {
  constexpr std::int64_t kBytes = (std::int64_t{40} << 20) + 1234;
  const std::shared_ptr<std::byte> memory = allocate_zeros(kBytes);
  for (std::int64_t at = 0; at < kBytes; at += 1'000'003) memory.get()[at] = std::byte{7};
  populate(memory.get(), kBytes, 3);
#ifdef MADV_POPULATE_WRITE
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  if (::madvise(memory.get(), static_cast<std::size_t>(page), MADV_POPULATE_WRITE) != 0) {
    GTEST_SKIP() << "this kernel does not know it";
  }
  std::vector<unsigned char> resident(static_cast<std::size_t>(kBytes / page));
  ASSERT_EQ(
      ::mincore(memory.get(), static_cast<std::size_t>(kBytes / page * page), resident.data()), 0);
  EXPECT_TRUE(std::ranges::all_of(resident, [](unsigned char one) { return (one & 1) != 0; }));
#endif
  for (std::int64_t at = 0; at < kBytes; ++at) {
    ASSERT_EQ(memory.get()[at], at % 1'000'003 == 0 ? std::byte{7} : std::byte{0}) << at;
  }
}

}  // namespace
}  // namespace onnxgrad::base

#include "runtime/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::runtime::arena_test {

TEST(ArenaLayout, LiveBuffersNeverOverlap) {
  std::mt19937 random(7);
  ArenaLayout layout(64);
  std::map<std::int64_t, std::int64_t> live;  // offset -> bytes
  for (int i = 0; i < 5000; ++i) {
    if (live.empty() || random() % 2 == 0) {
      const std::int64_t bytes = random() % 1000;
      const std::int64_t offset = layout.allocate(bytes);
      EXPECT_EQ(offset % 64, 0);
      for (const auto& [other, size] : live) {
        ASSERT_TRUE(offset + std::max<std::int64_t>(bytes, 1) <= other ||
                    other + std::max<std::int64_t>(size, 1) <= offset);
      }
      live.emplace(offset, bytes);
      EXPECT_LE(offset + bytes, layout.size_bytes());
    } else {
      const auto victim =
          std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      layout.release(victim->first, victim->second);
      live.erase(victim);
    }
  }
}

TEST(ArenaLayout, ReusesWhatIsFree) {
  ArenaLayout layout(64);
  const std::int64_t a = layout.allocate(128);
  const std::int64_t b = layout.allocate(64);
  layout.allocate(64);
  layout.release(a, 128);
  layout.release(b, 64);  // merges with its neighbour
  EXPECT_EQ(layout.allocate(192), a);
  EXPECT_EQ(layout.size_bytes(), 256);
}

TEST(ArenaLayout, TakesItsAlignmentFromTheDevice) {
  ArenaLayout layout(256);
  layout.allocate(1);
  EXPECT_EQ(layout.allocate(300), 256);
  EXPECT_EQ(layout.size_bytes(), 768);
}

TEST(ArenaLayout, RefusesWhatCannotBeAddressed) {
  ArenaLayout layout(64);
  layout.allocate(std::int64_t{1} << 62);
  EXPECT_THROW(layout.allocate(std::int64_t{1} << 62), DeviceError);
}

// Buffers that are in use together have no byte in common, wherever their lives begin and end.
TEST(PackedArena, LiveBuffersNeverOverlap) {
  struct Buffer {
    std::int64_t name, bytes, left;
    std::size_t first, last;
  };
  std::mt19937 random(8);
  PackedArena arena(64);
  std::vector<Buffer> buffers;
  std::vector<std::size_t> live;
  for (std::size_t time = 0; time < 400; ++time) {
    for (auto count = random() % 3; count > 0; --count) {
      const std::int64_t bytes = random() % 1000;
      live.push_back(buffers.size());
      buffers.push_back({arena.allocate(bytes, time), bytes, bytes, time, 400});
    }
    if (live.empty() || random() % 3 == 0) continue;
    const std::size_t at = random() % live.size();
    Buffer& buffer = buffers[live[at]];
    // From the end, all or a part.
    const std::int64_t part = random() % 2 == 0 ? buffer.left : buffer.left / 2;
    buffer.left -= part;
    arena.release(buffer.name + buffer.left, part, time);
    if (buffer.left > 0) continue;
    buffer.last = time;
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
  }
  arena.pack();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& a = buffers[i];
    const std::int64_t begin = arena.offset_of(a.name);
    EXPECT_EQ(begin % 64, 0);
    EXPECT_LE(begin + a.bytes, arena.size_bytes());
    if (a.bytes > 0) {
      EXPECT_EQ(arena.offset_of(a.name + a.bytes - 1), begin + a.bytes - 1);
    }
    for (std::size_t j = 0; j < i; ++j) {
      const Buffer& b = buffers[j];
      if (b.last < a.first || a.last < b.first) continue;
      const std::int64_t other = arena.offset_of(b.name);
      ASSERT_TRUE(begin + std::max<std::int64_t>(a.bytes, 1) <= other ||
                  other + std::max<std::int64_t>(b.bytes, 1) <= begin);
    }
  }
}

// In the order of time, the small buffer would be where the two large ones go one after the other.
TEST(PackedArena, LeavesNoGapBesideASmallBuffer) {
  PackedArena arena(64);
  const std::int64_t a = arena.allocate(1024, 0);
  const std::int64_t small = arena.allocate(64, 0);
  arena.release(a, 1024, 1);
  const std::int64_t b = arena.allocate(2048, 2);
  arena.release(b, 2048, 3);
  arena.release(small, 64, 4);
  arena.pack();
  EXPECT_EQ(arena.size_bytes(), 2048 + 64);
}

TEST(PackedArena, RefusesWhatCannotBeAddressed) {
  PackedArena arena(64);
  arena.allocate(std::int64_t{1} << 62, 0);
  EXPECT_THROW(arena.allocate(std::int64_t{1} << 62, 0), DeviceError);
}

}  // namespace onnxgrad::runtime::arena_test

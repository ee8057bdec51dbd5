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

}  // namespace onnxgrad::runtime::arena_test

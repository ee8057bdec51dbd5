#ifndef ONNXGRAD_DEVICE_CPU_SCRATCH_LAYOUT_H_
#define ONNXGRAD_DEVICE_CPU_SCRATCH_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "device/cpu/even_split.h"

// Layout of a block of scratch memory. A plan reserves arrays in a ScratchLayout and keeps their
// positions; a call finds the arrays at these positions in the block that it gets.

namespace onnxgrad::device {

/// Alignment in bytes of a block of scratch and of each array in it: a cache line, so that threads
/// with arrays of their own share none.
inline constexpr std::int64_t kScratchAlignment = 64;

/// Returns the bytes of `count` elements of T, rounded up to whole cache lines.
template <class T>
std::int64_t aligned_bytes(std::int64_t count) {
  return round_up(count * static_cast<std::int64_t>(sizeof(T)), kScratchAlignment);
}

/// Returns the number of elements of T that fill the cache lines of `count` elements.
template <class T>
std::int64_t aligned_count(std::int64_t count) {
  return round_up(count, kScratchAlignment / static_cast<std::int64_t>(sizeof(T)));
}

/// Position of an array of T in a block of scratch; false until one is reserved.
template <class T>
struct ScratchArray {
  std::int64_t offset = -1;  ///< in bytes

  explicit operator bool() const { return offset >= 0; }
  T* in(std::byte* block) const { return reinterpret_cast<T*>(block + offset); }
  const T* in(const std::byte* block) const { return reinterpret_cast<const T*>(block + offset); }
};

/// Positions of the threads' blocks, all of the same layout, in a block of scratch.
struct ScratchBlocks {
  std::int64_t offset = 0;      ///< bytes before the first
  std::int64_t size_bytes = 0;  ///< bytes of each

  std::byte* in(std::byte* block, std::int64_t thread) const {
    return block + offset + thread * size_bytes;
  }
};

/// Allocates arrays in a block, one after the other, each aligned to kScratchAlignment.
class ScratchLayout {
 public:
  /// Reserves `count` elements.
  template <class T>
  ScratchArray<T> reserve(std::int64_t count) {
    static_assert(alignof(T) <= kScratchAlignment);
    ONNXGRAD_ASSERT(count >= 0);
    const std::int64_t offset = size_bytes_;
    size_bytes_ += aligned_bytes<T>(count);
    return {offset};
  }

  /// Reserves a block for each of `threads` threads.
  ScratchBlocks reserve_blocks(std::int64_t threads, const ScratchLayout& block) {
    const std::int64_t offset = reserve<std::byte>(threads * block.size_bytes()).offset;
    return {.offset = offset, .size_bytes = block.size_bytes()};
  }

  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  std::int64_t size_bytes_ = 0;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_SCRATCH_LAYOUT_H_

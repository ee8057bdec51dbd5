#ifndef ONNXGRAD_RUNTIME_ARENA_H_
#define ONNXGRAD_RUNTIME_ARENA_H_

#include <cstdint>
#include <map>

namespace onnxgrad::runtime {

/// Lays out buffers in one block of memory: best fit over the free ranges, in chronological order.
class ArenaLayout {
 public:
  /// Buffers begin at multiples of `alignment` bytes.
  explicit ArenaLayout(std::int64_t alignment) : alignment_(alignment) {}

  /// Offset of a new buffer of `bytes` (at least one alignment unit is used).
  /// Throws: DeviceError (the sum of all buffers overflows).
  std::int64_t allocate(std::int64_t bytes);
  /// Frees the range; `bytes` as for allocate.
  void release(std::int64_t offset, std::int64_t bytes);
  /// Required size of the block.
  std::int64_t size_bytes() const { return end_; }

 private:
  std::int64_t rounded(std::int64_t bytes) const;

  std::int64_t alignment_;
  std::map<std::int64_t, std::int64_t> free_;  // offset -> bytes; neighbours are merged
  std::int64_t end_ = 0;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_ARENA_H_

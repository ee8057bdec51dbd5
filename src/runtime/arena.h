#ifndef ONNXGRAD_RUNTIME_ARENA_H_
#define ONNXGRAD_RUNTIME_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "device/device.h"

namespace onnxgrad::runtime {

/// Blocks of memory that belong to the results of a run; a block is reused when no tensor of it is
/// left.
class BlockPool {
 public:
  /// `sizes`: in bytes, of the blocks of a run; they and `device` outlive this.
  BlockPool(const std::vector<std::int64_t>& sizes, device::Device& device)
      : sizes_(sizes), device_(device) {}

  /// Takes a block of each size for the run that begins. Throws: DeviceError.
  void take();
  /// The run has ended: the blocks are its results'.
  void release() { taken_.clear(); }
  bool has_taken(std::size_t block) const { return block < taken_.size(); }
  /// A block of the current run.
  const device::Buffer& taken(std::size_t block) const { return taken_[block]; }
  /// Bytes of the blocks that the pool holds.
  std::int64_t bytes() const;

 private:
  device::Buffer take(std::size_t block);

  const std::vector<std::int64_t>& sizes_;
  device::Device& device_;
  std::vector<device::Buffer> taken_;               // of the current run
  std::vector<std::vector<device::Buffer>> pools_;  // per block, for reuse
};

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
  std::int64_t alignment_;
  std::map<std::int64_t, std::int64_t> free_;  // offset -> bytes; neighbours are merged
  std::int64_t end_ = 0;
};

/// Places buffers for the least memory instead of early reuse: all lifetimes are known before any
/// buffer gets an offset. The largest ones come first, each into the smallest gap between those
/// that it meets (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
/// 2020: greedy by size).
class PackedArena {
 public:
  explicit PackedArena(std::int64_t alignment) : alignment_(alignment) {}

  /// Adds a buffer that is in use from `time` on. Returns its name until pack(), to which offsets
  /// within the buffer may be added. Times do not decrease.
  std::int64_t allocate(std::int64_t bytes, std::size_t time);
  /// Ends the lifetime of a buffer or of a part of it, which is in use at `time` for the last time.
  void release(std::int64_t name, std::int64_t bytes, std::size_t time);

  /// Gives all buffers their places.
  void pack();
  std::int64_t offset_of(std::int64_t name) const;
  std::int64_t size_bytes() const { return end_; }

 private:
  struct Buffer {
    std::int64_t name = 0, bytes = 0;
    std::int64_t left = 0;  ///< bytes that are not released
    std::size_t first = 0, last = std::numeric_limits<std::size_t>::max();
    std::int64_t offset = 0;
  };

  std::size_t index_of(std::int64_t name) const;

  std::int64_t alignment_;
  std::vector<Buffer> buffers_;  // by name
  std::int64_t names_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_ARENA_H_

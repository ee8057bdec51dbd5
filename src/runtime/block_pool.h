#ifndef ONNXGRAD_RUNTIME_BLOCK_POOL_H_
#define ONNXGRAD_RUNTIME_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
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

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_BLOCK_POOL_H_

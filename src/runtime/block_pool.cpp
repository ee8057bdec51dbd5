#include "runtime/block_pool.h"

#include <atomic>

namespace onnxgrad::runtime {

void BlockPool::take() {
  pools_.resize(sizes_.size());
  for (std::size_t b = 0; b < sizes_.size(); ++b) taken_.push_back(take(b));
}

// A block that no result holds any longer, or a new one.
device::Buffer BlockPool::take(std::size_t block) {
  constexpr std::size_t kMostPooled = 4;
  std::vector<device::Buffer>& pool = pools_[block];
  for (const device::Buffer& known : pool) {
    if (known.owner.use_count() != 1) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // the last reader is done
    return known;
  }
  device::Buffer fresh = device_.allocate(sizes_[block]);
  if (pool.size() < kMostPooled) pool.push_back(fresh);
  return fresh;
}

std::int64_t BlockPool::bytes() const {
  std::int64_t total = 0;
  for (std::size_t b = 0; b < pools_.size(); ++b) {
    total += sizes_[b] * static_cast<std::int64_t>(pools_[b].size());
  }
  return total;
}

}  // namespace onnxgrad::runtime

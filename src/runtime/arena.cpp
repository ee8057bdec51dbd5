#include "runtime/arena.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "onnxgrad/error.h"

namespace onnxgrad::runtime {

// Dims refuses tensors above 2^62 bytes, so the sum is safe.
std::int64_t ArenaLayout::rounded(std::int64_t bytes) const {
  return (std::max<std::int64_t>(bytes, 1) + alignment_ - 1) / alignment_ * alignment_;
}

std::int64_t ArenaLayout::allocate(std::int64_t bytes) {
  const std::int64_t wanted = rounded(bytes);
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const bool fits = range->second >= wanted;
    if (fits && (best == free_.end() || range->second < best->second)) best = range;
  }
  if (best == free_.end() && wanted > std::numeric_limits<std::int64_t>::max() - end_) {
    throw DeviceError({.what = "the step needs more memory than can be addressed",
                       .hint = "Use a smaller batch or model."});
  }
  if (best == free_.end()) {
    // A free range at the end grows instead of leaving a gap.
    if (!free_.empty()) {
      const auto last = std::prev(free_.end());
      if (last->first + last->second == end_) {
        const std::int64_t offset = last->first;
        free_.erase(last);
        end_ = offset + wanted;
        return offset;
      }
    }
    const std::int64_t offset = end_;
    end_ += wanted;
    return offset;
  }
  const auto [offset, size] = *best;
  free_.erase(best);
  if (size > wanted) free_.emplace(offset + wanted, size - wanted);
  return offset;
}

void ArenaLayout::release(std::int64_t offset, std::int64_t bytes) {
  auto range = free_.emplace(offset, rounded(bytes)).first;
  if (const auto next = std::next(range);
      next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      free_.erase(range);
    }
  }
}

}  // namespace onnxgrad::runtime

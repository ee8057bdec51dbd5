#include "runtime/arena.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <limits>

#include "base/rounding.h"
#include "onnxgrad/error.h"

namespace onnxgrad::runtime {
namespace {

// Dims refuses tensors above 2^62 bytes, so the sum is safe.
std::int64_t rounded(std::int64_t bytes, std::int64_t alignment) {
  return base::round_up(std::max<std::int64_t>(bytes, 1), alignment);
}

[[noreturn]] void refuse() {
  throw DeviceError({.what = "the step needs more memory than can be addressed",
                     .hint = "Use a smaller batch or model."});
}

}  // namespace

std::int64_t ArenaLayout::allocate(std::int64_t bytes) {
  const std::int64_t wanted = rounded(bytes, alignment_);
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const bool fits = range->second >= wanted;
    if (fits && (best == free_.end() || range->second < best->second)) best = range;
  }
  if (best == free_.end() && wanted > std::numeric_limits<std::int64_t>::max() - end_) {
    refuse();
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
  auto range = free_.emplace(offset, rounded(bytes, alignment_)).first;
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

std::int64_t PackedArena::allocate(std::int64_t bytes, std::size_t time) {
  const std::int64_t size = rounded(bytes, alignment_);
  if (size > std::numeric_limits<std::int64_t>::max() - names_) refuse();
  buffers_.push_back({.name = names_, .bytes = size, .left = bytes, .first = time});
  names_ += size;
  return buffers_.back().name;
}

std::size_t PackedArena::index_of(std::int64_t name) const {
  const auto above = std::ranges::upper_bound(buffers_, name, {}, &Buffer::name);
  return static_cast<std::size_t>(above - buffers_.begin()) - 1;
}

void PackedArena::release(std::int64_t name, std::int64_t bytes, std::size_t time) {
  Buffer& buffer = buffers_[index_of(name)];
  buffer.left -= bytes;
  if (buffer.left <= 0) buffer.last = time;
}

void PackedArena::pack() {
  std::vector<Buffer*> by_size;
  for (Buffer& buffer : buffers_) by_size.push_back(&buffer);
  std::ranges::stable_sort(by_size, std::greater<>(), &Buffer::bytes);
  std::vector<const Buffer*> placed;  // by offset
  for (Buffer* buffer : by_size) {
    std::int64_t begin = 0;  // start of a gap
    std::int64_t best = -1, best_size = std::numeric_limits<std::int64_t>::max();
    for (const Buffer* other : placed) {
      if (other->last < buffer->first || buffer->last < other->first) continue;
      const std::int64_t gap = other->offset - begin;
      if (gap >= buffer->bytes && gap < best_size) best = begin, best_size = gap;
      begin = std::max(begin, other->offset + other->bytes);
    }
    buffer->offset = best < 0 ? begin : best;
    end_ = std::max(end_, buffer->offset + buffer->bytes);
    placed.insert(std::ranges::upper_bound(placed, buffer->offset, {}, &Buffer::offset), buffer);
  }
}

std::int64_t PackedArena::offset_of(std::int64_t name) const {
  const Buffer& buffer = buffers_[index_of(name)];
  return buffer.offset + (name - buffer.name);
}

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

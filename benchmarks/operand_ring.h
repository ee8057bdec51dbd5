#ifndef ONNXGRAD_BENCHMARKS_OPERAND_RING_H_
#define ONNXGRAD_BENCHMARKS_OPERAND_RING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory_budget.h"

namespace onnxgrad::benchmarks {

/// Sets of arrays for a kernel, as many as `bytes` hold, but at least one; in one piece of memory,
/// as in a plan, which has large pages where the system gives them. Each array begins with a cache
/// line and has the value 0.5 everywhere.
template <class T>
class OperandRing {
 public:
  /// `sizes`: elements of each array of a set.
  OperandRing(const std::vector<std::int64_t>& sizes, double bytes) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    std::vector<std::int64_t> starts{0};
    for (const std::int64_t size : sizes) {
      starts.push_back(starts.back() + (size + kLine - 1) / kLine * kLine);
    }
    const std::int64_t each = starts.back();
    starts.pop_back();
    const double fitting = bytes / static_cast<double>(each * std::int64_t{sizeof(T)});
    const std::int64_t count = std::max<std::int64_t>(static_cast<std::int64_t>(fitting), 1);
    memory_ = base::allocate_aligned(count * each * std::int64_t{sizeof(T)});
    T* at = reinterpret_cast<T*>(memory_.get());
    std::fill_n(at, count * each, T(0.5));
    for (std::int64_t i = 0; i < count; ++i, at += each) {
      for (const std::int64_t start : starts) arrays_.push_back(at + start);
    }
    per_set_ = sizes.size();
  }

  /// The arrays of the next set.
  T* const* next() {
    T* const* set = arrays_.data() + at_;
    at_ = (at_ + per_set_) % arrays_.size();
    return set;
  }

 private:
  std::shared_ptr<std::byte> memory_;
  std::vector<T*> arrays_;
  std::size_t per_set_ = 0;
  std::size_t at_ = 0;
};

}  // namespace onnxgrad::benchmarks

#endif  // ONNXGRAD_BENCHMARKS_OPERAND_RING_H_

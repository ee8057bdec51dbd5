#ifndef ONNXGRAD_DEVICE_CPU_EVEN_SPLIT_H_
#define ONNXGRAD_DEVICE_CPU_EVEN_SPLIT_H_

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"

// Arithmetic of blocks and tiles.

namespace onnxgrad::device {

using base::ceil_div;
using base::round_up;

/// `big_count` parts of size `big`, then `small_count` of `big - 1`: no part is much smaller than
/// the others.
struct EvenSplit {
  std::int64_t big = 0;
  std::int64_t big_count = 0;
  std::int64_t small_count = 0;

  std::int64_t count() const { return big_count + small_count; }
  bool is_big(std::int64_t i) const { return i < big_count; }
  std::int64_t size(std::int64_t i) const { return is_big(i) ? big : big - 1; }
  /// Returns the units in the parts before part i.
  std::int64_t first(std::int64_t i) const {
    return i * big - std::max(i - big_count, std::int64_t{0});
  }
};

/// Splits `total` units into as few parts of at most `most` units as possible; none if total is 0.
inline EvenSplit split_evenly(std::int64_t total, std::int64_t most) {
  if (total == 0) return {};
  const std::int64_t parts = ceil_div(total, most);
  const std::int64_t big = ceil_div(total, parts);
  const std::int64_t small_count = big * parts - total;
  return {.big = big, .big_count = parts - small_count, .small_count = small_count};
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_EVEN_SPLIT_H_

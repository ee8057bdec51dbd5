#ifndef ONNXGRAD_DIST_TESTING_ORDERED_VALUES_H_
#define ONNXGRAD_DIST_TESTING_ORDERED_VALUES_H_

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <vector>

namespace onnxgrad::dist_test {

/// Draws numbers of very different magnitudes: sums in another order have other bits.
template <class T>
T element_of(int rank, std::int64_t i) {
  const auto mixed = static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15U +
                     static_cast<std::uint64_t>(rank + 1) * 0xC2B2AE3D27D4EB4FU;
  const auto fraction = static_cast<double>(mixed >> 11) * 0x1p-53 - 0.5;
  if constexpr (std::integral<T>) {
    return static_cast<T>(mixed);
  } else {
    return static_cast<T>(std::ldexp(fraction, static_cast<int>(mixed % 24)));
  }
}

template <class T>
std::vector<T> values_of(int rank, std::int64_t count) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(element_of<T>(rank, i));
  return values;
}

/// Computes the sum by its definition: each block in the order of ranks, then the blocks in order.
template <class T>
T ordered_sum(int size, int block_size, std::int64_t i, const auto& element) {
  T sum{};
  for (int begin = 0; begin < size; begin += block_size) {
    T block = element(begin, i);
    for (int rank = begin + 1; rank < std::min(begin + block_size, size); ++rank) {
      block = static_cast<T>(block + element(rank, i));
    }
    sum = begin == 0 ? block : static_cast<T>(sum + block);
  }
  return sum;
}

template <class T>
bool same_bits(const T& a, const T& b) {
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are what is compared
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace onnxgrad::dist_test

#endif  // ONNXGRAD_DIST_TESTING_ORDERED_VALUES_H_

#ifndef ONNXGRAD_BASE_PHILOX_H_
#define ONNXGRAD_BASE_PHILOX_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

// Philox 4x32-10, the counter-based random generator for everything in onnxgrad: shuffling,
// dropout, initial weights. A draw is a pure function of (seed, stream, position), so it is the
// same on every device and independent of other draws. Source: Salmon, Moraes, Dror, Shaw,
// Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.

namespace onnxgrad::base {

using PhiloxBlock = std::array<std::uint32_t, 4>;

/// Four random words for a 128-bit counter and a 64-bit key.
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// The purpose of a random stream; equal seeds yield unrelated numbers in different streams.
enum class RandomUse : std::uint32_t {
  kShuffle = 1,     ///< index: the epoch
  kValidation = 2,  ///< index: 0
  kWeights = 3,     ///< index: number of the weight
  kOperator = 4,    ///< index: number of the node; dropout masks and the like
  kWindows = 5,     ///< index: the epoch
};

/// The stream (seed, use, index) read in order.
class PhiloxStream {
 public:
  PhiloxStream(std::uint64_t seed, RandomUse use, std::uint32_t index)
      : seed_(seed), use_(static_cast<std::uint32_t>(use)), index_(index) {}

  /// Uniform on all 32-bit numbers.
  std::uint32_t next() {
    if (used_ == 4) {
      block_ = philox4x32({static_cast<std::uint32_t>(position_),
                           static_cast<std::uint32_t>(position_ >> 32), index_, use_},
                          seed_);
      ++position_;
      used_ = 0;
    }
    return block_[used_++];
  }
  /// Uniform on {0, ..., bound - 1}, without bias (Lemire, 2019). 0 < bound <= 2^32.
  std::uint64_t below(std::uint64_t bound) {
    std::uint64_t product = std::uint64_t{next()} * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint64_t reject = (std::uint64_t{1} << 32) % bound;
      while (static_cast<std::uint32_t>(product) < reject) product = std::uint64_t{next()} * bound;
    }
    return product >> 32;
  }
  /// Uniform on (0, 1), 53 bits.
  double uniform() {
    const std::uint64_t high = next();
    const std::uint64_t bits = (high << 32 | next()) >> 11;
    return (static_cast<double>(bits) + 0.5) * 0x1p-53;
  }
  /// Standard normal, by Box and Muller; the second of each pair is not kept.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t seed_;
  std::uint32_t use_;
  std::uint32_t index_;
  std::uint64_t position_ = 0;
  PhiloxBlock block_{};
  unsigned used_ = 4;
};

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_PHILOX_H_

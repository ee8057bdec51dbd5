#ifndef ONNXGRAD_TRAIN_DATA_SAMPLER_H_
#define ONNXGRAD_TRAIN_DATA_SAMPLER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace onnxgrad::train {

/// Fills `order` with a uniformly random permutation of {0, ..., order.size() - 1} that is a pure
/// function of (seed, epoch) and the size: the same on every machine and independent of earlier
/// draws. Fisher-Yates with Philox. Allocates nothing. At most 2^32 rows.
void shuffle_rows(std::uint64_t seed, std::uint32_t epoch, std::span<std::int64_t> order);

/// A random permutation of {0, ..., size - 1} without an array: a bijection with a key, a function
/// of (seed, epoch) and the size. A Feistel network of eight rounds over the next power of 2, with
/// keys from Philox; numbers that are not below `size` are permuted again until they are (cycle
/// walking: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002), on average less
/// than twice for 128 numbers and more.
class KeyedPermutation {
 public:
  KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint32_t epoch);
  /// The number at `position`, which is below size.
  std::uint64_t operator()(std::uint64_t position) const {
    do position = permute(position);
    while (position >= size_);
    return position;
  }
  /// Writes the numbers at positions first, first + 1, ...; faster than one call for each.
  void fill(std::uint64_t first, std::span<std::int64_t> numbers) const;

 private:
  static constexpr std::size_t kRounds = 8;
  static std::uint32_t mix(std::uint32_t word, std::uint32_t key) {
    word = (word ^ key) * 0x9E3779B1U;
    word = (word ^ (word >> 15U)) * 0x85EBCA77U;
    return word ^ (word >> 13U);
  }
  std::uint64_t permute(std::uint64_t position) const {
    auto high = static_cast<std::uint32_t>(position >> low_bits_);
    auto low = static_cast<std::uint32_t>(position) & low_mask_;
    for (std::size_t round = 0; round < kRounds; round += 2) {
      high ^= mix(low, keys_[round]) & high_mask_;
      low ^= mix(high, keys_[round + 1]) & low_mask_;
    }
    return std::uint64_t{high} << low_bits_ | low;
  }

  std::uint64_t size_;
  int low_bits_ = 0;
  std::uint32_t low_mask_ = 0;
  std::uint32_t high_mask_ = 0;
  std::array<std::uint32_t, kRounds> keys_{};
};

/// Number of full batches that would cover `rows` rows once: ceil(rows / batch_size).
std::int64_t count_windows(std::int64_t rows, std::int64_t batch_size);

/// Fills `order` with windows of `batch_size` consecutive rows, one after another: each begins at
/// a row drawn uniformly from {0, ..., rows - batch_size}, a pure function of (seed, epoch), the
/// sizes and the number of the window. Rows can occur more than once in an epoch, or not at all.
/// Allocates nothing. batch_size is at most rows, order.size() a multiple of batch_size.
void draw_windows(std::uint64_t seed, std::uint32_t epoch, std::int64_t rows,
                  std::int64_t batch_size, std::span<std::int64_t> order);

/// Fills `order` with rows drawn with replacement, row i with probability weights[i] / sum of all:
/// a function of (seed, epoch), the weights and the number of the draw. The weights are finite, at
/// least 0, and one is positive.
void draw_weighted(std::uint64_t seed, std::uint32_t epoch, std::span<const double> weights,
                   std::span<std::int64_t> order);

/// Rows of positive weight, at most `most`, drawn without replacement one after another, each with
/// a probability proportional to its weight among those that are left: in increasing order of
/// -log(u) / weight (Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006).
std::vector<std::int64_t> draw_without_replacement(std::uint64_t seed, std::uint32_t epoch,
                                                   std::span<const double> weights,
                                                   std::int64_t most);

/// Rows that draw_balanced() draws and shuffles at a time, so that the first ones do not depend on
/// how many follow.
inline constexpr std::int64_t kDrawnTogether = std::int64_t{1} << 16;

/// `rows` rows of which each class has the same number (up to one), in random order; `members`:
/// the rows of each class, none of them empty. Without replacement each class has at most as many
/// as the smallest one.
std::vector<std::int64_t> draw_balanced(std::uint64_t seed, std::uint32_t epoch,
                                        std::span<const std::vector<std::int64_t>> members,
                                        bool replacement, std::int64_t rows);

/// Rows for training and rows for validation, each in increasing order.
struct Split {
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> validation;
};

/// A random fraction of the rows: round(fraction * n), at least one row on each side; a function of
/// seed. Throws: DataError (fewer than two rows, fraction not in (0, 1)).
Split split_rows(std::int64_t rows, double fraction, std::uint64_t seed);

/// A random fraction of the rows, stratified by class: each class contributes floor(fraction *
/// count) rows, and the remaining rows come from the classes with the largest remainders. A class
/// with one row stays in training. classes: [N] class numbers in [0, num_classes).
Split split_rows_stratified(std::span<const std::int64_t> classes, std::int64_t num_classes,
                            double fraction, std::uint64_t seed);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_SAMPLER_H_

#include "train/data/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/philox.h"

namespace onnxgrad::train {
namespace {

using base::PhiloxStream;
using base::RandomUse;

constexpr auto kSampling = static_cast<RandomUse>(0x103);  // apart from the other streams

void permute(PhiloxStream stream, std::span<std::int64_t> order) {
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[stream.below(i)]);
}

void check_split(std::int64_t rows, double fraction) {
  const bool is_share = fraction > 0 && fraction < 1;  // false for NaN
  if (!is_share) {
    throw DataError(
        {.what = "validation fraction " + std::to_string(fraction) + " is not between 0 and 1",
         .hint = "Give a fraction of the rows, such as 0.1, or a separate data set."});
  }
  if (rows < 2) {
    throw DataError({.what = std::to_string(rows) + " rows cannot be split for validation",
                     .hint = "Train without validation, or give separate rows for it."});
  }
}

// Moves the marked rows to `validation`.
Split divide(const std::vector<bool>& marked) {
  Split split;
  for (std::size_t i = 0; i < marked.size(); ++i) {
    (marked[i] ? split.validation : split.train).push_back(static_cast<std::int64_t>(i));
  }
  return split;
}

std::int64_t wanted_rows(std::int64_t rows, double fraction) {
  const auto wanted = static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(rows)));
  return std::clamp<std::int64_t>(wanted, 1, rows - 1);
}

// Number of rows of each class that go to validation.
std::vector<std::int64_t> quotas(const std::vector<std::vector<std::int64_t>>& members,
                                 double fraction, std::int64_t wanted) {
  std::vector<std::int64_t> quota(members.size(), 0);
  std::vector<double> remainder(members.size(), 0);
  std::int64_t total = 0;
  for (std::size_t c = 0; c < members.size(); ++c) {
    const double share = fraction * static_cast<double>(members[c].size());
    quota[c] = static_cast<std::int64_t>(share);
    remainder[c] = share - static_cast<double>(quota[c]);
    total += quota[c];
  }
  std::vector<std::size_t> by_remainder(members.size());
  std::iota(by_remainder.begin(), by_remainder.end(), std::size_t{0});
  std::ranges::sort(by_remainder, [&](std::size_t a, std::size_t b) {
    return remainder[a] != remainder[b] ? remainder[a] > remainder[b] : a < b;
  });
  for (const std::size_t c : by_remainder) {
    if (total >= wanted) break;
    if (quota[c] + 1 >= static_cast<std::int64_t>(members[c].size())) continue;
    ++quota[c];
    ++total;
  }
  return quota;
}

}  // namespace

void shuffle_rows(std::uint64_t seed, std::uint32_t epoch, std::span<std::int64_t> order) {
  ONNXGRAD_ASSERT(order.size() <= std::size_t{1} << 32);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  permute(PhiloxStream(seed, RandomUse::kShuffle, epoch), order);
}

KeyedPermutation::KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint32_t epoch)
    : size_(size) {
  constexpr std::uint32_t kUse = 0x100;  // apart from the streams of RandomUse
  constexpr int kFewestBits = 8;         // networks over fewer are not uniform
  const int bits = std::max(static_cast<int>(std::bit_width(size - 1)), kFewestBits);
  const auto mask = [](int count) {
    return static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
  };
  low_bits_ = bits / 2;
  low_mask_ = mask(low_bits_);
  high_mask_ = mask(bits - low_bits_);
  for (std::uint32_t i = 0; i < kRounds; i += 4) {
    const base::PhiloxBlock words = base::philox4x32({i, 0, epoch, kUse}, seed);
    std::ranges::copy(words, keys_.begin() + i);
  }
}

void KeyedPermutation::fill(std::uint64_t first, std::span<std::int64_t> numbers) const {
  std::uint64_t position = first;
  for (std::int64_t& number : numbers) number = static_cast<std::int64_t>(permute(position++));
  for (std::int64_t& number : numbers) {
    while (static_cast<std::uint64_t>(number) >= size_) {
      number = static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(number)));
    }
  }
}

std::int64_t count_windows(std::int64_t rows, std::int64_t batch_size) {
  return rows / batch_size + (rows % batch_size > 0 ? 1 : 0);
}

void draw_windows(std::uint64_t seed, std::uint32_t epoch, std::int64_t rows,
                  std::int64_t batch_size, std::span<std::int64_t> order) {
  const auto size = static_cast<std::size_t>(batch_size);
  ONNXGRAD_ASSERT(batch_size > 0 && batch_size <= rows && order.size() % size == 0);
  PhiloxStream stream(seed, RandomUse::kWindows, epoch);
  const auto starts = static_cast<std::uint64_t>(rows - batch_size + 1);
  for (std::size_t begin = 0; begin < order.size(); begin += size) {
    const auto window = order.subspan(begin, size);
    std::iota(window.begin(), window.end(), static_cast<std::int64_t>(stream.below(starts)));
  }
}

void draw_weighted(std::uint64_t seed, std::uint32_t epoch, std::span<const double> weights,
                   std::span<std::int64_t> order) {
  std::vector<double> sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  PhiloxStream stream(seed, kSampling, epoch);
  for (std::int64_t& row : order) {
    const double place = stream.uniform() * sums.back();
    auto found = std::ranges::upper_bound(sums, place);
    if (found == sums.end()) found = std::ranges::lower_bound(sums, sums.back());  // rounding
    row = found - sums.begin();
  }
}

std::vector<std::int64_t> draw_without_replacement(std::uint64_t seed, std::uint32_t epoch,
                                                   std::span<const double> weights,
                                                   std::int64_t most) {
  PhiloxStream stream(seed, kSampling, epoch);
  std::vector<std::pair<double, std::int64_t>> keys;
  for (std::size_t row = 0; row < weights.size(); ++row) {
    const double key = -std::log(stream.uniform()) / weights[row];
    if (weights[row] > 0) keys.emplace_back(key, static_cast<std::int64_t>(row));
  }
  const auto end = keys.begin() + std::min<std::ptrdiff_t>(most, std::ssize(keys));
  std::ranges::partial_sort(keys, end);
  std::vector<std::int64_t> order;
  for (auto key = keys.begin(); key != end; ++key) order.push_back(key->second);
  return order;
}

std::vector<std::int64_t> draw_balanced(std::uint64_t seed, std::uint32_t epoch,
                                        std::span<const std::vector<std::int64_t>> members,
                                        bool replacement, std::int64_t rows) {
  PhiloxStream stream(seed, kSampling, epoch);
  const auto classes = std::ssize(members);
  std::vector<std::int64_t> order;
  const auto shuffle = [&stream](std::span<std::int64_t> drawn) {
    for (std::size_t i = drawn.size(); i > 1; --i) std::swap(drawn[i - 1], drawn[stream.below(i)]);
  };
  if (replacement) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto& rows_of_class = members[static_cast<std::size_t>(i % classes)];
      order.push_back(rows_of_class[stream.below(rows_of_class.size())]);
      if (std::ssize(order) % kDrawnTogether == 0) {
        shuffle(std::span(order).last(static_cast<std::size_t>(kDrawnTogether)));
      }
    }
    shuffle(std::span(order).last(order.size() % static_cast<std::size_t>(kDrawnTogether)));
    return order;
  }
  std::int64_t each = (rows + classes - 1) / classes;
  for (const auto& rows_of_class : members) each = std::min(each, std::ssize(rows_of_class));
  for (std::vector<std::int64_t> rows_of_class : members) {
    // The first ones of a shuffle.
    for (std::int64_t i = 0; i < each; ++i) {
      const auto left = static_cast<std::uint64_t>(std::ssize(rows_of_class) - i);
      std::swap(rows_of_class[static_cast<std::size_t>(i)],
                rows_of_class[static_cast<std::size_t>(i) + stream.below(left)]);
      order.push_back(rows_of_class[static_cast<std::size_t>(i)]);
    }
  }
  shuffle(order);
  return order;
}

Split split_rows(std::int64_t rows, double fraction, std::uint64_t seed) {
  check_split(rows, fraction);
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  permute(PhiloxStream(seed, RandomUse::kValidation, 0), order);
  std::vector<bool> marked(order.size(), false);
  const std::int64_t wanted = wanted_rows(rows, fraction);
  for (std::int64_t i = 0; i < wanted; ++i) {
    marked[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
  }
  return divide(marked);
}

Split split_rows_stratified(std::span<const std::int64_t> classes, std::int64_t num_classes,
                            double fraction, std::uint64_t seed) {
  const auto rows = static_cast<std::int64_t>(classes.size());
  check_split(rows, fraction);
  std::vector<std::vector<std::int64_t>> members(static_cast<std::size_t>(num_classes));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto c = static_cast<std::size_t>(classes[static_cast<std::size_t>(row)]);
    ONNXGRAD_ASSERT(c < members.size());
    members[c].push_back(row);
  }
  const auto quota = quotas(members, fraction, wanted_rows(rows, fraction));
  if (std::accumulate(quota.begin(), quota.end(), std::int64_t{0}) == 0) {
    return split_rows(rows, fraction, seed);  // classes too small for a stratified row each
  }
  std::vector<bool> marked(classes.size(), false);
  for (std::size_t c = 0; c < members.size(); ++c) {
    permute(PhiloxStream(seed, RandomUse::kValidation, static_cast<std::uint32_t>(c + 1)),
            members[c]);
    for (std::int64_t i = 0; i < quota[c]; ++i) {
      marked[static_cast<std::size_t>(members[c][static_cast<std::size_t>(i)])] = true;
    }
  }
  return divide(marked);
}

}  // namespace onnxgrad::train

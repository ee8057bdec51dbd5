#ifndef ONNXGRAD_DEVICE_TESTING_GEMM_CHECKS_H_
#define ONNXGRAD_DEVICE_TESTING_GEMM_CHECKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/memory_budget.h"
#include "device/cpu/gemm.h"

// Checks of float32 and float64 GEMM against sums in float64, for any implementation.

namespace onnxgrad::device {

template <class T>
std::vector<T> random_numbers(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<T> numbers(static_cast<std::size_t>(count));
  for (T& number : numbers) number = static_cast<T>(normal(random));
  return numbers;
}

/// Exact element of a matrix product, and a bound of the rounding errors of any order of its sum.
struct Expected {
  double value = 0;
  double bound = 0;
};

template <class T>
Expected expected_at(const GemmSpec& spec, const std::vector<T>& a, const std::vector<T>& b,
                     const std::vector<T>& start, double factor, std::int64_t i, std::int64_t j) {
  const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
  double sum = 0;
  double size = 0;
  for (std::int64_t k = 0; k < spec.k; ++k) {
    const T x = a[at(spec.transpose_a ? k * spec.m + i : i * spec.k + k)];
    const T y = b[at(spec.transpose_b ? j * spec.k + k : k * spec.n + j)];
    sum += static_cast<double>(x) * static_cast<double>(y);
    size += std::abs(static_cast<double>(x) * static_cast<double>(y));
  }
  const double scale = spec.alpha * factor;
  double value = scale * sum;
  size *= std::abs(scale);
  if (spec.start != GemmStart::kZero) {
    const auto addend =
        static_cast<double>(start[at(spec.start == GemmStart::kRow ? j : i * spec.n + j)]);
    value += addend;
    size += std::abs(addend);
  }
  if (spec.relu) value = std::max(value, 0.0);
  const double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
  return {value, epsilon * (static_cast<double>(spec.k) + 4) * size + 1e-300};
}

template <class T>
void check(const GemmSpec& spec, std::mt19937& random, double factor, bool in_place) {
  const auto a = random_numbers<T>(spec.m * spec.k, random);
  const auto b = random_numbers<T>(spec.n * spec.k, random);
  const auto start =
      random_numbers<T>(spec.start == GemmStart::kRow ? spec.n : spec.m * spec.n, random);
  const PreparedGemm gemm = prepare_gemm(spec);
  std::shared_ptr<std::byte> packed;
  if (spec.b_is_packed) {
    packed = base::allocate_aligned(packed_b_elements(spec) * std::int64_t{sizeof(T)});
    pack_gemm_b(spec, b.data(), packed.get());
  }
  // A guard after C shows writes beyond its end.
  constexpr std::size_t kGuard = 64;
  std::vector<T> c(static_cast<std::size_t>(spec.m * spec.n) + kGuard, T(77));
  if (in_place) std::copy(start.begin(), start.end(), c.begin());
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
  std::fill_n(scratch.get(), gemm.scratch_bytes + 64, std::byte{0xFF});
  gemm({.a = a.data(),
        .b = packed != nullptr ? static_cast<const void*>(packed.get()) : b.data(),
        .start = in_place ? c.data() : start.data(),
        .c = c.data(),
        .scratch = scratch.get(),
        .factor = factor});
  const bool all_rows = spec.m * spec.n * spec.k < 1000000;
  for (std::int64_t i = 0; i < spec.m; ++i) {
    if (!all_rows && i % 13 != 0 && i != spec.m - 1) continue;
    for (std::int64_t j = 0; j < spec.n; ++j) {
      const Expected expected = expected_at(spec, a, b, start, factor, i, j);
      const auto given = static_cast<double>(c[static_cast<std::size_t>(i * spec.n + j)]);
      ASSERT_LE(std::abs(given - expected.value), expected.bound)
          << gemm.label << " at [" << i << ", " << j << "]: " << given << ", expected "
          << expected.value << " (transposes " << spec.transpose_a << spec.transpose_b << ", start "
          << static_cast<int>(spec.start) << ", in place " << in_place << ")";
    }
  }
  for (std::size_t i = 0; i < kGuard; ++i) {
    ASSERT_EQ(c[c.size() - 1 - i], T(77)) << gemm.label << " writes past the end of C";
  }
  for (std::int64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(scratch.get()[gemm.scratch_bytes + i], std::byte{0xFF})
        << gemm.label << " writes past its scratch";
  }
}

/// Checks a GEMM with each shape of `start` and a random epilogue.
template <class T>
void check_variants(GemmSpec spec, std::mt19937& random) {
  spec.dtype = dtype_of<T>();
  for (const GemmStart start : {GemmStart::kZero, GemmStart::kRow, GemmStart::kMatrix}) {
    spec.start = start;
    spec.relu = random() % 2 == 0;
    spec.alpha = random() % 2 == 0 ? 1 : -0.75;
    spec.has_run_time_factor = random() % 2 == 0;
    const double factor = spec.has_run_time_factor ? 0.5 : 1;
    check<T>(spec, random, factor, start == GemmStart::kMatrix && random() % 2 == 0);
  }
}

/// Checks `count` addends besides `start`, rows and matrices, one of them C itself.
template <class T>
void check_more_addends(GemmSpec spec, std::mt19937& random, std::size_t count = 3) {
  spec.dtype = dtype_of<T>();
  spec.start = random() % 2 == 0 ? GemmStart::kRow : GemmStart::kMatrix;
  spec.more = {GemmStart::kMatrix, GemmStart::kRow, GemmStart::kMatrix};
  std::fill(spec.more.begin() + static_cast<std::ptrdiff_t>(count), spec.more.end(),
            GemmStart::kZero);
  const auto a = random_numbers<T>(spec.m * spec.k, random);
  const auto b = random_numbers<T>(spec.n * spec.k, random);
  auto start = random_numbers<T>(spec.start == GemmStart::kRow ? spec.n : spec.m * spec.n, random);
  const auto matrix = random_numbers<T>(spec.m * spec.n, random);
  const auto row = random_numbers<T>(spec.n, random);
  const auto other = random_numbers<T>(spec.m * spec.n, random);
  const PreparedGemm gemm = prepare_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
  std::vector<T> c = matrix;
  gemm({.a = a.data(),
        .b = b.data(),
        .start = start.data(),
        .c = c.data(),
        .scratch = scratch.get(),
        .more = {c.data(), row.data(), other.data()}});
  // Expected results are those of one addend, the sum of all of them.
  std::vector<T> sums = matrix;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t column = i % static_cast<std::size_t>(spec.n);
    if (count > 1) sums[i] += row[column];
    if (count > 2) sums[i] += other[i];
    sums[i] += start[spec.start == GemmStart::kRow ? column : i];
  }
  GemmSpec plain = spec;
  plain.start = GemmStart::kMatrix;
  plain.more = {};
  for (std::int64_t i = 0; i < spec.m; ++i) {
    for (std::int64_t j = 0; j < spec.n; ++j) {
      const Expected expected = expected_at(plain, a, b, sums, 1, i, j);
      const auto given = static_cast<double>(c[static_cast<std::size_t>(i * spec.n + j)]);
      ASSERT_LE(std::abs(given - expected.value),
                expected.bound + 20 * static_cast<double>(std::numeric_limits<T>::epsilon()))
          << gemm.label << " at [" << i << ", " << j << "]";
    }
  }
}

/// Checks a GEMM whose elements are multiplied by those of a matrix, and the sums of its columns.
template <class T>
void check_scaled(GemmSpec spec, std::mt19937& random) {
  spec.dtype = dtype_of<T>();
  const auto a = random_numbers<T>(spec.m * spec.k, random);
  const auto b = random_numbers<T>(spec.n * spec.k, random);
  const auto start =
      random_numbers<T>(spec.start == GemmStart::kRow ? spec.n : spec.m * spec.n, random);
  const auto scales = random_numbers<T>(spec.m * spec.n, random);
  ASSERT_TRUE(can_scale(spec));
  const PreparedGemm gemm = prepare_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
  std::fill_n(scratch.get(), gemm.scratch_bytes + 64, std::byte{0xFF});
  std::vector<T> c(static_cast<std::size_t>(spec.m * spec.n));
  std::vector<T> sums(static_cast<std::size_t>(spec.n) + 1, T(77));
  gemm({.a = a.data(),
        .b = b.data(),
        .start = start.data(),
        .c = c.data(),
        .scratch = scratch.get(),
        .scales = scales.data(),
        .column_sums = sums.data()});
  const auto epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (std::int64_t j = 0; j < spec.n; ++j) {
    double sum = 0;
    double bound = 0;
    for (std::int64_t i = 0; i < spec.m; ++i) {
      const auto at = static_cast<std::size_t>(i * spec.n + j);
      const Expected expected = expected_at(spec, a, b, start, 1, i, j);
      const double scale = spec.is_scaled ? static_cast<double>(scales[at]) : 1;
      const double allowed =
          std::abs(scale) * (expected.bound + epsilon * std::abs(expected.value));
      ASSERT_LE(std::abs(static_cast<double>(c[at]) - scale * expected.value), allowed)
          << gemm.label << " at [" << i << ", " << j << "]";
      sum += scale * expected.value;
      bound += allowed + 30 * epsilon * std::abs(scale * expected.value);
    }
    const auto at = static_cast<std::size_t>(j);
    if (spec.sums_columns) {
      ASSERT_LE(std::abs(static_cast<double>(sums[at]) - sum), bound) << gemm.label << " " << j;
    }
  }
  ASSERT_EQ(sums.back(), T(77)) << gemm.label << " writes past the sums";
  for (std::int64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(scratch.get()[gemm.scratch_bytes + i], std::byte{0xFF}) << gemm.label;
  }
}

/// Collects the parts of C; threads write disjoint ones.
template <class T>
struct Collected {
  std::int64_t columns = 0;
  std::vector<T> c;
  std::vector<unsigned char> times;

  static void add(const void* context, const GemmBlock& block) {
    auto& all = *static_cast<Collected*>(const_cast<void*>(context));
    for (std::int64_t i = 0; i < block.rows; ++i) {
      for (std::int64_t j = 0; j < block.columns; ++j) {
        const auto at = static_cast<std::size_t>((block.row + i) * all.columns + block.column + j);
        all.c[at] = static_cast<const T*>(block.c)[i * block.c_row + j];
        ++all.times[at];
      }
    }
  }
};

template <class T>
void check_consumer(GemmSpec spec, std::mt19937& random) {
  spec.dtype = dtype_of<T>();
  const auto a = random_numbers<T>(spec.m * spec.k, random);
  const auto b = random_numbers<T>(spec.n * spec.k, random);
  ASSERT_TRUE(can_have_consumer(spec));
  spec.has_consumer = true;
  const PreparedGemm gemm = prepare_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
  std::fill_n(scratch.get(), gemm.scratch_bytes + 64, std::byte{0xFF});
  const auto size = static_cast<std::size_t>(spec.m * spec.n);
  Collected<T> all{spec.n, std::vector<T>(size), std::vector<unsigned char>(size)};
  const std::vector<T> reads_next(size);
  gemm({.a = a.data(),
        .b = b.data(),
        .scratch = scratch.get(),
        .finished = Collected<T>::add,
        .context = &all,
        .reads_next = {reads_next.data(), nullptr, reads_next.data()}});
  for (std::size_t i = 0; i < size; ++i) {
    ASSERT_EQ(all.times[i], 1) << gemm.label << " at " << i;
    if (i % 7 != 0 && i + 1 != size) continue;
    const auto n = static_cast<std::size_t>(spec.n);
    const Expected expected = expected_at(spec, a, b, {}, 1, static_cast<std::int64_t>(i / n),
                                          static_cast<std::int64_t>(i % n));
    ASSERT_LE(std::abs(static_cast<double>(all.c[i]) - expected.value), expected.bound)
        << gemm.label << " at " << i;
  }
  for (std::int64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(scratch.get()[gemm.scratch_bytes + i], std::byte{0xFF}) << gemm.label;
  }
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_TESTING_GEMM_CHECKS_H_

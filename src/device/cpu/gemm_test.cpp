#include "device/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "device/testing/instruction_sets.h"

namespace onnxgrad::device::gemm_test {
namespace {

template <class T>
std::vector<T> random_numbers(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<T> numbers(static_cast<std::size_t>(count));
  for (T& number : numbers) number = static_cast<T>(normal(random));
  return numbers;
}

/// What a product should be, and a bound of the rounding errors of any order of the sums.
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

/// Any of the ways to start and end a product.
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

constexpr GemmChoice kChoices[] = {GemmChoice::kBest, GemmChoice::kTiles, GemmChoice::kDots,
                                   GemmChoice::kBlocked, GemmChoice::kBlockedStrips};

TEST(Gemm, SmallProductsOfAllShapes) {
  for_each_instruction_set([] {
    std::mt19937 random(1);
    const std::int64_t sizes[] = {0, 1, 2, 3, 7, 10, 15, 16, 17, 33, 50};
    for (const std::int64_t m : sizes) {
      for (const std::int64_t n : sizes) {
        for (const std::int64_t k : {0, 1, 2, 9, 33}) {
          GemmSpec spec{.m = m, .n = n, .k = k};
          spec.transpose_a = random() % 2 == 0;
          spec.transpose_b = random() % 2 == 0;
          spec.choice = kChoices[random() % std::size(kChoices)];
          check_variants<float>(spec, random);
          spec.choice = kChoices[random() % std::size(kChoices)];
          check_variants<double>(spec, random);
        }
      }
    }
  });
}

template <class T>
void check_packed(GemmSpec spec, std::mt19937& random) {
  spec.dtype = dtype_of<T>();
  if (!can_pack_b(spec)) return;
  spec.b_is_packed = true;
  check_variants<T>(spec, random);
}

TEST(Gemm, PackedB) {
  for_each_instruction_set([] {
    std::mt19937 random(3);
    for (const std::int64_t m : {1, 2, 5, 16, 33, 200}) {
      for (const std::int64_t n : {2, 15, 16, 63, 65, 130, 600}) {
        for (const std::int64_t k : {1, 9, 100, 300}) {
          if (m * n * k > 8000000) continue;
          GemmSpec spec{.m = m, .n = n, .k = k};
          spec.transpose_b = random() % 2 == 0;
          spec.threads = static_cast<int>(random() % 4) + 1;
          check_packed<float>(spec, random);
          check_packed<double>(spec, random);
        }
      }
    }
  });
}

TEST(Gemm, PackedBGivesTheSameBits) {
  std::mt19937 random(4);
  for (const auto& [m, n, k] :
       {std::tuple{1, 512, 784}, {32, 130, 300}, {128, 770, 768}, {300, 600, 520}, {7, 2000, 40}}) {
    const auto a = random_numbers<float>(m * k, random);
    const auto b = random_numbers<float>(k * n, random);
    for (const int threads : {1, 2, 3}) {
      GemmSpec spec{.m = m, .n = n, .k = k, .threads = threads};
      ASSERT_TRUE(can_pack_b(spec));
      const auto packed = base::allocate_aligned(packed_b_elements(spec) * 4);
      pack_gemm_b(spec, b.data(), packed.get());
      std::vector<std::vector<float>> results;
      for (const bool is_packed : {false, true}) {
        spec.b_is_packed = is_packed;
        const PreparedGemm gemm = prepare_gemm(spec);
        const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
        std::vector<float>& c = results.emplace_back(static_cast<std::size_t>(m * n));
        gemm({.a = a.data(),
              .b = is_packed ? static_cast<const void*>(packed.get()) : b.data(),
              .c = c.data(),
              .scratch = scratch.get()});
      }
      EXPECT_EQ(results[0], results[1]) << m << "x" << n << "x" << k << ", threads " << threads;
    }
  }
}

TEST(Gemm, LargeProductsByEveryImplementation) {
  std::mt19937 random(2);
  for (const auto& [m, n, k] :
       {std::tuple{200, 530, 270}, {65, 97, 300}, {300, 10, 250}, {12, 1000, 70}}) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      for (const GemmChoice choice : kChoices) {
        for (const int threads : {1, 2}) {
          GemmSpec spec{.m = m, .n = n, .k = k};
          spec.transpose_a = transposes % 2 != 0;
          spec.transpose_b = transposes / 2 != 0;
          spec.threads = threads;
          spec.choice = choice;
          check_variants<float>(spec, random);
          check_variants<double>(spec, random);
        }
      }
    }
  }
}

TEST(Gemm, ThreadsChangeNoBit) {
  std::mt19937 random(3);
  for (const auto& [m, n, k] : {std::tuple{150, 150, 150}, {7, 900, 100}, {900, 7, 100}}) {
    const auto a = random_numbers<float>(m * k, random);
    const auto b = random_numbers<float>(n * k, random);
    for (const GemmChoice choice : kChoices) {
      std::vector<float> expected;
      for (int threads = 1; threads <= 5; ++threads) {
        const PreparedGemm gemm =
            prepare_gemm({.m = m, .n = n, .k = k, .threads = threads, .choice = choice});
        std::vector<float> c(static_cast<std::size_t>(m * n));
        const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
        gemm({.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
        if (threads == 1) expected = c;
        EXPECT_EQ(c, expected) << gemm.label << ", " << threads << " threads";
      }
    }
  }
}

// Rows and matrices that are added besides the start, one of them C itself.
template <class T>
void check_more_addends(GemmSpec spec, std::mt19937& random) {
  spec.dtype = dtype_of<T>();
  spec.start = random() % 2 == 0 ? GemmStart::kRow : GemmStart::kMatrix;
  spec.more = {GemmStart::kMatrix, GemmStart::kRow, GemmStart::kMatrix};
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
  // What the product alone gives for the sum of all of them.
  std::vector<T> sums = matrix;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t column = i % static_cast<std::size_t>(spec.n);
    sums[i] += row[column] + other[i] + start[spec.start == GemmStart::kRow ? column : i];
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

TEST(Gemm, StripsOfAChangeNoBit) {
  for_each_instruction_set([] {
    std::mt19937 random(11);
    for (const auto& [m, n, k] : {std::tuple{205, 531, 270}, {7, 40, 9}, {193, 65, 256}}) {
      const auto a = random_numbers<float>(m * k, random);
      const auto b = random_numbers<float>(n * k, random);
      std::vector<float> c[2];
      for (const GemmChoice choice : {GemmChoice::kBlocked, GemmChoice::kBlockedStrips}) {
        const PreparedGemm gemm =
            prepare_gemm({.m = m, .n = n, .k = k, .transpose_a = true, .choice = choice});
        std::vector<float>& found = c[choice == GemmChoice::kBlocked ? 0 : 1];
        found.resize(static_cast<std::size_t>(m * n));
        const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
        gemm({.a = a.data(), .b = b.data(), .c = found.data(), .scratch = scratch.get()});
      }
      EXPECT_EQ(c[0], c[1]) << m << "x" << n << "x" << k;
    }
  });
}

TEST(Gemm, AddsSeveralOperands) {
  for_each_instruction_set([] {
    std::mt19937 random(4);
    for (const auto& [m, n, k] :
         {std::tuple{1, 2, 3}, {7, 33, 20}, {65, 97, 300}, {200, 130, 530}, {12, 300, 0}}) {
      for (const GemmChoice choice : kChoices) {
        for (const int threads : {1, 3}) {
          GemmSpec spec{.m = m, .n = n, .k = k, .threads = threads, .choice = choice};
          spec.transpose_a = random() % 2 == 0;
          spec.transpose_b = random() % 2 == 0;
          spec.relu = random() % 2 == 0;
          check_more_addends<float>(spec, random);
          check_more_addends<double>(spec, random);
        }
      }
    }
  });
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
void check_handed_over(GemmSpec spec, std::mt19937& random) {
  spec.dtype = dtype_of<T>();
  const auto a = random_numbers<T>(spec.m * spec.k, random);
  const auto b = random_numbers<T>(spec.n * spec.k, random);
  ASSERT_TRUE(can_hand_over(spec));
  spec.hands_over = true;
  const PreparedGemm gemm = prepare_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
  std::fill_n(scratch.get(), gemm.scratch_bytes + 64, std::byte{0xFF});
  const auto size = static_cast<std::size_t>(spec.m * spec.n);
  Collected<T> all{spec.n, std::vector<T>(size), std::vector<unsigned char>(size)};
  const std::vector<T> touched(size);
  gemm({.a = a.data(),
        .b = b.data(),
        .scratch = scratch.get(),
        .finished = Collected<T>::add,
        .context = &all,
        .touched = {touched.data(), nullptr, touched.data()}});
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

TEST(Gemm, HandsOverEachElementOnce) {
  std::mt19937 random(5);
  for (const auto& [m, n, k] : {std::tuple{1, 2, 1},
                                {200, 130, 300},
                                {390, 70, 530},
                                {33, 1030, 100},
                                {20, 150, 5000},
                                {520, 90, 140}}) {
    for (const int threads : {1, 2, 3}) {
      for (const bool transpose_a : {false, true}) {
        for (const GemmChoice choice : {GemmChoice::kBlocked, GemmChoice::kBlockedStrips}) {
          if (choice == GemmChoice::kBlockedStrips && !transpose_a) continue;
          GemmSpec spec{.m = m, .n = n, .k = k, .transpose_a = transpose_a, .threads = threads};
          spec.transpose_b = random() % 2 == 0;
          spec.choice = choice;
          check_handed_over<float>(spec, random);
          check_handed_over<double>(spec, random);
        }
      }
    }
  }
  EXPECT_FALSE(can_hand_over({.m = 400, .n = 400, .k = 10000, .transpose_a = true}));
  EXPECT_FALSE(can_hand_over({.m = 8, .n = 8, .k = 8}));
}

TEST(Gemm, NanGoesThrough) {
  for_each_instruction_set([] {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> a(15 * 20, 1.0F);
    a[3 * 20 + 4] = nan;
    const std::vector<float> b(20 * 18, 1.0F);
    std::vector<float> c(15 * 18);
    const PreparedGemm gemm = prepare_gemm({.m = 15, .n = 18, .k = 20, .relu = true});
    const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
    gemm({.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
    for (std::size_t i = 0; i < 15; ++i) {
      for (std::size_t j = 0; j < 18; ++j) EXPECT_EQ(std::isnan(c[i * 18 + j]), i == 3);
    }
  });
}

}  // namespace
}  // namespace onnxgrad::device::gemm_test

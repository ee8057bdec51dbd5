#include "device/cpu/packed_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "device/testing/instruction_sets.h"

namespace onnxgrad::device::packed_gemm_test {
namespace {

enum class Start { kZero, kRow, kItself };

// Checks one GEMM; rows of A, B and C are further apart than they are long.
template <class T>
void check(Isa isa, std::int64_t m, std::int64_t n, std::int64_t k, bool transpose, Start start,
           std::mt19937& random) {
  constexpr std::int64_t kGap = 3;
  std::normal_distribution<double> normal;
  const auto numbers = [&](std::int64_t count) {
    std::vector<T> made(static_cast<std::size_t>(count));
    for (T& number : made) number = static_cast<T>(normal(random));
    return made;
  };
  const std::int64_t b_row = (transpose ? k : n) + kGap;
  const std::vector<T> a = numbers(m * (k + kGap));
  const std::vector<T> b = numbers((transpose ? n : k) * b_row);
  const std::vector<T> row = numbers(n);
  std::vector<T> c = numbers(m * (n + kGap));
  const std::vector<T> before = c;

  const auto gemm = PackedGemm<T>::prepare(isa, k, n);
  const auto packed = base::allocate_aligned(gemm.packed_size() * std::int64_t{sizeof(T)} + 64);
  auto* packed_b = reinterpret_cast<T*>(packed.get());
  packed_b[gemm.packed_size()] = T(77);
  gemm.pack(b.data(), b_row, transpose, packed_b);
  EXPECT_EQ(packed_b[gemm.packed_size()], T(77)) << "writes past the packed matrix";
  gemm.run(gemm.rows(m), {.a = a.data(),
                          .a_row = k + kGap,
                          .packed = packed_b,
                          .c = c.data(),
                          .c_row = n + kGap,
                          .start = start == Start::kZero  ? nullptr
                                   : start == Start::kRow ? row.data()
                                                          : c.data(),
                          .start_row = start == Start::kRow ? 0 : n + kGap});

  const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n + kGap; ++j) {
      const std::size_t place = at(i * (n + kGap) + j);
      if (j >= n) {
        ASSERT_EQ(c[place], before[place]) << "writes between rows";
        continue;
      }
      double sum = start == Start::kZero  ? 0
                   : start == Start::kRow ? static_cast<double>(row[at(j)])
                                          : static_cast<double>(before[place]);
      double size = std::abs(sum);
      for (std::int64_t p = 0; p < k; ++p) {
        const double product =
            static_cast<double>(a[at(i * (k + kGap) + p)]) *
            static_cast<double>(b[at(transpose ? j * b_row + p : p * b_row + j)]);
        sum += product;
        size += std::abs(product);
      }
      const double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
      ASSERT_NEAR(static_cast<double>(c[place]), sum,
                  epsilon * (static_cast<double>(k) + 4) * size + 1e-300)
          << m << "x" << n << "x" << k << " at [" << i << ", " << j << "]";
    }
  }
}

TEST(PackedGemm, ProductsOfAllShapes) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(1);
    for (const std::int64_t m : {0, 1, 2, 5, 16, 17}) {
      for (const std::int64_t n : {1, 3, 16, 31, 64, 100, 129}) {
        for (const std::int64_t k : {1, 2, 9, 40}) {
          for (const Start start : {Start::kZero, Start::kRow, Start::kItself}) {
            const bool transpose = random() % 2 == 0;
            check<float>(cpu.isa, m, n, k, transpose, start, random);
            check<double>(cpu.isa, m, n, k, !transpose, start, random);
          }
        }
      }
    }
  });
}

// Two blocks of rows, the second one shorter, each packed in two parts.
template <class T>
void check_row_sums(Isa isa, std::int64_t m, std::int64_t n, std::int64_t block,
                    std::mt19937& random) {
  std::normal_distribution<double> normal;
  const std::int64_t rows = block + (block + 1) / 2;
  const auto numbers = [&](std::int64_t count) {
    std::vector<T> made(static_cast<std::size_t>(count));
    for (T& number : made) number = static_cast<T>(normal(random));
    return made;
  };
  const std::vector<T> a = numbers(rows * m);
  const std::vector<T> b = numbers(rows * n);
  std::vector<T> c = numbers(m * n + 1);
  const T beyond = c.back();
  const auto gemm = RowSumGemm<T>::prepare(isa, m, n, block);
  const auto packed_a = base::allocate_aligned(gemm.a_size() * std::int64_t{sizeof(T)});
  const auto packed_b = base::allocate_aligned(gemm.b_size() * std::int64_t{sizeof(T)});
  auto* own_a = reinterpret_cast<T*>(packed_a.get());
  auto* own_b = reinterpret_cast<T*>(packed_b.get());
  for (std::int64_t first = 0; first < rows; first += block) {
    const std::int64_t count = std::min(block, rows - first);
    for (const auto& [from, to] :
         {std::pair{std::int64_t{0}, count / 2}, std::pair{count / 2, count}}) {
      gemm.pack_a(a.data() + (first + from) * m, m, from, to - from, own_a);
      gemm.pack_b(b.data() + (first + from) * n, from, to - from, own_b);
    }
    gemm.run({.a = own_a, .b = own_b, .rows = count, .adds = first > 0, .c = c.data()});
  }
  EXPECT_EQ(c.back(), beyond) << "writes past the result";
  const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      double size = 0;
      for (std::int64_t p = 0; p < rows; ++p) {
        const double product =
            static_cast<double>(a[at(p * m + i)]) * static_cast<double>(b[at(p * n + j)]);
        sum += product;
        size += std::abs(product);
      }
      const double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
      ASSERT_NEAR(static_cast<double>(c[at(i * n + j)]), sum,
                  epsilon * (static_cast<double>(rows) + 4) * size + 1e-300)
          << m << "x" << n << ", blocks of " << block << " rows, at [" << i << ", " << j << "]";
    }
  }
}

TEST(PackedGemm, SumsOverRowsInBlocks) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(2);
    for (const std::int64_t m : {1, 5, 16, 33, 76}) {
      for (const std::int64_t n : {1, 3, 16, 31, 64, 100, 129}) {
        for (const std::int64_t block : {1, 7, 40}) {
          check_row_sums<float>(cpu.isa, m, n, block, random);
          check_row_sums<double>(cpu.isa, m, n, block, random);
        }
      }
    }
  });
}

}  // namespace
}  // namespace onnxgrad::device::packed_gemm_test

#include "device/cpu/packed_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "device/testing/gemm_checks.h"
#include "device/testing/instruction_sets.h"

namespace onnxgrad::device::packed_gemm_test {
namespace {

enum class Start { kZero, kRow, kItself };

template <class T>
constexpr DataType kType = sizeof(T) == 8 ? DataType::kFloat64 : DataType::kFloat32;

template <class T>
T* at(const Guarded& memory) {
  return reinterpret_cast<T*>(memory.begin());
}
template <class T>
T* at(const TestMatrix& matrix) {
  return reinterpret_cast<T*>(matrix.data());
}

// Checks one GEMM; rows of A, B and C are further apart than they are long.
template <class T>
void check(Isa isa, std::int64_t m, std::int64_t n, std::int64_t k, bool transpose, Start start,
           std::mt19937& random) {
  constexpr std::int64_t kGap = 3;
  const std::int64_t a_row = k + kGap;
  const std::int64_t b_row = (transpose ? k : n) + kGap;
  const std::int64_t c_row = n + kGap;
  const TestMatrix a(kType<T>, m * a_row, random), b(kType<T>, (transpose ? n : k) * b_row, random);
  const TestMatrix row(kType<T>, n, random), before(kType<T>, m * c_row, random);
  const TestMatrix c(kType<T>, m * c_row);
  c.copy(before);
  const auto gemm = PackedGemm<T>::prepare(isa, k, n);
  const Guarded packed(gemm.packed_size() * std::int64_t{sizeof(T)}, 64);
  gemm.pack(at<T>(b), b_row, transpose, at<T>(packed));
  gemm.run(gemm.rows(m), {.a = at<T>(a),
                          .a_row = a_row,
                          .packed = at<T>(packed),
                          .c = at<T>(c),
                          .c_row = c_row,
                          .start = start == Start::kZero  ? nullptr
                                   : start == Start::kRow ? at<T>(row)
                                                          : at<T>(c),
                          .start_row = start == Start::kRow ? 0 : c_row});
  for (std::int64_t i = 0; i < m * c_row; ++i) {
    const std::int64_t j = i % c_row;
    if (j >= n) {
      ASSERT_EQ(c[i], before[i]) << "writes between rows";
      continue;
    }
    const double addend = start == Start::kZero ? 0 : start == Start::kRow ? row[j] : before[i];
    const GemmSum sum = sum_of(
        k, addend, [&](std::int64_t s) { return a[i / c_row * a_row + s]; },
        [&](std::int64_t s) { return b[transpose ? j * b_row + s : s * b_row + j]; });
    ASSERT_LE(std::abs(c[i] - sum.value), sum.bound(k, a.half_unit()))
        << m << "x" << n << "x" << k << " at " << i;
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
  const std::int64_t rows = block + (block + 1) / 2;
  const TestMatrix a(kType<T>, rows * m, random), b(kType<T>, rows * n, random);
  const TestMatrix c(kType<T>, m * n);
  const auto gemm = RowSumGemm<T>::prepare(isa, m, n, block);
  const Guarded packed_a(gemm.a_size() * std::int64_t{sizeof(T)}, 64);
  const Guarded packed_b(gemm.b_size() * std::int64_t{sizeof(T)}, 64);
  for (std::int64_t first = 0; first < rows; first += block) {
    const std::int64_t count = std::min(block, rows - first);
    for (const auto& [from, to] :
         {std::pair{std::int64_t{0}, count / 2}, std::pair{count / 2, count}}) {
      gemm.pack_a(at<T>(a) + (first + from) * m, m, from, to - from, at<T>(packed_a));
      gemm.pack_b(at<T>(b) + (first + from) * n, from, to - from, at<T>(packed_b));
    }
    gemm.run({.a = at<T>(packed_a),
              .b = at<T>(packed_b),
              .rows = count,
              .adds = first > 0,
              .c = at<T>(c)});
  }
  for (std::int64_t i = 0; i < m * n; ++i) {
    const GemmSum sum = sum_of(
        rows, 0, [&](std::int64_t s) { return a[s * m + i / n]; },
        [&](std::int64_t s) { return b[s * n + i % n]; });
    ASSERT_LE(std::abs(c[i] - sum.value), sum.bound(rows, a.half_unit()))
        << m << "x" << n << ", blocks of " << block << " rows, at " << i;
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

#include "device/cpu/vnni_gemm.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/testing/emulated_amx.h"
#include "device/testing/gemm_checks.h"

// VnniGemm against sums in double of the same elements: sizes that are no multiples of a tile, both
// layouts of B, a part of its rows and columns.

namespace onnxgrad::device::vnni_gemm_test {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

TestMatrix random_matrix(std::int64_t count, std::mt19937& random) {
  return {DataType::kBfloat16, count, random};
}

const std::uint16_t* bits(const TestMatrix& matrix) {
  return reinterpret_cast<const std::uint16_t*>(matrix.data());
}

struct Case {
  std::int64_t rows, steps, columns, used_steps, used_columns, gap;
};

void check(const Case& n, bool by_columns, const AmxTarget& amx) {
  SCOPED_TRACE(testing::Message() << n.rows << "x" << n.steps << "x" << n.columns << " columns "
                                  << by_columns);
  std::mt19937 random(1);
  const VnniGemm product{.steps = n.steps, .columns = n.columns, .amx = &amx, .isa = best_isa()};
  const std::int64_t lines = by_columns ? n.columns : n.steps;
  const std::int64_t b_row = (by_columns ? n.steps : n.columns) + n.gap;
  const TestMatrix b = random_matrix(lines * b_row, random);
  const TestMatrix dense = random_matrix(n.rows * n.used_steps, random);
  const std::int64_t a_row = VnniGemm::padded(n.used_steps);
  const std::uint16_t nan = 0x7FC0;
  std::vector<std::uint16_t> a(at(n.rows * a_row), nan);
  pad_rows(bits(dense), n.used_steps, n.rows, n.used_steps, a_row, a.data());
  std::vector<std::uint32_t> packed(at(product.packed_size()), ~0U);
  std::vector<std::uint32_t> scratch(at(product.line_size()), ~0U);
  if (by_columns) {
    product.pack_columns(bits(b), b_row, packed.data(), scratch.data());
  } else {
    product.pack_rows(bits(b), b_row, packed.data());
  }
  const std::int64_t c_row = n.used_columns + 3;
  std::vector<float> c(at(n.rows * c_row), -7);
  product.run({.a = a.data(),
               .a_row = a_row,
               .packed = packed.data(),
               .c = c.data(),
               .c_row = c_row,
               .rows = n.rows,
               .columns = n.used_columns,
               .steps = n.used_steps});
  for (std::int64_t i = 0; i < n.rows * c_row; ++i) {
    const std::int64_t j = i % c_row;
    if (j >= n.used_columns) {
      ASSERT_EQ(c[at(i)], -7) << "writes between rows";
      continue;
    }
    const GemmSum sum = sum_of(
        n.used_steps, 0, [&](std::int64_t s) { return dense[i / c_row * n.used_steps + s]; },
        [&](std::int64_t s) { return b[by_columns ? j * b_row + s : s * b_row + j]; });
    ASSERT_NEAR(c[at(i)], sum.value, sum.bound(n.used_steps, 0x1p-24)) << i / c_row << " " << j;
  }
}

TEST(VnniGemm, PadsColumns) {
  std::mt19937 random(1);
  for (const std::int64_t rows : {1, 16, 50}) {
    for (const std::int64_t steps : {1, 32, 75}) {
      const std::int64_t row = rows + 3;
      const std::int64_t length = VnniGemm::padded(steps);
      const TestMatrix from = random_matrix(steps * row, random);
      std::vector<std::uint16_t> to(at(rows * length), 7);
      std::vector<std::uint32_t> lines(at(16 * (rows + 15)));
      pad_columns(best_isa(), bits(from), row, rows, steps, to.data(), lines.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t k = 0; k < length; ++k) {
          const int expected = k < steps ? bits(from)[k * row + i] : 0;
          ASSERT_EQ(to[at(i * length + k)], expected) << i << " " << k;
        }
      }
    }
  }
}

void check_all(const AmxTarget& amx) {
  for (const bool by_columns : {false, true}) {
    for (const Case& n : {Case{32, 64, 128, 64, 128, 0},
                          {17, 33, 50, 33, 50, 0},
                          {50, 64, 33, 64, 33, 1},
                          {1, 5, 1, 5, 1, 3},
                          {40, 96, 150, 40, 70, 2},
                          {16, 128, 300, 128, 64, 0},
                          {3, 64, 40, 0, 40, 0}}) {
      check(n, by_columns, amx);
    }
  }
}

TEST(VnniGemm, AgreesWithDoubles) {
  if (amx_target() == nullptr) {
    GTEST_SKIP() << "this processor has no AMX; the next test emulates it";
  }
  check_all(*amx_target());
}

TEST(VnniGemm, AgreesWithDoublesOnEmulatedAmx) { check_all(emulated_amx()); }

}  // namespace
}  // namespace onnxgrad::device::vnni_gemm_test

#include "device/cpu/gemm_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "device/cpu/gemm_epilogue.h"
#include "device/testing/gemm_checks.h"

// The loop nest of GEMMs with a kernel in plain C++: packing and the sums of one block.

namespace onnxgrad::device::gemm_driver_test {
namespace {

constexpr std::int64_t kLanes = 4;

/// How often elements are packed.
struct Counts {
  std::atomic<std::int64_t> a{0}, b{0};
};

/// C = A B + start, row-major, with integers in float32, whose sums are exact.
class PlainKernel final : public GemmKernel {
 public:
  PlainKernel(const GemmProblem<float>& gemm, const GemmBlocking& blocking, Counts& counts)
      : gemm_(gemm), blocking_(blocking), counts_(counts) {}

  /// Scratch: the sums of a panel, and a consumer's block of C.
  static std::int64_t scratch_bytes(const GemmBlocking& blocking) {
    const std::int64_t width = blocking.panel_units * kLanes;
    return 4 * blocking.m * (width + (blocking.has_consumer ? blocking.n : 0));
  }

  /// Packs A row by row.
  void pack_a(const GemmOperands& operands, const GemmRows& rows, std::byte* to,
              std::byte* /*scratch*/) const override {
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      std::copy_n(a_of(operands, rows, i), rows.steps,
                  reinterpret_cast<float*>(to) + i * rows.steps);
    }
    counts_.a += rows.rows * rows.steps;
  }

  /// Packs B panels [step, column].
  void pack_b(const GemmOperands& operands, const GemmColumns& columns, std::byte* to,
              std::byte* /*scratch*/) const override {
    for (std::int64_t p = columns.first; p < columns.last; ++p) {
      const auto [offset, width, count] = columns.panels->panel(p, kLanes);
      auto* packed = reinterpret_cast<float*>(to) + offset * columns.steps;
      for (std::int64_t s = 0; s < columns.steps; ++s, packed += width) {
        std::copy_n(b_of(operands, columns, offset) + s * gemm_.n, count, packed);
        std::fill(packed + count, packed + width, 0.0F);
      }
      counts_.b += count * columns.steps;
    }
  }

  void compute(const GemmOperands& operands, const GemmTask& task) const override {
    const GemmRows& rows = task.rows;
    GemmBuffer<float> buffer{.row = rows.row, .rows = rows.rows};
    buffer.sums = reinterpret_cast<float*>(task.scratch);
    buffer.sums_row = blocking_.panel_units * kLanes;
    buffer.c = static_cast<float*>(operands.c);
    buffer.c_row = gemm_.n;
    if (blocking_.has_consumer) {
      buffer.c_row = blocking_.n;
      buffer.c = buffer.sums + blocking_.m * buffer.sums_row - rows.row * buffer.c_row -
                 task.columns.panels->column;
    }
    for (std::int64_t p = task.columns.first; p < task.columns.last; ++p) {
      const auto [offset, width, count] = task.columns.panels->panel(p, kLanes);
      const float* b = task.b != nullptr
                           ? reinterpret_cast<const float*>(task.b) + offset * rows.steps
                           : b_of(operands, task.columns, offset);
      const std::int64_t b_row = task.b != nullptr ? width : gemm_.n;
      for (std::int64_t i = 0; i < rows.rows; ++i) {
        const float* a = task.a != nullptr ? reinterpret_cast<const float*>(task.a) + i * rows.steps
                                           : a_of(operands, rows, i);
        for (std::int64_t j = 0; j < count; ++j) {
          float& sum = buffer.sums[i * buffer.sums_row + j];
          sum = 0;
          for (std::int64_t s = 0; s < rows.steps; ++s) sum += a[s] * b[s * b_row + j];
        }
      }
      buffer.column = task.columns.panels->column + offset;
      buffer.columns = count;
      end_buffer(gemm_, operands, task, buffer);
    }
  }

 private:
  const float* a_of(const GemmOperands& operands, const GemmRows& rows, std::int64_t i) const {
    return static_cast<const float*>(operands.a) + (rows.row + i) * gemm_.k + rows.k;
  }
  const float* b_of(const GemmOperands& operands, const GemmColumns& columns,
                    std::int64_t offset) const {
    return static_cast<const float*>(operands.b) + columns.k * gemm_.n + columns.panels->column +
           offset;
  }

  GemmProblem<float> gemm_;
  GemmBlocking blocking_;
  Counts& counts_;
};

struct Case {
  std::int64_t m = 0, n = 0, k = 0;
  bool packs_a = false, packs_b = true, packs_a_once = false, sums = false, consumes = false;
  std::int64_t block_m = 12, block_n = 40, block_k = 16;
  int threads = 1;
};

struct Results {
  std::vector<float> c, column_sums;
  std::vector<int> passed_on;  ///< times of each element
  std::int64_t packed_a = 0, packed_b = 0;
};

std::vector<float> integers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 9) - 4);
  return values;
}

Results run(const Case& given) {
  const bool adds = !given.consumes;
  GemmBlocking blocking{.m = std::min(given.block_m, given.m), .n = given.block_n};
  blocking.k = given.block_k;
  blocking.row_unit = given.sums ? kGemmSumRows : 4;
  if (given.sums) blocking.m = std::min(kGemmSumRows, given.m);
  blocking.unit = kLanes;
  blocking.panel_units = 2;
  blocking.a_bytes = given.packs_a ? blocking.m * blocking.k * 4 : 0;
  blocking.b_unit_bytes = given.packs_b ? kLanes * blocking.k * 4 : 0;
  blocking.packs_a_once = given.packs_a_once;
  blocking.sum_bytes = given.sums ? 4 : 0;
  blocking.has_consumer = given.consumes;
  blocking.scratch_bytes = PlainKernel::scratch_bytes(blocking);
  GemmProblem<float> gemm{.target = &gemm_target<float>(best_isa())};
  gemm.m = given.m, gemm.n = given.n, gemm.k = given.k;
  gemm.start = adds ? GemmStart::kRow : GemmStart::kZero;
  gemm.has_consumer = given.consumes;
  Counts counts;
  const PreparedGemm prepared = drive_gemm(given.m, given.n, given.k, given.threads, blocking,
                                           std::make_unique<PlainKernel>(gemm, blocking, counts));
  const std::vector<float> a = integers(given.m * given.k, 1);
  const std::vector<float> b = integers(given.k * given.n, 2);
  const std::vector<float> start = integers(given.n, 3);
  Results results;
  results.c.assign(static_cast<std::size_t>(given.m * given.n), -1e6F);
  results.column_sums.assign(static_cast<std::size_t>(given.n), -1e6F);
  const Guarded scratch(prepared.scratch_bytes, 64);
  results.passed_on.resize(results.c.size());
  struct Reader {
    float* c;
    int* passed_on;
    const PreparedGemm& gemm;
    std::int64_t n;
  } reader{results.c.data(), results.passed_on.data(), prepared, given.n};
  const auto finished = [](const void* context, const GemmBlock& block) {
    const auto& to = *static_cast<const Reader*>(context);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const std::int64_t at = (block.row + i) * to.n + block.column;
      if (block.c != nullptr) {
        std::copy_n(static_cast<const float*>(block.c) + i * block.c_row, block.columns, to.c + at);
      }
      for (std::int64_t j = at; j < at + block.columns; ++j) {
        EXPECT_NE(to.c[j], -1e6F);
        ++to.passed_on[j];
      }
    }
    if (block.c != nullptr) return;
    EXPECT_EQ(block.c_row, to.n);
    EXPECT_LT(block.thread, to.gemm.threads);
    if (to.gemm.completes == opdef::BlockCut::kRows) {
      EXPECT_EQ(block.columns, to.n);
    }
  };
  prepared({.a = a.data(),
            .b = b.data(),
            .start = start.data(),
            .c = given.consumes ? nullptr : results.c.data(),
            .scratch = scratch.begin(),
            .column_sums = results.column_sums.data(),
            .finished = finished,
            .context = &reader});
  results.packed_a = counts.a;
  results.packed_b = counts.b;
  return results;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                                {5, 7, 3},
                                {12, 40, 16},
                                {13, 41, 17},
                                {50, 9, 40},
                                {9, 130, 33},
                                {70, 95, 50},
                                {8, 20, 0}}) {
    for (int way = 0; way < 32; ++way) {
      Case one{.m = m, .n = n, .k = k};
      one.packs_a = (way & 1) != 0;
      one.packs_b = (way & 2) != 0;
      one.packs_a_once = (way & 4) != 0 && one.packs_a;
      one.consumes = (way & 8) != 0;
      one.sums = (way & 16) != 0 && !one.consumes;
      all.push_back(one);
    }
  }
  return all;
}

TEST(GemmDriver, ComputesProductsInAnyBlocksOnAnyThreads) {
  for (Case one : cases()) {
    const std::vector<float> a = integers(one.m * one.k, 1);
    const std::vector<float> b = integers(one.k * one.n, 2);
    const std::vector<float> start = integers(one.n, 3);
    std::vector<float> c, sums(static_cast<std::size_t>(one.n));
    for (std::int64_t i = 0; i < one.m; ++i) {
      for (std::int64_t j = 0; j < one.n; ++j) {
        float sum = one.consumes ? 0 : start[static_cast<std::size_t>(j)];
        for (std::int64_t s = 0; s < one.k; ++s) {
          sum += a[static_cast<std::size_t>(i * one.k + s)] *
                 b[static_cast<std::size_t>(s * one.n + j)];
        }
        c.push_back(sum);
        sums[static_cast<std::size_t>(j)] += sum;
      }
    }
    for (const int threads : {1, 2, 3, 16}) {
      one.threads = threads;
      SCOPED_TRACE(testing::Message()
                   << one.m << "x" << one.n << "x" << one.k << " A " << one.packs_a << " B "
                   << one.packs_b << " once " << one.packs_a_once << " consumer " << one.consumes
                   << " threads " << threads);
      const Results results = run(one);
      EXPECT_EQ(results.c, c);
      EXPECT_EQ(results.passed_on, std::vector<int>(c.size(), 1));
      EXPECT_TRUE(!one.sums || results.column_sums == sums);
      EXPECT_TRUE(!one.packs_b || results.packed_b == one.k * one.n);  // once each
      EXPECT_TRUE(!one.packs_a_once || results.packed_a == one.m * one.k);
      if (HasFailure()) return;
    }
  }
}

// Sizes of blocks as the kernels have them: what sixteen threads pack together is hardly more than
// what one packs.
TEST(GemmDriver, ThreadsPackTogether) {
  const std::array<std::int64_t, 3> shapes[] = {{128, 512, 64},  {1024, 768, 48}, {768, 3072, 32},
                                                {2048, 128, 48}, {256, 2048, 32}, {103, 784, 32},
                                                {512, 128, 96},  {3072, 768, 16}};
  for (const auto& [m, n, k] : shapes) {
    for (const bool once : {false, true}) {
      for (const bool packs_a : {false, true}) {
        if (once && !packs_a) continue;
        Case one{.m = m, .n = n, .k = k, .packs_a = packs_a, .packs_a_once = once};
        one.block_m = m <= 192 ? m : 128;
        one.block_n = 512;
        one.block_k = 32;
        const Results alone = run(one);
        one.threads = 16;
        const Results together = run(one);
        EXPECT_EQ(together.c, alone.c);
        EXPECT_LE(static_cast<double>(together.packed_a + together.packed_b),
                  1.1 * static_cast<double>(alone.packed_a + alone.packed_b))
            << m << "x" << n << "x" << k << " " << packs_a << once;
      }
    }
  }
}

}  // namespace
}  // namespace onnxgrad::device::gemm_driver_test

#include "device/cpu/f16_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/f16.h"
#include "base/memory_budget.h"
#include "device/testing/emulated_amx.h"
#include "device/testing/instruction_sets.h"

// GEMM of 16-bit floats against sums in double of the same elements, for each implementation:
// blocks of all dimensions, odd sizes, addends and types of the result. AMX is emulated, on the
// packed operands that the instructions would read.

namespace onnxgrad::device::f16_gemm_test {
namespace {

using Bits = std::vector<std::uint16_t>;

double number(DataType dtype, std::uint16_t bits) {
  return dtype == DataType::kFloat16 ? base::to_float(base::Float16{bits})
                                     : base::to_float(base::Bfloat16{bits});
}
std::uint16_t stored(DataType dtype, double value) {
  const auto rounded = static_cast<float>(value);
  return dtype == DataType::kFloat16 ? base::to_float16(rounded).bits
                                     : base::to_bfloat16(rounded).bits;
}

Bits random_f16(DataType dtype, std::int64_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Bits bits(static_cast<std::size_t>(count));
  for (auto& one : bits) one = stored(dtype, normal(random));
  return bits;
}

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::vector<double> numbers(DataType dtype, const Bits& bits) {
  std::vector<double> all;
  for (const std::uint16_t one : bits) all.push_back(number(dtype, one));
  return all;
}

// Destination to which the consumer copies its parts of C.
struct Parts {
  float* c = nullptr;
  std::int64_t row = 0;
};

void copy_part(const void* context, const GemmBlock& block) {
  const auto& parts = *static_cast<const Parts*>(context);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const float* from = static_cast<const float*>(block.c) + i * block.c_row;
    std::copy_n(from, block.columns, parts.c + (block.row + i) * parts.row + block.column);
  }
}

void check(F16GemmSpec spec, std::mt19937& random) {
  const std::string what = ::testing::PrintToString(spec.m) + "x" +
                           ::testing::PrintToString(spec.n) + "x" +
                           ::testing::PrintToString(spec.k);
  SCOPED_TRACE(what + (spec.transpose_a ? " A^T" : "") + (spec.transpose_b ? " B^T" : "") +
               " start " + std::to_string(static_cast<int>(spec.start)) + " choice " +
               std::to_string(static_cast<int>(spec.choice)) + " threads " +
               std::to_string(spec.threads));
  const Bits a = random_f16(spec.dtype, spec.m * spec.k, random);
  const Bits b = random_f16(spec.dtype, spec.n * spec.k, random);
  std::vector<float> wide_b;
  for (const double one : numbers(spec.dtype, b)) wide_b.push_back(static_cast<float>(one));
  // Moves elements beside 16-bit floats, to which they are rounded again.
  for (float& one : wide_b) one *= 1.0F + (spec.dtype == DataType::kFloat16 ? 0x1p-13F : 0x1p-10F);
  const std::int64_t size = spec.m * spec.n;
  const Bits start_f16 = random_f16(spec.dtype, size, random);
  std::vector<float> start(at(size));
  for (std::int64_t i = 0; i < size; ++i) {
    start[at(i)] = static_cast<float>(number(spec.dtype, start_f16[at(i)]));
  }
  constexpr std::size_t kGuard = 40;
  const bool is_narrow = is_f16(spec.c_dtype);
  std::vector<float> c(at(size) + kGuard, 77.0F);
  Bits c_f16(at(size) + kGuard, 77);
  const PreparedGemm gemm = prepare_f16_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
  std::memset(scratch.get(), 0xFF, at(gemm.scratch_bytes));  // NaN
  scratch.get()[gemm.scratch_bytes] = std::byte{91};
  const bool adds_f16 = is_f16(spec.start_dtype);
  const Parts parts{.c = c.data(), .row = spec.n};
  gemm({.a = a.data(),
        .b = spec.rounds_b ? static_cast<const void*>(wide_b.data()) : b.data(),
        .start = adds_f16 ? static_cast<const void*>(start_f16.data()) : start.data(),
        .c = is_narrow ? static_cast<void*>(c_f16.data()) : c.data(),
        .scratch = scratch.get(),
        .factor = 0.5,
        .finished = spec.has_consumer ? copy_part : nullptr,
        .context = &parts,
        .reads_next = {c.data()}});
  EXPECT_EQ(scratch.get()[gemm.scratch_bytes], std::byte{91}) << "writes past the scratch";
  for (std::size_t g = 0; g < kGuard; ++g) {
    ASSERT_EQ(c[at(size) + g], 77.0F);
    ASSERT_EQ(c_f16[at(size) + g], 77);
  }
  const std::vector<double> x = numbers(spec.dtype, a);
  const std::vector<double> y = numbers(spec.dtype, b);
  for (std::int64_t i = 0; i < spec.m; ++i) {
    for (std::int64_t j = 0; j < spec.n; ++j) {
      double sum = 0;
      double size_of_sum = 0;
      for (std::int64_t k = 0; k < spec.k; ++k) {
        const double term = x[at(spec.transpose_a ? k * spec.m + i : i * spec.k + k)] *
                            y[at(spec.transpose_b ? j * spec.k + k : k * spec.n + j)];
        sum += term;
        size_of_sum += std::fabs(term);
      }
      double want = 0.5 * spec.alpha * sum;
      if (spec.start == GemmStart::kRow) want += static_cast<double>(start[at(j)]);
      if (spec.start == GemmStart::kMatrix) want += static_cast<double>(start[at(i * spec.n + j)]);
      if (spec.relu) want = std::max(want, 0.0);
      const double got = is_narrow ? number(spec.dtype, c_f16[at(i * spec.n + j)])
                                   : static_cast<double>(c[at(i * spec.n + j)]);
      const double last_bit = spec.dtype == DataType::kFloat16 ? 0x1p-11 : 0x1p-8;
      const double tolerance =
          1e-6 * (size_of_sum + 1) + (is_narrow ? last_bit * std::fabs(want) : 0);
      ASSERT_NEAR(got, want, tolerance) << "at " << i << ", " << j;
    }
  }
}

struct Size {
  std::int64_t m, n, k;
};

/// An implementation and its CPU options.
struct Implementation {
  F16GemmChoice choice = F16GemmChoice::kBest;
  CpuOptions cpu = {};
};

std::vector<Implementation> implementations(DataType dtype) {
  std::vector<Implementation> all{{F16GemmChoice::kWidened}, {F16GemmChoice::kBest}};
  if (dtype == DataType::kFloat16) return all;
  for (const auto one : {F16GemmChoice::kVnni, F16GemmChoice::kAmx}) {
    if (has_f16_gemm(one)) all.push_back({one});
  }
  all.push_back({F16GemmChoice::kAmx, with_emulated_amx()});
  return all;
}

TEST(F16Gemm, AllSizesAndLayouts) {
  std::mt19937 random(5);
  constexpr Size kSizes[] = {{1, 1, 1},    {7, 5, 3},     {6, 64, 32},   {13, 65, 31},
                             {33, 17, 64}, {50, 130, 96}, {200, 40, 33}, {3, 270, 5}};
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    for (const Implementation& one : implementations(dtype)) {
      for (const Size& size : kSizes) {
        for (int layout = 0; layout < 4; ++layout) {
          check({.dtype = dtype,
                 .c_dtype = layout % 2 == 0 ? DataType::kFloat32 : dtype,
                 .m = size.m,
                 .n = size.n,
                 .k = size.k,
                 .transpose_a = (layout & 1) != 0,
                 .transpose_b = (layout & 2) != 0,
                 .choice = one.choice,
                 .cpu = one.cpu},
                random);
        }
      }
    }
  }
}

TEST(F16Gemm, WhatIsAddedAndStored) {
  std::mt19937 random(6);
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    for (const Implementation& one : implementations(dtype)) {
      for (const GemmStart start : {GemmStart::kZero, GemmStart::kRow, GemmStart::kMatrix}) {
        for (int kinds = 0; kinds < 8; ++kinds) {
          check({.dtype = dtype,
                 .c_dtype = (kinds & 1) != 0 ? dtype : DataType::kFloat32,
                 .start_dtype = (kinds & 2) != 0 ? dtype : DataType::kFloat32,
                 .m = 21,
                 .n = 70,
                 .k = 40,
                 .start = start,
                 .alpha = -0.75,
                 .relu = (kinds & 4) != 0,
                 .choice = one.choice,
                 .cpu = one.cpu},
                random);
        }
      }
    }
  }
}

TEST(F16Gemm, WidenedOnEveryInstructionSet) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(10);
    for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
      for (const Size& size : {Size{13, 65, 31}, Size{50, 21, 96}}) {
        for (int layout = 0; layout < 4; ++layout) {
          check({.dtype = dtype,
                 .rounds_b = layout == 3,
                 .c_dtype = layout % 2 == 0 ? DataType::kFloat32 : dtype,
                 .start_dtype = layout < 2 ? DataType::kFloat32 : dtype,
                 .m = size.m,
                 .n = size.n,
                 .k = size.k,
                 .transpose_a = (layout & 1) != 0,
                 .transpose_b = (layout & 2) != 0,
                 .start = GemmStart::kRow,
                 .choice = F16GemmChoice::kWidened,
                 .cpu = cpu},
                random);
        }
      }
      // Several blocks of each dimension; `start` has either type.
      for (const Size& size : {Size{220, 90, 530}, Size{31, 530, 270}}) {
        for (int kinds = 0; kinds < 8; ++kinds) {
          check({.dtype = dtype,
                 .rounds_b = kinds == 5,
                 .c_dtype = (kinds & 1) != 0 ? dtype : DataType::kFloat32,
                 .start_dtype = (kinds & 2) != 0 ? dtype : DataType::kFloat32,
                 .m = size.m,
                 .n = size.n,
                 .k = size.k,
                 .transpose_a = (kinds & 4) != 0,
                 .transpose_b = (kinds & 1) != 0,
                 .start = (kinds & 4) != 0 ? GemmStart::kMatrix : GemmStart::kRow,
                 .relu = (kinds & 2) != 0,
                 .threads = 1 + kinds % 3,
                 .choice = F16GemmChoice::kWidened,
                 .cpu = cpu},
                random);
        }
      }
      for (const bool has_consumer : {false, true}) {
        for (const bool transpose_a : {false, true}) {
          check({.dtype = dtype,
                 .m = 110,
                 .n = 150,
                 .k = 601,
                 .transpose_a = transpose_a,
                 .transpose_b = has_consumer,
                 .threads = 2,
                 .has_consumer = has_consumer,
                 .choice = F16GemmChoice::kWidened,
                 .cpu = cpu},
                random);
        }
      }
    }
  });
}

// On AMX, large float16 GEMMs are split GEMMs of two parts (gemm_split.h).
void check_widened_in_parts(const CpuOptions& cpu) {
  std::mt19937 random(12);
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    for (const Size& size : {Size{70, 130, 150}, Size{150, 65, 300}, Size{66, 70, 1100}}) {
      for (int kinds = 0; kinds < 16; ++kinds) {
        const F16GemmSpec spec{.dtype = dtype,
                               .rounds_b = (kinds & 8) != 0,
                               .c_dtype = (kinds & 4) != 0 ? dtype : DataType::kFloat32,
                               .start_dtype = (kinds & 1) != 0 ? dtype : DataType::kFloat32,
                               .m = size.m,
                               .n = size.n,
                               .k = size.k,
                               .transpose_a = (kinds & 1) != 0,
                               .transpose_b = (kinds & 2) != 0,
                               .start = static_cast<GemmStart>(random() % 3),
                               .relu = random() % 2 == 0,
                               .threads = kinds % 3 + 1,
                               .choice = F16GemmChoice::kWidened,
                               .cpu = cpu};
        ASSERT_NE(prepare_f16_gemm(spec).label.find("split"), std::string::npos);
        check(spec, random);
      }
    }
  }
}

TEST(F16Gemm, WidenedInParts) {
  if (amx_target() != nullptr) check_widened_in_parts({});
  check_widened_in_parts(with_emulated_amx());
}

TEST(F16Gemm, InfinityInParts) {
  constexpr std::int64_t kSize = 128;
  constexpr std::uint16_t kOne = 0x3C00;
  constexpr std::uint16_t kInfinity = 0x7C00;
  const F16GemmSpec spec{.dtype = DataType::kFloat16,
                         .m = kSize,
                         .n = kSize,
                         .k = kSize,
                         .choice = F16GemmChoice::kWidened,
                         .cpu = with_emulated_amx()};
  Bits a(at(kSize * kSize), kOne);
  const Bits b(at(kSize * kSize), kOne);
  a[at(5 * kSize + 7)] = kInfinity;
  const PreparedGemm gemm = prepare_f16_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
  std::vector<float> c(at(kSize * kSize));
  gemm({.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
  for (std::int64_t i = 0; i < kSize * kSize; ++i) {
    const float expected = i / kSize == 5 ? std::numeric_limits<float>::infinity() : kSize;
    ASSERT_EQ(c[at(i)], expected) << i;
  }
}

TEST(F16Gemm, SeveralBlocksAndThreads) {
  std::mt19937 random(7);
  constexpr Size kSizes[] = {{60, 270, 1600}, {210, 33, 801}, {20, 600, 50}};
  for (const Implementation& one : implementations(DataType::kBfloat16)) {
    for (const Size& size : kSizes) {
      for (const bool narrow : {false, true}) {
        check({.c_dtype = narrow ? DataType::kBfloat16 : DataType::kFloat32,
               .m = size.m,
               .n = size.n,
               .k = size.k,
               .transpose_a = !narrow,
               .start = GemmStart::kRow,
               .threads = 3,
               .choice = one.choice,
               .cpu = one.cpu},
              random);
      }
    }
  }
}

TEST(F16Gemm, NothingToAdd) {
  std::mt19937 random(8);
  check({.m = 3, .n = 4, .k = 0, .start = GemmStart::kRow}, random);
  check({.c_dtype = DataType::kBfloat16, .m = 3, .n = 4, .k = 0}, random);
  check({.m = 0, .n = 4, .k = 2}, random);
}

TEST(F16Gemm, RoundsB) {
  std::mt19937 random(9);
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    for (const Implementation& one : implementations(dtype)) {
      for (const Size& size : {Size{19, 70, 33}, Size{40, 37, 300}}) {
        for (const bool transpose : {false, true}) {
          check({.dtype = dtype,
                 .rounds_b = true,
                 .m = size.m,
                 .n = size.n,
                 .k = size.k,
                 .transpose_b = transpose,
                 .choice = one.choice,
                 .cpu = one.cpu},
                random);
        }
      }
    }
  }
}

TEST(F16Gemm, ConsumesPartsOfC) {
  std::mt19937 random(11);
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    for (const Implementation& one : implementations(dtype)) {
      for (const Size& size :
           {Size{50, 70, 33}, Size{200, 300, 520}, Size{97, 130, 1000}, Size{40, 300, 700}}) {
        for (int layout = 0; layout < 4; ++layout) {
          F16GemmSpec spec{.dtype = dtype,
                           .rounds_b = layout == 2,
                           .m = size.m,
                           .n = size.n,
                           .k = size.k,
                           .transpose_a = (layout & 1) != 0,
                           .transpose_b = (layout & 2) != 0,
                           .threads = layout,
                           .has_consumer = true,
                           .choice = one.choice,
                           .cpu = one.cpu};
          spec.threads = std::max(spec.threads, 1);
          if (can_have_consumer(spec)) check(spec, random);
        }
      }
    }
  }
}

// AMX, with sums in one block of k.
TEST(F16Gemm, ConsumesShortSumsInRows) {
  std::mt19937 random(13);
  for (int layout = 0; layout < 8; ++layout) {
    const F16GemmSpec spec{.rounds_b = (layout & 4) != 0,
                           .m = 100,
                           .n = 1100,
                           .k = 130,
                           .transpose_a = (layout & 1) != 0,
                           .transpose_b = (layout & 2) != 0,
                           .threads = layout % 3 + 1,
                           .has_consumer = true,
                           .cpu = with_emulated_amx()};
    ASSERT_TRUE(can_have_consumer(spec));
    ASSERT_NE(prepare_f16_gemm(spec).label.find("split"), std::string::npos);
    check(spec, random);
  }
}

// Elements beside A in memory do not enter a sum, not even as 0 times infinity.
TEST(F16Gemm, ReadsNoNeighbours) {
  constexpr std::int64_t kRows = 9;
  constexpr std::int64_t kLength = 5;
  constexpr std::int64_t kStride = 7;
  const std::uint16_t infinity = 0x7F80;
  for (const Implementation& one : implementations(DataType::kBfloat16)) {
    Bits a(at(kRows * kStride), infinity);
    const Bits b(at(kLength * 3), stored(DataType::kBfloat16, 1));
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t k = 0; k < kLength; ++k)
        a[at(i * kStride + k)] = stored(DataType::kBfloat16, 2);
    }
    std::vector<float> c(at(kRows * 3));
    const PreparedGemm gemm = prepare_f16_gemm({.m = kRows,
                                                .n = 3,
                                                .k = kLength,
                                                .a_row_length = kStride,
                                                .choice = one.choice,
                                                .cpu = one.cpu});
    const auto scratch = base::allocate_aligned(gemm.scratch_bytes + 64);
    gemm({.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
    for (const float sum : c) EXPECT_EQ(sum, 10.0F);
  }
}

}  // namespace
}  // namespace onnxgrad::device::f16_gemm_test

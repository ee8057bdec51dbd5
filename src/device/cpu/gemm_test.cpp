#include "device/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "base/memory_budget.h"
#include "device/cpu/gemm_tile.h"
#include "device/testing/gemm_checks.h"
#include "device/testing/instruction_sets.h"

namespace onnxgrad::device::gemm_test {
namespace {

constexpr GemmChoice kChoices[] = {GemmChoice::kBest, GemmChoice::kTiles, GemmChoice::kDots,
                                   GemmChoice::kBlocked, GemmChoice::kBlockedPackedA};

TEST(Gemm, SmallProductsOfAllShapes) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(1);
    const std::int64_t sizes[] = {0, 1, 2, 3, 7, 10, 15, 16, 17, 33, 50};
    for (const std::int64_t m : sizes) {
      for (const std::int64_t n : sizes) {
        for (const std::int64_t k : {0, 1, 2, 9, 33}) {
          GemmSpec spec{.m = m, .n = n, .k = k, .cpu = cpu};
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
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(3);
    for (const std::int64_t m : {1, 2, 5, 16, 33, 200}) {
      for (const std::int64_t n : {2, 15, 16, 63, 65, 130, 600}) {
        for (const std::int64_t k : {1, 9, 100, 300}) {
          if (m * n * k > 8000000) continue;
          GemmSpec spec{.m = m, .n = n, .k = k, .cpu = cpu};
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
  const CpuOptions cpu{.amx = nullptr};
  std::mt19937 random(4);
  constexpr GemmChoice kForms[] = {GemmChoice::kBest, GemmChoice::kBlocked,
                                   GemmChoice::kBlockedPackedA};
  for (const auto& [m, n, k] : {std::tuple{1, 512, 784},
                                {32, 130, 300},
                                {128, 770, 768},
                                {300, 600, 520},
                                {7, 2000, 40},
                                {700, 220, 600}}) {
    const auto a = random_numbers<float>(m * k, random);
    const auto b = random_numbers<float>(k * n, random);
    for (int i = 0; i < 9; ++i) {
      GemmSpec spec{
          .m = m, .n = n, .k = k, .threads = i % 3 + 1, .choice = kForms[i / 3], .cpu = cpu};
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
      EXPECT_EQ(results[0], results[1])
          << m << "x" << n << "x" << k << ", threads " << spec.threads << ", choice " << i / 3;
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

// Rows that give tiles of every height, several blocks of rows (192) and of steps (256), rows of a
// transposed A a page apart, whole B panels and parts of one: tiles that read operands in place,
// and tiles that read packed ones.
TEST(Gemm, PackedAChangesNoBit) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(11);
    for (const auto& [m, n, k] : {std::tuple{205, 531, 270},
                                  {205, 1100, 271},
                                  {7, 40, 9},
                                  {7, 40, 3},
                                  {193, 65, 256},
                                  {33, 65, 1024},
                                  {405, 160, 530},
                                  {1024, 96, 70},
                                  {9, 64, 21},
                                  {20, 64, 40},
                                  {45, 70, 13},
                                  {64, 2080, 33},
                                  {600, 200, 300},
                                  {430, 220, 513},
                                  {1024, 250, 300}}) {
      const auto a = random_numbers<float>(m * k, random);
      const auto b = random_numbers<float>(n * k, random);
      for (const int form : {0, 1, 2, 3}) {
        std::vector<float> c[2];
        GemmSpec spec{.m = m, .n = n, .k = k, .cpu = cpu};
        spec.transpose_a = form % 2 == 1;
        spec.transpose_b = form / 2 == 1;
        for (const GemmChoice choice : {GemmChoice::kBlocked, GemmChoice::kBlockedPackedA}) {
          const bool in_a_panels = choice == GemmChoice::kBlockedPackedA;
          spec.choice = choice;
          spec.threads = in_a_panels ? 2 : 1;
          const PreparedGemm gemm = prepare_gemm(spec);
          std::vector<float>& found = c[in_a_panels ? 1 : 0];
          found.resize(static_cast<std::size_t>(m * n));
          const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
          for (int repeat = 0; repeat < 2; ++repeat) {
            gemm({.a = a.data(), .b = b.data(), .c = found.data(), .scratch = scratch.get()});
          }
        }
        EXPECT_EQ(c[0], c[1]) << m << "x" << n << "x" << k << ", transposes " << form;
      }
    }
  });
}

TEST(Gemm, ShortVectorsReadPackedA) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    const std::int64_t lanes = gemm_target<double>(cpu.isa).lanes;
    const PreparedGemm gemm =
        prepare_gemm({.dtype = DataType::kFloat64, .m = 200, .n = 400, .k = 300, .cpu = cpu});
    // With 512-bit vectors only Intel's processors pack A.
    if (lanes < 8) {
      EXPECT_EQ(gemm.label.find("packed A"), 0U) << gemm.label;
    }
  });
}

TEST(Gemm, AddsSeveralOperands) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(4);
    for (const auto& [m, n, k] :
         {std::tuple{1, 2, 3}, {7, 33, 20}, {65, 97, 300}, {430, 220, 530}, {12, 300, 0}}) {
      for (const GemmChoice choice : kChoices) {
        for (const int threads : {1, 3}) {
          GemmSpec spec{.m = m, .n = n, .k = k, .threads = threads, .choice = choice, .cpu = cpu};
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

TEST(Gemm, ScalesAndSumsColumns) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(6);
    for (const auto& [m, n, k] : {std::tuple{1, 2, 1},
                                  {200, 130, 530},
                                  {390, 70, 40},
                                  {430, 220, 300},
                                  {33, 1030, 100},
                                  {20, 150, 600},
                                  {520, 90, 140}}) {
      for (const int threads : {1, 2, 3}) {
        for (const GemmChoice choice : {GemmChoice::kBlocked, GemmChoice::kBlockedPackedA}) {
          GemmSpec spec{.m = m, .n = n, .k = k, .threads = threads, .choice = choice, .cpu = cpu};
          spec.transpose_a = random() % 2 == 0;
          spec.transpose_b = random() % 2 == 0;
          spec.relu = random() % 2 == 0;
          spec.start = random() % 2 == 0 ? GemmStart::kZero : GemmStart::kMatrix;
          spec.sums_columns = random() % 3 != 0;
          spec.is_scaled = !spec.sums_columns || random() % 2 == 0;
          check_scaled<float>(spec, random);
          check_scaled<double>(spec, random);
        }
      }
    }
  });
  EXPECT_FALSE(can_scale({.m = 8, .n = 8, .k = 8}));
  EXPECT_FALSE(can_scale({.m = 400, .n = 1, .k = 4000}));
}

// Column sums of thousands of rows: sums in float32 alone would be off by more.
TEST(Gemm, SumsOfManyRowsAreAccurate) {
  constexpr std::int64_t kRows = 40000;
  GemmSpec spec{.m = kRows, .n = 32, .k = 4, .choice = GemmChoice::kBlockedPackedA};
  spec.sums_columns = true;
  const std::vector<float> a(kRows * 4, 0.1F);
  const std::vector<float> b(4 * 32, 1.0F);
  std::vector<float> c(kRows * 32), sums(32);
  const PreparedGemm gemm = prepare_gemm(spec);
  const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
  gemm({.a = a.data(),
        .b = b.data(),
        .c = c.data(),
        .scratch = scratch.get(),
        .column_sums = sums.data()});
  const double right = static_cast<double>(c[0]) * kRows;
  for (const float sum : sums) EXPECT_NEAR(sum, right, 4e-7 * right);
}

TEST(Gemm, ConsumesEachElementOnce) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    std::mt19937 random(5);
    for (const auto& [m, n, k] : {std::tuple{1, 2, 1},
                                  {200, 130, 300},
                                  {390, 70, 530},
                                  {33, 1030, 100},
                                  {20, 150, 5000},
                                  {520, 90, 140},
                                  {500, 150, 520},
                                  {100, 700, 260},
                                  {20, 1100, 260},
                                  {1024, 100, 600}}) {
      for (const int threads : {1, 2, 3}) {
        for (const bool transpose_a : {false, true}) {
          for (const GemmChoice choice : {GemmChoice::kBlocked, GemmChoice::kBlockedPackedA}) {
            GemmSpec spec{
                .m = m, .n = n, .k = k, .transpose_a = transpose_a, .threads = threads, .cpu = cpu};
            spec.transpose_b = random() % 2 == 0;
            spec.choice = choice;
            check_consumer<float>(spec, random);
            check_consumer<double>(spec, random);
          }
        }
      }
    }
  });
  EXPECT_FALSE(can_have_consumer({.m = 400, .n = 400, .k = 10000, .transpose_a = true}));
  EXPECT_FALSE(can_have_consumer({.m = 8, .n = 8, .k = 8}));
}

TEST(Gemm, NanGoesThrough) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> a(15 * 20, 1.0F);
    a[3 * 20 + 4] = nan;
    const std::vector<float> b(20 * 18, 1.0F);
    std::vector<float> c(15 * 18);
    const PreparedGemm gemm = prepare_gemm({.m = 15, .n = 18, .k = 20, .relu = true, .cpu = cpu});
    const auto scratch = base::allocate_aligned(gemm.scratch_bytes);
    gemm({.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
    for (std::size_t i = 0; i < 15; ++i) {
      for (std::size_t j = 0; j < 18; ++j) EXPECT_EQ(std::isnan(c[i * 18 + j]), i == 3);
    }
  });
}

}  // namespace
}  // namespace onnxgrad::device::gemm_test

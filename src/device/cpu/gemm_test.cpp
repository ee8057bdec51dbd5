#include "device/cpu/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "device/cpu/gemm_cost.h"
#include "device/cpu/gemm_tile.h"
#include "device/testing/emulated_amx.h"
#include "device/testing/gemm_checks.h"
#include "device/testing/instruction_sets.h"

// Every implementation of a GEMM, of every type and on every instruction set, with every epilogue
// (GemmFeature), against sums in float64.

namespace onnxgrad::device::gemm_test {
namespace {

using Sizes = std::array<std::int64_t, 3>;

constexpr GemmChoice kChoices[] = {GemmChoice::kBest, GemmChoice::kTiles, GemmChoice::kDots,
                                   GemmChoice::kBlocked, GemmChoice::kBlockedPackedA};

GemmCase make_case(const CpuOptions& cpu, DataType dtype, GemmChoice choice,
                   F16GemmChoice f16_choice = F16GemmChoice::kBest) {
  GemmCase one{.dtype = dtype, .f16_choice = f16_choice};
  one.gemm.dtype = is_f16(dtype) ? DataType::kFloat32 : dtype;
  one.gemm.choice = choice;
  one.gemm.cpu = cpu;
  return one;
}

/// A GEMM to which tests give sizes.
struct Kernel {
  std::string name;
  GemmCase gemm;
};

std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
  const auto add = [&](std::string name, const GemmCase& gemm) {
    all.push_back({std::move(name), gemm});
  };
  const auto add_f16 = [&](const std::string& name, const CpuOptions& cpu, F16GemmChoice choice) {
    add("bfloat16_" + name, make_case(cpu, DataType::kBfloat16, GemmChoice::kBest, choice));
    if (choice != F16GemmChoice::kWidened && choice != F16GemmChoice::kBest) return;
    add("float16_" + name, make_case(cpu, DataType::kFloat16, GemmChoice::kBest, choice));
  };
  for (const Isa isa : available_isas()) {
    const std::string name = isa_name(isa);
    for (const GemmChoice choice : kChoices) {
      const int number = static_cast<int>(choice);
      const CpuOptions cpu{.isa = isa};
      add(fmt::format("float32_{}_{}", number, name), make_case(cpu, DataType::kFloat32, choice));
      add(fmt::format("float64_{}_{}", number, name), make_case(cpu, DataType::kFloat64, choice));
    }
    add_f16("widened_" + name, {.amx = nullptr, .isa = isa}, F16GemmChoice::kWidened);
    add("split_emulated_" + name,
        make_case({.amx = &emulated_amx(), .isa = isa}, DataType::kFloat32, GemmChoice::kSplit));
  }
  add_f16("best", {}, F16GemmChoice::kBest);
  add_f16("parts_emulated", with_emulated_amx(), F16GemmChoice::kWidened);
  add_f16("amx_emulated", with_emulated_amx(), F16GemmChoice::kAmx);
  if (has_f16_gemm(F16GemmChoice::kVnni)) add_f16("vnni", {}, F16GemmChoice::kVnni);
  if (amx_target() != nullptr) {
    add("split_amx", make_case({}, DataType::kFloat32, GemmChoice::kSplit));
    add_f16("amx", {}, F16GemmChoice::kAmx);
  }
  return all;
}

class EveryGemm : public testing::TestWithParam<Kernel> {
 protected:
  /// Returns the kernel's GEMM of a size, with a feature if it has that.
  GemmCase with(const Sizes& sizes, GemmFeature feature, std::mt19937& random) const {
    GemmCase one = GetParam().gemm;
    one.gemm.m = sizes[0], one.gemm.n = sizes[1], one.gemm.k = sizes[2];
    GemmCase more = one;
    if (add_feature(more, feature, random)) return more;
    one.c_dtype = one.start_dtype = one.gemm.dtype;
    return one;
  }
  GemmFeature feature(int i) const {
    return static_cast<GemmFeature>(i % static_cast<int>(GemmFeature::kCount));
  }
};

TEST_P(EveryGemm, SmallProducts) {
  std::mt19937 random(1);
  const std::int64_t sizes[] = {0, 1, 2, 3, 7, 10, 15, 16, 17, 33, 50};
  const std::int64_t steps[] = {0, 1, 2, 9, 33};
  int i = 0;
  for (const std::int64_t m : sizes) {
    for (const std::int64_t n : sizes) {
      for (int repeat = 0; repeat < 3; ++repeat, ++i) {
        check(with({m, n, steps[random() % 5]}, feature(i), random), random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Several blocks of rows, columns and steps of each kernel, and tiles of every height.
TEST_P(EveryGemm, SeveralBlocks) {
  std::mt19937 random(2);
  constexpr Sizes kSizes[] = {{200, 530, 70},  {65, 97, 300},  {390, 70, 40},  {130, 70, 1100},
                              {33, 1030, 100}, {520, 90, 70},  {20, 150, 600}, {70, 90, 530},
                              {60, 130, 1600}, {20, 1100, 130}};
  for (int f = 0; f < static_cast<int>(GemmFeature::kCount); ++f) {
    for (auto i = static_cast<std::size_t>(f % 3); i < std::size(kSizes); i += 3) {
      check(with(kSizes[i], feature(f), random), random);
      if (HasFatalFailure()) return;
    }
  }
}

// Sizes with a part of a vector at the end of a row, too.
TEST_P(EveryGemm, ThreadsChangeNoBit) {
  std::mt19937 random(3);
  for (const Sizes& sizes : {Sizes{150, 150, 150}, {7, 900, 100}, {300, 53, 100}, {64, 53, 1600}}) {
    for (const GemmFeature feature :
         {GemmFeature::kNone, GemmFeature::kMatrix, GemmFeature::kScalesAndColumnSums,
          GemmFeature::kConsumer, GemmFeature::kPackedB}) {
      GemmCase one = with(sizes, feature, random);
      if (feature == GemmFeature::kNone) {  // sums of AMX then begin with those of the block before
        one.gemm.alpha = one.factor = 1;
        one.c_dtype = one.gemm.dtype;
        one.gemm.transpose_a = false;
      }
      GemmRun run(one, random);
      std::vector<std::byte> expected;
      // Emulated AMX takes long.
      const int step = GetParam().name.find("emulated") == std::string::npos ? 1 : 5;
      for (int threads = 1; threads <= 16; threads += step) {
        one.gemm.threads = threads;
        run.set_case(one);
        run.run();
        if (threads == 1) expected = run.bits();
        ASSERT_EQ(run.bits(), expected)
            << run.label() << ", " << threads << " threads, feature " << static_cast<int>(feature);
      }
    }
  }
}

// Infinity and NaN as multiply-adds give them: in their row only, and no NaN for infinity.
TEST_P(EveryGemm, InfinityAndNanGoThrough) {
  std::mt19937 random(4);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double special : {infinity, -infinity, std::nan("")}) {
    GemmCase one = with({40, 50, 60}, GemmFeature::kNone, random);
    one.gemm.transpose_a = false;
    one.gemm.alpha = one.factor = 1;
    one.gemm.relu = std::isnan(special);
    GemmRun run(one, random);
    for (std::int64_t i = 0; i < run.b().count(); ++i) run.b().set(i, std::abs(run.b()[i]) + 0.01);
    run.a().set(37 * 60 + 49, special);
    run.run();
    for (std::int64_t i = 0; i < run.c().count(); ++i) {
      const double given = run.c()[i];
      if (i / 50 != 37) {
        ASSERT_TRUE(std::isfinite(given)) << i;
      } else if (std::isnan(special)) {
        ASSERT_TRUE(std::isnan(given)) << i;
      } else {
        ASSERT_EQ(given, special) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gemm, EveryGemm, testing::ValuesIn(kernels()),
                         [](const auto& info) { return info.param.name; });

// Short and long sizes, and steps of a transposed A a page apart.
TEST(Gemm, RandomProducts) {
  std::mt19937 random(7);
  const auto size = [&](unsigned most) {
    return 1 + static_cast<std::int64_t>(random() % (random() % 3 == 0 ? 40 : most));
  };
  for (int i = 0; i < 150; ++i) {
    GemmCase one = make_case({}, DataType::kFloat32, kChoices[static_cast<std::size_t>(i) % 5]);
    one.gemm.m = random() % 8 == 0 ? 1024 : size(500);
    one.gemm.n = size(300);
    one.gemm.k = size(600);
    add_feature(one, GemmFeature::kMatrix, random);
    check(one, random);
    if (HasFatalFailure()) return;
  }
}

/// Returns the bits of a GEMM with `change` applied to its spec, of the same operands each time.
template <class F>
std::vector<std::byte> bits_with(GemmCase one, GemmRun& run, const F& change) {
  change(one.gemm);
  run.set_case(one);
  run.run();
  return run.bits();
}

TEST(Gemm, PackedBGivesTheSameBits) {
  std::mt19937 random(4);
  for (const auto& [m, n, k] : {std::tuple{1, 512, 784},
                                {32, 130, 300},
                                {128, 770, 768},
                                {300, 600, 520},
                                {7, 2000, 40},
                                {700, 220, 600}}) {
    GemmCase one = make_case({.amx = nullptr}, DataType::kFloat32, GemmChoice::kBest);
    one.gemm.m = m, one.gemm.n = n, one.gemm.k = k;
    GemmRun run(one, random);
    for (int i = 0; i < 9; ++i) {
      one.gemm.threads = i % 3 + 1;
      one.gemm.choice = i < 3   ? GemmChoice::kBest
                        : i < 6 ? GemmChoice::kBlocked
                                : GemmChoice::kBlockedPackedA;
      ASSERT_TRUE(can_pack_b(one.gemm));
      EXPECT_EQ(bits_with(one, run, [](GemmSpec& spec) { spec.b_is_packed = true; }),
                bits_with(one, run, [](GemmSpec& /*spec*/) {}))
          << m << "x" << n << "x" << k << ", case " << i;
    }
  }
}

// Rows that give tiles of every height, several blocks of rows and of steps, rows of a transposed A
// a page apart, whole B panels and parts of one: tiles that read operands in place, and tiles that
// read packed ones.
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
                                  {1024, 250, 300}}) {
      for (const int form : {0, 1, 2, 3}) {
        GemmCase one = make_case(cpu, DataType::kFloat32, GemmChoice::kBlocked);
        one.gemm.m = m, one.gemm.n = n, one.gemm.k = k;
        one.gemm.transpose_a = form % 2 == 1;
        one.gemm.transpose_b = form / 2 == 1;
        GemmRun run(one, random);
        const auto packed = [](GemmSpec& spec) {
          spec.choice = GemmChoice::kBlockedPackedA;
          spec.threads = 2;
        };
        EXPECT_EQ(bits_with(one, run, packed), bits_with(one, run, [](GemmSpec& /*spec*/) {}))
            << m << "x" << n << "x" << k << ", transposes " << form;
      }
    }
  });
}

// Column sums of thousands of rows: sums in float32 alone would be off by more.
TEST(Gemm, SumsOfManyRowsAreAccurate) {
  constexpr std::int64_t kRows = 40000;
  std::mt19937 random(1);
  GemmCase one = make_case({}, DataType::kFloat32, GemmChoice::kBlockedPackedA);
  one.gemm.m = kRows, one.gemm.n = 32, one.gemm.k = 4;
  one.gemm.sums_columns = true;
  GemmRun run(one, random);
  for (std::int64_t i = 0; i < run.a().count(); ++i) run.a().set(i, 0.1);
  for (std::int64_t i = 0; i < run.b().count(); ++i) run.b().set(i, 1);
  run.run();
  const double right = run.c()[0] * kRows;
  for (std::int64_t j = 0; j < 32; ++j) EXPECT_NEAR(run.column_sum(j), right, 4e-7 * right);
}

// ---- choices ----

/// Machines as this project was measured on, by hand.
constexpr Machine kZen3{.l2_bytes = 512 << 10, .vector_bits = 256, .fma_ports = 1};
constexpr Machine kZen4{.l2_bytes = 1 << 20, .vector_bits = 512, .fma_ports = 1};
constexpr Machine kIntel{
    .l1_bytes = 48 << 10, .l2_bytes = 2 << 20, .vector_bits = 512, .fma_ports = 2};
constexpr Machine kAmx{
    .l1_bytes = 48 << 10, .l2_bytes = 2 << 20, .vector_bits = 512, .fma_ports = 2, .has_amx = true};
constexpr Machine kNeon{.vector_bits = 128, .fma_ports = 1};

TEST(GemmCost, ChoosesForMachines) {
  using enum GemmChoice;
  const struct {
    Sizes sizes;
    bool transpose_a, transpose_b;
    GemmChoice zen3, zen4, intel, amx, neon;
  } rows[] = {
      {{15, 50, 100}, false, true, kTiles, kTiles, kTiles, kTiles, kTiles},
      {{1, 300, 784}, false, true, kDots, kDots, kDots, kDots, kDots},
      {{128, 512, 784},
       false,
       false,
       kBlockedPackedA,
       kTiles,
       kBlockedPackedA,
       kSplit,
       kBlockedPackedA},
      {{64, 512, 784}, false, false, kBlockedPackedA, kTiles, kTiles, kSplit, kBlockedPackedA},
      {{784, 512, 128},
       true,
       false,
       kBlockedPackedA,
       kBlocked,
       kBlockedPackedA,
       kSplit,
       kBlockedPackedA},
      {{1024, 3072, 768},
       false,
       true,
       kBlockedPackedA,
       kBlocked,
       kBlockedPackedA,
       kSplit,
       kBlockedPackedA},
      {{16, 3072, 768}, false, false, kTiles, kTiles, kTiles, kTiles, kTiles},
      {{2048, 64, 256}, true, false, kBlockedPackedA, kBlocked, kBlocked, kSplit, kBlockedPackedA},
  };
  for (const auto& row : rows) {
    GemmSpec spec{.m = row.sizes[0], .n = row.sizes[1], .k = row.sizes[2]};
    spec.transpose_a = row.transpose_a;
    spec.transpose_b = row.transpose_b;
    SCOPED_TRACE(testing::Message() << spec.m << "x" << spec.n << "x" << spec.k);
    EXPECT_EQ(choose_gemm(spec, kZen3), row.zen3);
    EXPECT_EQ(choose_gemm(spec, kZen4), row.zen4);
    EXPECT_EQ(choose_gemm(spec, kIntel), row.intel);
    EXPECT_EQ(choose_gemm(spec, kAmx), row.amx);
    EXPECT_EQ(choose_gemm(spec, kNeon), row.neon);
    spec.dtype = DataType::kFloat64;
    EXPECT_NE(choose_gemm(spec, kAmx), kSplit);
  }
}

TEST(GemmCost, FindsThisMachine) {
  const CpuOptions cpu;
  const Machine machine = machine_of(cpu);
  EXPECT_EQ(machine.vector_bits, 32 * gemm_target<float>(cpu.isa).lanes);
  EXPECT_EQ(machine.has_amx, cpu.amx != nullptr);
  EXPECT_GE(machine.l1_bytes, 8 << 10);
  EXPECT_GE(machine.l2_bytes, machine.l1_bytes);
}

TEST(Gemm, SaysWhatItCannotDo) {
  EXPECT_FALSE(can_scale(GemmSpec{.m = 8, .n = 8, .k = 8}));
  EXPECT_FALSE(can_scale(GemmSpec{.m = 400, .n = 1, .k = 4000}));
  EXPECT_FALSE(can_have_consumer(GemmSpec{.m = 400, .n = 400, .k = 10000, .transpose_a = true}));
  EXPECT_FALSE(can_have_consumer(GemmSpec{.m = 8, .n = 8, .k = 8}));
}

}  // namespace
}  // namespace onnxgrad::device::gemm_test

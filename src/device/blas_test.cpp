#include "device/blas.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "device/cpu/gemm.h"
#include "device/testing/gemm_checks.h"
#include "device/testing/instruction_sets.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad::device {
namespace {

/// OpenBLAS, which scripts/setup.sh installs, for the time of a test.
class BlasTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      load_blas("openblas");
    } catch (const OptionError& error) {
      GTEST_SKIP() << "needs OpenBLAS: " << error.problem().detail;
    }
  }
  void TearDown() override { choose_blas(""); }
};

TEST_F(BlasTest, ProductsOfAllFormsAreRight) {
  for_each_instruction_set([] {
    std::mt19937 random(1);
    for (const auto& [m, n, k] : {std::tuple{200, 530, 270},
                                  {65, 97, 400},
                                  {128, 512, 33},
                                  {2000, 33, 40},
                                  {32, 2100, 70},
                                  {150, 150, 150}}) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        GemmSpec spec{.m = m, .n = n, .k = k};
        spec.transpose_a = transposes % 2 != 0;
        spec.transpose_b = transposes / 2 != 0;
        spec.threads = static_cast<int>(random() % 4) + 1;
        EXPECT_EQ(prepare_gemm(spec).label.substr(0, 8), "openblas");
        check_variants<float>(spec, random);
        check_variants<double>(spec, random);
      }
    }
  });
}

TEST_F(BlasTest, AddsSeveralOperands) {
  std::mt19937 random(2);
  for (const int threads : {1, 3}) {
    for (const std::size_t count : {1U, 2U, 3U}) {
      GemmSpec spec{.m = 170, .n = 130, .k = 300, .threads = threads};
      spec.relu = count == 2;
      check_more_addends<float>(spec, random, count);
      check_more_addends<double>(spec, random, count);
    }
  }
}

TEST_F(BlasTest, HandsOverEachElementOnce) {
  std::mt19937 random(3);
  for (const auto& [m, n, k] :
       {std::tuple{200, 130, 300}, {1500, 700, 40}, {390, 170, 530}, {33, 1030, 100}}) {
    for (const int threads : {1, 2, 3}) {
      GemmSpec spec{.m = m, .n = n, .k = k, .transpose_a = threads != 2, .threads = threads};
      check_handed_over<float>(spec, random);
      check_handed_over<double>(spec, random);
    }
  }
}

TEST_F(BlasTest, TheSameBitsEachTime) {
  std::mt19937 random(4);
  const GemmSpec spec{.m = 300, .n = 200, .k = 500, .threads = 2};
  const auto a = random_numbers<float>(spec.m * spec.k, random);
  const auto b = random_numbers<float>(spec.n * spec.k, random);
  const PreparedGemm gemm = prepare_gemm(spec);
  std::vector<std::vector<float>> results(4, std::vector<float>(300 * 200));
  for (auto& c : results) gemm({.a = a.data(), .b = b.data(), .c = c.data()});
  for (const auto& c : results) EXPECT_EQ(c, results[0]);
}

// Sessions of several threads of a program.
TEST_F(BlasTest, ThreadsCallItAtOnce) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      std::mt19937 random(i);
      GemmSpec spec{.m = 150, .n = 160, .k = 170, .threads = 2};
      for (int repeat = 0; repeat < 5; ++repeat) check_variants<float>(spec, random);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(BlasTest, OwnKernelsComputeTheRest) {
  const auto name_of = [](const GemmSpec& spec) { return prepare_gemm(spec).label.substr(0, 4); };
  EXPECT_EQ(name_of({.m = 300, .n = 300, .k = 300}), "open");
  EXPECT_NE(name_of({.m = 30, .n = 30, .k = 30}), "open");
  EXPECT_NE(name_of({.m = 5000, .n = 1, .k = 5000}), "open");
  EXPECT_NE(name_of({.m = 300, .n = 300, .k = 300, .choice = GemmChoice::kBlocked}), "open");
  EXPECT_FALSE(can_pack_b({.m = 300, .n = 300, .k = 300}));
  EXPECT_TRUE(can_pack_b({.m = 30, .n = 30, .k = 30}));
  choose_blas("");
  EXPECT_NE(name_of({.m = 300, .n = 300, .k = 300}), "open");
  EXPECT_EQ(name_of({.m = 300, .n = 300, .k = 300, .choice = GemmChoice::kBlas}), "tile");
  EXPECT_TRUE(can_pack_b({.dtype = DataType::kFloat64, .m = 300, .n = 300, .k = 300}));
}

// What a plan of before refers to stays.
TEST_F(BlasTest, PreparedProductsOutliveTheChoice) {
  std::mt19937 random(5);
  const GemmSpec spec{.m = 150, .n = 150, .k = 150};
  const auto a = random_numbers<float>(spec.m * spec.k, random);
  const auto b = random_numbers<float>(spec.n * spec.k, random);
  const PreparedGemm gemm = prepare_gemm(spec);
  choose_blas("");
  std::vector<float> c(150 * 150);
  gemm({.a = a.data(), .b = b.data(), .c = c.data()});
  const Expected expected = expected_at<float>(spec, a, b, {}, 1, 149, 7);
  EXPECT_NEAR(static_cast<double>(c[149 * 150 + 7]), expected.value, expected.bound);
}

std::string message_of(const std::string& library, const std::vector<std::string>& folders = {}) {
  try {
    load_blas(library, folders);
  } catch (const OptionError& error) {
    return error.what();
  }
  return "";
}

TEST(BlasErrors, SayWhatIsWrong) {
  EXPECT_NE(message_of("mlk").find("unknown BLAS library 'mlk'"), std::string::npos);
  EXPECT_NE(message_of("mlk").find("Did you mean 'mkl'?"), std::string::npos);
  EXPECT_NE(message_of("/nowhere/libblas.so").find("cannot be loaded"), std::string::npos);
  EXPECT_NE(message_of("/nowhere/libblas.so").find("No such file"), std::string::npos);
  Dl_info info{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&dlsym), &info), 0);  // of the C library
  EXPECT_NE(message_of(info.dli_fname).find("exports no cblas_sgemm"), std::string::npos);
  EXPECT_EQ(blas(), nullptr);
}

TEST(BlasErrors, ARequestFailsAtTheFirstPlan) {
  choose_blas("/nowhere/libblas.so");
  EXPECT_THROW(prepare_gemm({.m = 300, .n = 300, .k = 300}), OptionError);
  EXPECT_THROW(prepare_gemm({.m = 300, .n = 300, .k = 300}), OptionError);
  EXPECT_NO_THROW(prepare_gemm({.m = 3, .n = 3, .k = 3}));
  choose_blas("");
}

TEST_F(BlasTest, AFailureLeavesTheChoice) {
  EXPECT_NE(message_of("/nowhere/libblas.so"), "");
  ASSERT_NE(blas(), nullptr);
  EXPECT_EQ(blas()->name, "openblas");
}

}  // namespace
}  // namespace onnxgrad::device

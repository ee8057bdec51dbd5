#include "train/weights/constant_evidence.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace onnxgrad::train::constant_evidence_test {

Tensor table(const Dims& dims, const auto& number) {
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < dims.num_elements(); ++i) numbers.push_back(number(i));
  return Tensor::from(numbers, dims).cast(DataType::kFloat32);
}

Tensor random_table(const Dims& dims, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, 0.02);
  return table(dims, [&](std::int64_t) { return normal(engine); });
}

TEST(ConstantEvidence, FormulasBehindTables) {
  const auto position = [](std::int64_t i) { return static_cast<double>(i / 8); };
  const auto frequency = [](std::int64_t pair) {
    return std::pow(1e4, -static_cast<double>(pair) / 4);
  };
  const Dims dims{32, 8};
  EXPECT_EQ(formula_behind(table(dims,
                                 [&](std::int64_t i) {
                                   const double angle = position(i) * frequency(i % 8 / 2);
                                   return i % 2 == 0 ? std::sin(angle) : std::cos(angle);
                                 })),
            "sines and cosines");
  EXPECT_EQ(formula_behind(table(
                dims,
                [&](std::int64_t i) {
                  return std::cos(position(i) * frequency(i % 4));  // rotary embeddings, each twice
                })),
            "sines and cosines");
  EXPECT_EQ(formula_behind(
                table({4, 5}, [](std::int64_t i) { return 0.5 + static_cast<double>(i % 5); })),
            "evenly spaced numbers");
  EXPECT_EQ(formula_behind(table(
                {64}, [](std::int64_t i) { return std::pow(1e4, -static_cast<double>(i) / 64); })),
            "evenly spaced numbers");
  EXPECT_EQ(formula_behind(table({2, 8, 8},
                                 [](std::int64_t i) {  // slopes of attention by distance
                                   const double slope = i < 64 ? 0.5 : 0.25;
                                   return -slope *
                                          std::abs(static_cast<double>((i / 8 % 8) - (i % 8)));
                                 })),
            "evenly spaced numbers");
  EXPECT_EQ(formula_behind(table(
                {2, 2}, [](std::int64_t i) { return 0.3 + (0.7 * static_cast<double>(i % 2)); })),
            "");
  EXPECT_EQ(formula_behind(table({4, 4},
                                 [](std::int64_t i) {
                                   return i % 4 > i / 4 ? -std::numeric_limits<double>::infinity()
                                                        : 0.0;
                                 })),
            "a mask");
}

TEST(ConstantEvidence, NothingIsBehindWhatIsLearnedOrEqual) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    for (const Dims& dims : {Dims{3}, Dims{2, 2}, Dims{1, 4, 6}, Dims{16, 8}}) {
      EXPECT_EQ(formula_behind(random_table(dims, seed)), "") << seed << dims.to_string();
      EXPECT_TRUE(has_own_values(random_table(dims, seed)));
    }
  }
  for (const double number : {0.0, 1.0, 1e-6, 0.25}) {
    const Tensor equal = table({2, 8}, [&](std::int64_t) { return number; });
    EXPECT_EQ(formula_behind(equal), "");
    EXPECT_FALSE(has_own_values(equal));
  }
}

TEST(ConstantEvidence, NumbersThatEveryNewNetworkHas) {
  EXPECT_FALSE(has_own_values(
      table({3, 4}, [](std::int64_t i) { return std::log(1.0 + static_cast<double>(i % 4)); })));
  EXPECT_FALSE(
      has_own_values(table({4, 4}, [](std::int64_t i) { return i % 5 == 0 ? 1.0 : 0.0; })));
  EXPECT_FALSE(has_own_values(table({}, [](std::int64_t) { return 0.25; })));
  EXPECT_TRUE(has_own_values(table({}, [](std::int64_t) { return 0.7318942; })));
  EXPECT_TRUE(has_own_values(table({2}, [](std::int64_t i) { return i == 0 ? 0.3 : 0.4; })));
  EXPECT_TRUE(has_own_values(table({1, 4}, [](std::int64_t i) { return static_cast<double>(i); })));
}

TEST(ConstantEvidence, SingleNumbers) {
  for (const double number :
       {0.0, 1.0, -0.5, 1e-5, 1e-12, 0.044715, 1.702, std::sqrt(2.0), std::sqrt(2 / M_PI),
        1 / std::sqrt(64.0), std::sqrt(0.3), M_PI, 2 * M_PI, std::log(2.0), 255.0, -3.4e38, 20.0}) {
    EXPECT_TRUE(is_formula_number(static_cast<double>(static_cast<float>(number)))) << number;
  }
  int taken = 0;
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 1000; ++i)
    taken += is_formula_number(static_cast<double>(normal(engine))) ? 1 : 0;
  EXPECT_LT(taken, 100);
}

TEST(ConstantEvidence, Names) {
  for (const char* name : {"val_12", "val_1_2", "onnx::Mul_281", "/layer.0/Constant_14_output_0",
                           "281", "const", "const_cast", "Ad_Addcst", "Di_Divcst1", "model/add/y:0",
                           "scalar_tensor_default_3", "_tensor_constant0"}) {
    EXPECT_TRUE(has_constant_name(name)) << name;
  }
  for (const char* name : {"layer.0.weight", "val", "gamma_1", "cls_token", "w", "b_2",
                           "interval_1", "onnxweight", "A_log"}) {
    EXPECT_EQ(has_constant_name(name), std::string_view(name) == "val") << name;
  }
  EXPECT_EQ(role_in_name("features.1.running_mean"), "running statistics");
  EXPECT_EQ(role_in_name("model/norm/moving_variance/ReadVariableOp:0"), "running statistics");
  EXPECT_EQ(role_in_name("decoder.attn_mask"), "a mask");
  EXPECT_EQ(role_in_name("mask_token"), "");
  EXPECT_EQ(role_in_name("mean"), "");
  EXPECT_TRUE(is_operator_name("mul_3"));
  EXPECT_FALSE(is_operator_name("log_scale"));
}

}  // namespace onnxgrad::train::constant_evidence_test

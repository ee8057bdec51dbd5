#include "onnxgrad/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "base/memory_budget.h"
#include "onnxgrad/dims.h"

namespace onnxgrad {
namespace {

TEST(Dims, ProductsAndStrides) {
  const Dims dims{2, 3, 4};
  EXPECT_EQ(dims.num_elements(), 24);
  EXPECT_EQ(dims.product(1, 3), 12);
  EXPECT_EQ(dims.strides(), (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_EQ(dims.size_bytes(DataType::kFloat64), 192);
  EXPECT_EQ(Dims{}.num_elements(), 1);
  EXPECT_EQ((Dims{2, 0, 3}).num_elements(), 0);
  EXPECT_EQ((Dims{5}).size_bytes(DataType::kInt4), 3);
}

TEST(Dims, RefusesWhatOverflows) {
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_THROW((Dims{huge, huge}), ShapeError);
  EXPECT_THROW((Dims{std::numeric_limits<std::int64_t>::max(), 2}), ShapeError);
  EXPECT_THROW((Dims{0, huge, huge}), ShapeError);  // the strides would overflow
  EXPECT_THROW((Dims{-1}), ShapeError);
  EXPECT_THROW(Dims(std::vector<std::int64_t>(65, 1)), ShapeError);
  EXPECT_THROW(std::ignore = (Dims{std::int64_t{1} << 61}).size_bytes(DataType::kFloat64),
               ShapeError);
}

TEST(Dims, Broadcasts) {
  EXPECT_EQ(broadcast_dims({3, 1}, {4}), (Dims{3, 4}));
  EXPECT_EQ(broadcast_dims({}, {2, 0}), (Dims{2, 0}));
  EXPECT_THROW(broadcast_dims({3}, {4}), ShapeError);
  EXPECT_EQ(normalize_axis(-1, 3), 2);
  EXPECT_THROW(normalize_axis(3, 3), ShapeError);
  EXPECT_THROW(normalize_axis(std::numeric_limits<std::int64_t>::min(), 3), ShapeError);
}

TEST(Tensor, CopiesShareAndClonesDoNot) {
  Tensor a = Tensor::from(std::vector<float>{1, 2, 3, 4}, Dims{2, 2});
  const Tensor shared = a;
  const Tensor copy = a.clone();
  a.mutable_data<float>()[0] = 9;
  EXPECT_EQ(shared.data<float>()[0], 9);
  EXPECT_EQ(copy.data<float>()[0], 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.raw()) % 64, 0U);
  EXPECT_TRUE(a.equals(shared));
  EXPECT_FALSE(a.equals(copy));
  EXPECT_THROW(a.data<double>(), DataError);
  EXPECT_THROW(std::ignore = a.reshaped(Dims{3}), ShapeError);
  EXPECT_EQ(a.reshaped(Dims{4}).raw(), a.raw());
}

TEST(Tensor, CastsWithoutUndefinedBehaviour) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from(std::vector<float>{nan, inf, -inf, 3.9F, -3.9F, 300}, Dims{6});
  EXPECT_EQ(x.cast(DataType::kInt8).to_int64s(),
            (std::vector<std::int64_t>{0, 127, -128, 3, -3, 127}));
  EXPECT_EQ(x.cast(DataType::kBool).to_int64s(), (std::vector<std::int64_t>{1, 1, 1, 1, 1, 1}));
  EXPECT_THROW(std::ignore = Tensor::from_strings({"a"}, Dims{1}).cast(DataType::kFloat32),
               DataError);
}

TEST(MemoryBudget, IsAskedBeforeAndGivenBack) {
  const auto budget = std::make_shared<base::MemoryBudget>(1 << 20);
  const base::MemoryBudgetScope scope(budget);
  {
    const Tensor half = Tensor::empty(DataType::kFloat32, Dims{1 << 17});
    EXPECT_EQ(budget->used_bytes(), 1 << 19);
    EXPECT_THROW(Tensor::empty(DataType::kFloat64, Dims{1 << 17}), DeviceError);
  }
  EXPECT_EQ(budget->used_bytes(), 0);
  EXPECT_THROW(Tensor::empty(DataType::kFloat32, Dims{std::int64_t{1} << 50}), DeviceError);
}

TEST(Tensor, F16PrecisionIsRead) {
  std::uint16_t halves[] = {0x3C00, 0xC100, 0x0001};  // 1, -2.5, 2^-24
  const Tensor half = Tensor::view(DataType::kFloat16, {3}, halves, nullptr);
  EXPECT_EQ(half.to_doubles(), (std::vector<double>{1, -2.5, 0x1p-24}));
  std::uint16_t brains[] = {0x3F80, 0xC020};  // 1, -2.5
  const Tensor brain = Tensor::view(DataType::kBfloat16, {2}, brains, nullptr);
  EXPECT_EQ(brain.cast(DataType::kInt64).to_int64s(), (std::vector<std::int64_t>{1, -2}));
}

}  // namespace
}  // namespace onnxgrad

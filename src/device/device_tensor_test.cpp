#include "device/device_tensor.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/memory_budget.h"
#include "device/testing/simulated_device.h"

namespace onnxgrad::device {
namespace {

Tensor numbers(std::vector<float> values) {
  const auto rows = static_cast<std::int64_t>(values.size()) / 2;
  return Tensor::from(values, {rows, 2});
}

TEST(DeviceTensor, CopiesRowsAndJoinsInItsMemory) {
  Device& device = testing::simulated_device();
  const DeviceTensor there = copy_to(device, numbers({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(there.device(), "simulated:0");
  EXPECT_EQ(there.dlpack_device(), (DlpackDevice{.type = 12, .id = 0}));
  EXPECT_TRUE(there.to_host().equals(numbers({1, 2, 3, 4, 5, 6})));
  const DeviceTensor part = there.rows(1, 3);
  const std::int64_t before = testing::simulated_copies();
  const DeviceTensor parts[] = {part, there.rows(0, 0), there};
  const DeviceTensor all = DeviceTensor::joined(parts);
  const DeviceTensor other = part.copy();
  EXPECT_EQ(testing::simulated_copies(), before);
  EXPECT_TRUE(all.to_host().equals(numbers({3, 4, 5, 6, 1, 2, 3, 4, 5, 6})));
  EXPECT_NE(other.address(), part.address());
  EXPECT_TRUE(other.to_host().equals(numbers({3, 4, 5, 6})));
  EXPECT_THROW(there.rows(2, 4), ShapeError);
  const DeviceTensor wide[] = {there, copy_to(device, Tensor::from(std::vector<float>{1}, {1, 1}))};
  EXPECT_THROW(DeviceTensor::joined(wide), ShapeError);
}

TEST(DeviceTensor, IsFreedInAnyThreadBeforeItIsCopied) {
  DeviceTensor lost = copy_to(testing::simulated_device(), numbers({1, 2}));
  std::thread([held = std::move(lost)]() mutable { held = {}; }).join();
}

TEST(DeviceTensor, OnTheHostSharesAndJoinsTexts) {
  Tensor tensor = numbers({1, 2, 3, 4});
  const DeviceTensor here(tensor);
  EXPECT_EQ(here.address(), tensor.mutable_raw());
  EXPECT_EQ(here.rows(1, 2).address(), tensor.mutable_raw() + 8);
  EXPECT_NE(here.copy().address(), here.address());
  const DeviceTensor texts(Tensor::from_strings({"a", "b", "c"}, {3}));
  const DeviceTensor parts[] = {texts.rows(2, 3), texts};
  const Tensor all = DeviceTensor::joined(parts).to_host();
  EXPECT_TRUE(all.equals(Tensor::from_strings({"c", "a", "b", "c"}, {4})));
}

TEST(DeviceMemory, HasABudgetOfItsOwn) {
  Device& device = testing::simulated_device();
  const auto budget = std::make_shared<base::MemoryBudget>(1 << 12);
  const base::MemoryBudgetScope scope(budget);
  const Buffer buffer = device.allocate(3 << 10);
  EXPECT_EQ(budget->used_bytes(), 0);
  EXPECT_EQ(device.budget()->used_bytes(), 3 << 10);
  const Tensor here = Tensor::empty(DataType::kUint8, {3 << 10});
  EXPECT_EQ(budget->used_bytes(), 3 << 10);
  try {
    device.allocate(2 << 10);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.problem().what,
              "out of memory budget on device 'simulated:0': 2048 bytes requested, 3072 in use, "
              "4096 allowed");
  }
  EXPECT_EQ(cpu().budget(), budget);
}

}  // namespace
}  // namespace onnxgrad::device

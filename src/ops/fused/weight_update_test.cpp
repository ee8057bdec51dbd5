#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "device/cpu/update.h"
#include "ir/builder.h"
#include "ops/testing/kernel_run.h"

// Fast kernels against the plain ones; device/cpu/update_test.cpp tests the loops themselves.

namespace onnxgrad::ops_test::weight_update_test {
namespace {

using device::UpdateRule;

constexpr double kTolerance = 2e-5;

struct Variant {
  UpdateRule rule;
  double decay;
  bool shrinks;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const UpdateRule rule :
       {UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdam, UpdateRule::kRoot,
        UpdateRule::kLion, UpdateRule::kVelocity, UpdateRule::kNesterovVelocity}) {
    all.push_back({rule, 0, false});
    all.push_back({rule, 0.2, false});
    all.push_back({rule, 0, true});
  }
  return all;
}

std::int64_t bits(double number) { return std::bit_cast<std::int64_t>(number); }

// w, m, v?, rate, epsilon?, shrink? behind `gradient`, and the outputs.
KernelCall update_call(const Variant& variant, DataType dtype, const Dims& dims,
                       std::vector<Tensor> gradient) {
  const bool is_adam = variant.rule == UpdateRule::kAdam;
  const bool is_root = variant.rule == UpdateRule::kRoot;
  KernelCall call{.op_type = gradient.size() == 2 ? "GemmWeightUpdate" : "WeightUpdate",
                  .inputs = std::move(gradient),
                  .domain = ir::kFusedDomain};
  call.attributes = {{.name = "rule", .value = static_cast<std::int64_t>(variant.rule)},
                     {.name = "numbers",
                      .value = std::vector<std::int64_t>{bits(variant.decay), bits(0.9),
                                                         bits(is_adam || is_root ? 0.1 : 1),
                                                         bits(0.99), bits(is_adam ? 0.01 : 1)}}};
  const auto scalar = [&](double x) { return Tensor::scalar_of(dtype, x); };
  call.inputs.push_back(random_tensor(dtype, dims, 2));
  call.inputs.push_back(random_tensor(dtype, dims, 3, is_root ? 0 : -1, 1));
  call.inputs.push_back(is_adam ? random_tensor(dtype, dims, 4, 0, 1) : Tensor());
  call.inputs.push_back(scalar(0.05));
  call.inputs.push_back(is_adam || is_root ? scalar(1e-8) : Tensor());
  call.inputs.push_back(variant.shrinks ? scalar(0.9) : Tensor());
  call.outputs.assign(is_adam ? 3 : 2, {dtype, dims});
  return call;
}

TEST(WeightUpdate, OfAnyShape) {
  for (const Variant& variant : variants()) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      for (const Dims& dims : {Dims{1}, Dims{50}, Dims{0}, Dims{3, 5, 7}, Dims{100, 50}}) {
        EXPECT_EQ(compare_offers(update_call(variant, dtype, dims, {random_tensor(dtype, dims, 1)}),
                                 kTolerance),
                  1U);
      }
    }
  }
}

TEST(WeightUpdate, OnSeveralThreads) {
  const Dims dims{1000, 201};
  for (const Variant& variant : variants()) {
    KernelCall call = update_call(variant, DataType::kFloat32, dims,
                                  {random_tensor(DataType::kFloat32, dims, 1)});
    call.threads = 3;
    EXPECT_EQ(compare_offers(call, kTolerance), 1U);
  }
}

// Products that fit a block, that are cut into blocks with and without a rest, and with one column.
TEST(GemmWeightUpdate, OfAllProducts) {
  for (const Variant& variant : variants()) {
    for (const auto& [m, n, k] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{100, 50, 15},
                                  {50, 10, 15},
                                  {10, 1, 15},
                                  {1, 7, 5},
                                  {784, 16, 3},
                                  {130, 70, 90},
                                  {3, 4000, 2},
                                  {4, 3, 0}}) {
      for (int t = 0; t < 4; ++t) {
        const bool transpose_a = t % 2 != 0;
        const bool transpose_b = t / 2 != 0;
        const DataType dtype = k == 90 ? DataType::kFloat64 : DataType::kFloat32;
        KernelCall call =
            update_call(variant, dtype, {m, n},
                        {random_tensor(dtype, transpose_a ? Dims{k, m} : Dims{m, k}, 5),
                         random_tensor(dtype, transpose_b ? Dims{n, k} : Dims{k, n}, 6)});
        call.attributes.push_back({.name = "transA", .value = std::int64_t{transpose_a}});
        call.attributes.push_back({.name = "transB", .value = std::int64_t{transpose_b}});
        EXPECT_EQ(compare_offers(call, kTolerance), 1U) << m << "x" << n << "x" << k << " " << t;
      }
    }
  }
}

}  // namespace
}  // namespace onnxgrad::ops_test::weight_update_test

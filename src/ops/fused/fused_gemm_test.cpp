#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "device/cpu/gemm.h"
#include "ir/builder.h"
#include "opdef/expr.h"
#include "ops/testing/kernel_run.h"

// Compares fast kernels with the reference. device/cpu/gemm_test.cpp tests the GEMMs themselves.

namespace onnxgrad::ops_test::fused_gemm_test {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

constexpr double kTolerance = 2e-5;

struct Product {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
};

std::vector<Product> products() {
  std::vector<Product> all;
  for (const auto& [m, n, k] : {std::tuple{15, 50, 100},
                                {15, 1, 10},
                                {15, 10, 1},
                                {1, 7, 5},
                                {3, 4, 0},
                                {0, 4, 3},
                                {70, 130, 90}}) {
    for (int t = 0; t < 4; ++t) all.push_back({m, n, k, t % 2 != 0, t / 2 != 0});
  }
  return all;
}

KernelCall matmul_call(const Product& p, DataType dtype) {
  KernelCall call{.op_type = "Gemm", .domain = ir::kFusedDomain};
  call.attributes = {{.name = "transA", .value = std::int64_t{p.transpose_a}},
                     {.name = "transB", .value = std::int64_t{p.transpose_b}}};
  call.inputs = {random_tensor(dtype, p.transpose_a ? Dims{p.k, p.m} : Dims{p.m, p.k}, 1),
                 random_tensor(dtype, p.transpose_b ? Dims{p.n, p.k} : Dims{p.k, p.n}, 2)};
  call.outputs = {{dtype, {p.m, p.n}}};
  return call;
}

ExprProgram bias_relu() {
  ExprProgram program{.num_inputs = 2};
  program.results = {
      program.emit(ExprOp::kRelu, program.emit(ExprOp::kAdd, program.input(0), program.input(1)))};
  return program;
}

ExprProgram masked() {  // product * (in1 > 0) + 0.5 in2
  ExprProgram program{.num_inputs = 3};
  const auto mask = program.emit(ExprOp::kGreater, program.input(1), program.constant(0));
  const auto product = program.emit(ExprOp::kMul, program.input(0), mask);
  const auto half = program.emit(ExprOp::kMul, program.input(2), program.constant(0.5));
  program.results = {program.emit(ExprOp::kAdd, product, half)};
  return program;
}

TEST(FusedGemm, PlainProducts) {
  for (const Product& p : products()) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      EXPECT_EQ(compare_offers(matmul_call(p, dtype), kTolerance), 1U);
    }
  }
}

TEST(FusedGemm, Epilogues) {
  for (const Product& p : products()) {
    for (const Dims& addend :
         {Dims{p.n}, Dims{1, p.n}, Dims{p.m, p.n}, Dims{p.m, 1}, Dims{}, Dims{1}}) {
      KernelCall call = matmul_call(p, DataType::kFloat32);
      call.inputs.push_back(random_tensor(DataType::kFloat32, addend, 3));
      call.attributes.push_back({.name = "epilogue", .value = bias_relu().to_ints()});
      EXPECT_EQ(compare_offers(call, kTolerance), 1U) << addend.to_string();

      call.attributes.back().value = masked().to_ints();
      call.inputs.push_back(random_tensor(DataType::kFloat32, {p.m, p.n}, 4));
      EXPECT_EQ(compare_offers(call, kTolerance), 1U) << addend.to_string();
    }
  }
}

// Element-wise factors and column sums: in the GEMM's epilogue if it is large, else in a pass after
// it.
TEST(FusedGemm, ScalesAndSumsOfColumns) {
  ExprProgram scaled{.num_inputs = 2};
  scaled.results = {scaled.emit(ExprOp::kMul, scaled.input(1), scaled.input(0))};
  auto sizes = products();
  sizes.push_back({300, 200, 130, false, true});
  sizes.push_back({300, 600, 400, false, false});
  for (const Product& p : sizes) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      for (const int threads : {1, 3}) {
        KernelCall call = matmul_call(p, dtype);
        call.threads = threads;
        call.inputs.push_back(random_tensor(dtype, {p.m, p.n}, 3));
        call.attributes.push_back({.name = "epilogue", .value = scaled.to_ints()});
        EXPECT_EQ(compare_offers(call, kTolerance), 1U);
        call.attributes.push_back({.name = "sums_columns", .value = std::int64_t{1}});
        call.outputs.push_back({dtype, {1, p.n}});
        EXPECT_EQ(compare_offers(call, kTolerance), 1U);
        const bool is_large = device::can_scale({.dtype = dtype,
                                                 .m = p.m,
                                                 .n = p.n,
                                                 .k = p.k,
                                                 .transpose_a = p.transpose_a,
                                                 .transpose_b = p.transpose_b,
                                                 .threads = threads});
        EXPECT_EQ(run_offers(call).front().label.ends_with(" scaled, sums"), is_large);
        call.inputs.back() = random_tensor(dtype, {p.n}, 3);  // a row is not a matrix of factors
        EXPECT_EQ(compare_offers(call, kTolerance), 1U);
        EXPECT_FALSE(run_offers(call).front().label.ends_with(" scaled, sums"));
      }
    }
  }
}

// A session without training packs constant weights when the kernel is prepared.
TEST(FusedGemm, ConstantWeights) {
  for (const Product& p : products()) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      for (const int threads : {1, 2, 3}) {
        KernelCall call = matmul_call(p, dtype);
        call.threads = threads;
        call.constants = {1};
        EXPECT_EQ(compare_offers(call, kTolerance), 1U);
        call.inputs.push_back(random_tensor(dtype, {p.n}, 3));
        call.attributes.push_back({.name = "epilogue", .value = bias_relu().to_ints()});
        EXPECT_EQ(compare_offers(call, kTolerance), 1U);
      }
    }
  }
}

TEST(FusedGemm, ABiasOfZerosTakesNoPass) {
  ExprProgram program{.num_inputs = 1};
  program.results = {program.emit(
      ExprOp::kRelu, program.emit(ExprOp::kAdd, program.input(0), program.constant(0)))};
  for (const Product& p : products()) {
    KernelCall call = matmul_call(p, DataType::kFloat32);
    call.attributes.push_back({.name = "epilogue", .value = program.to_ints()});
    EXPECT_EQ(compare_offers(call, kTolerance), 1U);
    EXPECT_TRUE(run_offers(call).front().label.ends_with(" relu"));
  }
}

TEST(FusedGemm, LeadingAxesCollapse) {
  KernelCall call{.op_type = "Gemm", .domain = ir::kFusedDomain};
  call.inputs = {random_tensor(DataType::kFloat32, {2, 3, 5}, 1),
                 random_tensor(DataType::kFloat32, {5, 4}, 2),
                 random_tensor(DataType::kFloat32, {4}, 3)};
  call.outputs = {{DataType::kFloat32, {2, 3, 4}}};
  call.attributes = {{.name = "epilogue", .value = bias_relu().to_ints()}};
  EXPECT_EQ(compare_offers(call, kTolerance), 1U);
}

TEST(FusedGemm, Updates) {
  for (const Product& p : products()) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      KernelCall call = matmul_call(p, dtype);
      call.op_type = "GemmUpdate";
      call.inputs.insert(call.inputs.begin(), random_tensor(dtype, {p.m, p.n}, 3));
      call.attributes.push_back({.name = "scale", .value = -0.25F});
      EXPECT_EQ(compare_offers(call, kTolerance), 1U);
      call.inputs.push_back(random_tensor(dtype, {}, 4));
      EXPECT_EQ(compare_offers(call, kTolerance), 1U);
    }
  }
}

TEST(FusedGemm, MatMulOfBatches) {
  const std::vector<std::pair<Dims, Dims>> shapes = {{{2, 3}, {3, 4}},
                                                     {{5, 2, 3}, {3, 4}},
                                                     {{5, 2, 3}, {5, 3, 4}},
                                                     {{1, 2, 3}, {5, 3, 4}},
                                                     {{2, 1, 2, 3}, {3, 3, 4}},
                                                     {{3}, {3, 4}},
                                                     {{2, 3}, {3}},
                                                     {{3}, {3}},
                                                     {{5, 2, 3}, {3}},
                                                     {{3}, {5, 3, 4}},
                                                     {{0, 2, 3}, {0, 3, 4}},
                                                     {{2, 0}, {0, 4}},
                                                     {{40, 20, 33}, {40, 33, 50}}};
  for (const auto& [a, b] : shapes) {
    std::vector<std::int64_t> dims;
    const auto outer = [](const Dims& d) {
      const auto count = static_cast<std::ptrdiff_t>(d.rank() > 2 ? d.rank() - 2 : 0);
      return Dims(std::vector<std::int64_t>(d.begin(), d.begin() + count));
    };
    const Dims batch = broadcast_dims(outer(a), outer(b));
    dims.assign(batch.begin(), batch.end());
    if (a.rank() > 1) dims.push_back(a[a.rank() - 2]);
    if (b.rank() > 1) dims.push_back(b[b.rank() - 1]);
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      for (const int threads : {1, 2}) {
        EXPECT_EQ(
            compare_offers({.op_type = "MatMul",
                            .inputs = {random_tensor(dtype, a, 1), random_tensor(dtype, b, 2)},
                            .outputs = {{dtype, Dims(dims)}},
                            .threads = threads},
                           kTolerance),
            1U)
            << a.to_string() << " " << b.to_string();
      }
    }
  }
}

TEST(FusedGemm, GemmOfTheStandard) {
  for (const Product& p : products()) {
    for (const Dims& addend : {Dims{p.n}, Dims{1, p.n}, Dims{p.m, p.n}, Dims{p.m, 1}, Dims{}}) {
      for (const float beta : {1.0F, 0.5F, 0.0F}) {
        KernelCall call = matmul_call(p, DataType::kFloat64);
        call.domain = "";
        call.inputs.push_back(random_tensor(DataType::kFloat64, addend, 3));
        call.attributes.push_back({.name = "alpha", .value = beta == 0.5F ? -2.0F : 1.0F});
        call.attributes.push_back({.name = "beta", .value = beta});
        EXPECT_EQ(compare_offers(call, 1e-12), 1U) << addend.to_string() << " beta " << beta;
      }
    }
  }
}

// Addends for a residual, a bias and the gradients of several consumers need no pass of their own.
TEST(FusedGemm, SumsOfSeveralOperands) {
  ExprProgram program{.num_inputs = 5};
  const auto left = program.emit(ExprOp::kAdd, program.input(1), program.input(0));
  const auto right = program.emit(ExprOp::kAdd, program.input(2), program.input(3));
  const auto sum = program.emit(ExprOp::kAdd, left, right);
  program.results = {program.emit(ExprOp::kAdd, sum, program.input(4))};
  for (const Product& p : products()) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      KernelCall call = matmul_call(p, dtype);
      for (const Dims& addend : {Dims{p.m, p.n}, Dims{p.n}, Dims{p.m, p.n}, Dims{1, p.n}}) {
        call.inputs.push_back(random_tensor(dtype, addend, 10 + call.inputs.size()));
      }
      call.attributes.push_back({.name = "epilogue", .value = program.to_ints()});
      EXPECT_EQ(compare_offers(call, kTolerance), 1U);
      if (p.n > 1 && p.m > 0) {
        EXPECT_TRUE(run_offers(call).front().label.ends_with("+ 4 addends"));
      }
    }
  }
}

}  // namespace
}  // namespace onnxgrad::ops_test::fused_gemm_test

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/expr.h"
#include "ops/testing/kernel_run.h"

// Element-wise work on single numbers beside the kernel for arrays (rank 1), whose arithmetic is
// other code.

namespace onnxgrad::ops_test::elementwise_number_test {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

constexpr int kNumberRank = 2;
constexpr int kArrayRank = 1;

KernelCall call_of(const ExprProgram& program, DataType compute) {
  return {.op_type = "Elementwise",
          .attributes = {{.name = "program", .value = program.to_ints()},
                         {.name = "compute", .value = static_cast<std::int64_t>(compute)}},
          .domain = ir::kFusedDomain};
}

const KernelRun* run_of(const std::vector<KernelRun>& runs, int rank) {
  for (const KernelRun& run : runs) {
    if (run.rank == rank) return &run;
  }
  return nullptr;
}

void expect_same(const Tensor& found, const Tensor& expected, double tolerance) {
  const double x = found.to_doubles().front();
  const double y = expected.to_doubles().front();
  if (std::isnan(y)) {
    EXPECT_TRUE(std::isnan(x)) << x;
  } else if (std::isinf(y)) {
    EXPECT_EQ(x, y);
  } else {
    EXPECT_NEAR(x, y, tolerance * std::max(std::abs(y), 1.0));
  }
}

bool has_integers(ExprOp op) {
  return (op < ExprOp::kExp || op > ExprOp::kRound) && op != ExprOp::kToFloat16 &&
         op != ExprOp::kToBfloat16;
}

TEST(ElementwiseNumber, EveryOperationGivesTheNumberOfAnArray) {
  for (int number = static_cast<int>(ExprOp::kAdd); number <= static_cast<int>(ExprOp::kFma);
       ++number) {
    const auto op = static_cast<ExprOp>(number);
    for (const DataType compute :
         {DataType::kFloat32, DataType::kFloat64, DataType::kInt64, DataType::kUint64}) {
      if (!is_floating(compute) && !has_integers(op)) continue;
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        ExprProgram program{.num_inputs = 3};
        for (int i = 0; i < 3; ++i) program.input(i);
        program.results = {program.emit(op, 0, 1, 2)};
        KernelCall call = call_of(program, compute);
        for (std::uint64_t i = 0; i < 3; ++i) {
          call.inputs.push_back(
              random_tensor(DataType::kFloat64, i == 0 ? Dims{1, 1} : Dims{}, seed * 3 + i, -3, 4)
                  .cast(compute));
        }
        call.outputs = {{compute, {1, 1}}};
        SCOPED_TRACE(std::string(opdef::expr_op_name(op)) + " in " +
                     std::string(dtype_name(compute)));
        const std::vector<KernelRun> runs = run_offers(call);
        const KernelRun* numbers = run_of(runs, kNumberRank);
        const KernelRun* arrays = run_of(runs, kArrayRank);
        ASSERT_NE(numbers, nullptr);
        ASSERT_NE(arrays, nullptr);
        expect_same(numbers->outputs[0], arrays->outputs[0],
                    compute == DataType::kFloat32 ? 2e-6 : 1e-13);
      }
    }
  }
}

// Numbers of every type that is converted, and results that are not read.
TEST(ElementwiseNumber, ConvertsOperandsAndResults) {
  ExprProgram program{.num_inputs = 2};
  const std::int32_t a = program.input(0);
  const std::int32_t b = program.input(1);
  const std::int32_t sum = program.emit(ExprOp::kAdd, a, b);
  program.results = {sum, a, program.emit(ExprOp::kMul, sum, program.constant(0.5))};
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64,
        DataType::kInt8, DataType::kInt64, DataType::kUint16, DataType::kBool}) {
    KernelCall call = call_of(program, DataType::kFloat64);
    call.attributes.push_back({.name = "stored", .value = std::int64_t{3}});
    call.inputs = {Tensor::scalar_of(dtype, 1), Tensor::scalar_of(DataType::kInt64, 6)};
    call.outputs = {{DataType::kFloat32, {}}, {}, {dtype, {}}};
    const std::vector<KernelRun> runs = run_offers(call);
    const KernelRun* run = run_of(runs, kNumberRank);
    ASSERT_NE(run, nullptr) << dtype_name(dtype);
    EXPECT_EQ(run->outputs[0].to_doubles().front(), 7);
    const double half = dtype == DataType::kBool ? 1 : is_floating(dtype) ? 3.5 : 3;
    EXPECT_EQ(run->outputs[2].to_doubles().front(), half) << dtype_name(dtype);
  }
}

// Numbers that the type of the result does not have: as in arrays, whatever that is.
TEST(ElementwiseNumber, ConvertsWhatDoesNotFitAsArraysDo) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ExprProgram program{.num_inputs = 1};
  program.results = {program.input(0)};
  for (const DataType compute : {DataType::kFloat32, DataType::kFloat64, DataType::kInt64}) {
    for (const DataType to :
         {DataType::kInt8, DataType::kUint8, DataType::kInt16, DataType::kUint16, DataType::kInt32,
          DataType::kUint32, DataType::kInt64, DataType::kUint64, DataType::kBool,
          DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const double x : {-1.5, 300.7, 70000.0, -70000.0, 5e9, -5e9, 1e20, -1e20, 1e39, 1e-46,
                             std::nan(""), kInfinity, -kInfinity}) {
        if (!is_floating(compute) && (std::abs(x) > 1e18 || std::isnan(x))) continue;
        KernelCall call = call_of(program, compute);
        call.inputs = {Tensor::scalar_of(DataType::kFloat64, x).cast(compute)};
        call.outputs = {{to, {}}};
        const std::vector<KernelRun> runs = run_offers(call);
        const KernelRun* numbers = run_of(runs, kNumberRank);
        const KernelRun* arrays = run_of(runs, kArrayRank);
        ASSERT_NE(numbers, nullptr);
        if (arrays == nullptr) continue;
        SCOPED_TRACE(std::to_string(x) + " from " + std::string(dtype_name(compute)) + " to " +
                     std::string(dtype_name(to)));
        expect_same(numbers->outputs[0], arrays->outputs[0], 0);
      }
    }
  }
}

TEST(ElementwiseNumber, LeavesArraysAndLongProgramsToOthers) {
  const auto is_taken = [](const KernelCall& call) {
    return run_of(run_offers(call), kNumberRank) != nullptr;
  };
  ExprProgram program{.num_inputs = 1};
  program.results = {program.emit(ExprOp::kNeg, program.input(0))};
  KernelCall call = call_of(program, DataType::kFloat32);
  call.inputs = {Tensor::scalar_of(DataType::kFloat32, 2)};
  call.outputs = {{DataType::kFloat32, {}}};
  EXPECT_TRUE(is_taken(call));
  call.inputs = {random_tensor(DataType::kFloat32, {2}, 1)};
  call.outputs = {{DataType::kFloat32, {2}}};
  EXPECT_FALSE(is_taken(call));
  call.inputs = {random_tensor(DataType::kFloat32, {0}, 1)};
  call.outputs = {{DataType::kFloat32, {0}}};
  EXPECT_FALSE(is_taken(call));
  for (int i = 0; i < 100; ++i) {
    program.results = {program.emit(ExprOp::kNeg, program.results[0])};
  }
  call = call_of(program, DataType::kFloat32);
  call.inputs = {Tensor::scalar_of(DataType::kFloat32, 2)};
  call.outputs = {{DataType::kFloat32, {}}};
  EXPECT_FALSE(is_taken(call));
}

}  // namespace
}  // namespace onnxgrad::ops_test::elementwise_number_test

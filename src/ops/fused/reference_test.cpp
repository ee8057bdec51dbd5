#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/expr.h"
#include "opdef/kernel.h"
#include "ops/testing/kernel_run.h"

// Each expected value is computed by hand in the test.

namespace onnxgrad::ops_test::reference_test {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

std::vector<Tensor> run(std::string_view op_type, std::vector<Tensor> inputs,
                        std::vector<opdef::TensorDesc> outputs,
                        std::vector<ir::Attribute> attributes) {
  return run_plain({.op_type = op_type,
                    .attributes = std::move(attributes),
                    .inputs = std::move(inputs),
                    .outputs = std::move(outputs),
                    .domain = ir::kFusedDomain});
}

const Tensor kMatrix = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, Dims{2, 3});
const Tensor kRow = Tensor::from(std::vector<float>{10, 20, 30}, Dims{3});

// s = x + row is stored; its sums over rows go through b - 0.5 sum.
TEST(FusedReference, ElementwiseStoresReducesAndGoesOn) {
  ExprProgram main{.num_inputs = 2};
  const auto sum = main.emit(ExprOp::kAdd, main.input(0), main.input(1));
  main.results = {sum, sum};
  ExprProgram post{.num_inputs = 2};
  const auto half = post.emit(ExprOp::kMul, post.input(0), post.constant(0.5));
  post.results = {post.emit(ExprOp::kSub, post.input(1), half)};
  const Tensor b = Tensor::from(std::vector<float>{100, 200, 300}, Dims{3});
  const auto results = run("Elementwise", {kMatrix, kRow, b},
                           {{DataType::kFloat32, {2, 3}}, {DataType::kFloat32, {3}}},
                           {{.name = "program", .value = main.to_ints()},
                            {.name = "compute", .value = std::int64_t{1}},
                            {.name = "stored", .value = std::int64_t{1}},
                            {.name = "reduce", .value = std::vector<std::int64_t>{0}},
                            {.name = "reduce_axes", .value = std::vector<std::int64_t>{0}},
                            {.name = "post", .value = post.to_ints()}});
  EXPECT_EQ(results[0].to_doubles(), (std::vector<double>{11, 22, 33, 14, 25, 36}));
  EXPECT_EQ(results[1].to_doubles(), (std::vector<double>{87.5, 176.5, 265.5}));
}

TEST(FusedReference, MasksAreBooleansOutside) {
  ExprProgram main{.num_inputs = 1};
  main.results = {main.emit(ExprOp::kGreater, main.input(0), main.constant(2.5))};
  const auto results = run("Elementwise", {kMatrix}, {{DataType::kBool, {2, 3}}},
                           {{.name = "program", .value = main.to_ints()},
                            {.name = "compute", .value = std::int64_t{1}},
                            {.name = "stored", .value = std::int64_t{1}}});
  EXPECT_EQ(results[0].to_int64s(), (std::vector<std::int64_t>{0, 0, 1, 1, 1, 1}));
}

TEST(FusedReference, IntegersNeverTrap) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  const Tensor a = Tensor::from(std::vector<std::int64_t>{kMin, 7, -7, kMin}, Dims{4});
  const Tensor b = Tensor::from(std::vector<std::int64_t>{-1, 0, 2, -1}, Dims{4});
  ExprProgram main{.num_inputs = 2};
  const auto x = main.input(0);
  const auto y = main.input(1);
  main.results = {main.emit(ExprOp::kDiv, x, y), main.emit(ExprOp::kMod, x, y),
                  main.emit(ExprOp::kAdd, x, y), main.emit(ExprOp::kAbs, x)};
  const opdef::TensorDesc desc{DataType::kInt64, {4}};
  const auto results = run("Elementwise", {a, b}, {desc, desc, desc, desc},
                           {{.name = "program", .value = main.to_ints()},
                            {.name = "compute", .value = std::int64_t{7}},
                            {.name = "stored", .value = std::int64_t{4}}});
  EXPECT_EQ(results[0].to_int64s(), (std::vector<std::int64_t>{kMin, 0, -3, kMin}));
  EXPECT_EQ(results[1].to_int64s(), (std::vector<std::int64_t>{0, 0, 1, 0}));
  EXPECT_EQ(results[2].to_int64s()[0], std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(results[3].to_int64s()[0], kMin);
}

// y = relu(A^T B^T + row), A = [[1, 2], [3, 4], [5, 6]]^T as stored.
TEST(FusedReference, GemmWithFlagsAndEpilogue) {
  const Tensor a = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, Dims{3, 2});  // A^T: [2, 3]
  const Tensor b = Tensor::from(std::vector<float>{1, 0, 0, 0, 1, -9}, Dims{2, 3});
  const Tensor row = Tensor::from(std::vector<float>{0.5F, 1}, Dims{2});
  ExprProgram epilogue{.num_inputs = 2};
  epilogue.results = {epilogue.emit(
      ExprOp::kRelu, epilogue.emit(ExprOp::kAdd, epilogue.input(0), epilogue.input(1)))};
  const auto results = run("Gemm", {a, b, row}, {{DataType::kFloat32, {2, 2}}},
                           {{.name = "transA", .value = std::int64_t{1}},
                            {.name = "transB", .value = std::int64_t{1}},
                            {.name = "epilogue", .value = epilogue.to_ints()}});
  // A^T = [[1, 3, 5], [2, 4, 6]]; first column of B^T picks 1 and 2; the second 3 - 45, 4 - 54.
  EXPECT_EQ(results[0].to_doubles(), (std::vector<double>{1.5, 0, 2.5, 0}));
}

TEST(FusedReference, GemmUpdateScalesByTheRateCell) {
  const Tensor w = Tensor::from(std::vector<double>{1, 1}, Dims{2, 1});
  const Tensor x = Tensor::from(std::vector<double>{1, 2, 3, 4}, Dims{2, 2});
  const Tensor dy = Tensor::from(std::vector<double>{10, 100}, Dims{2, 1});
  const auto results =
      run("GemmUpdate", {w, x, dy, Tensor::scalar(0.1)}, {{DataType::kFloat64, {2, 1}}},
          {{.name = "transA", .value = std::int64_t{1}}, {.name = "scale", .value = -1.0F}});
  EXPECT_NEAR(results[0].to_doubles()[0], 1 - 0.1 * 310, 1e-12);
  EXPECT_NEAR(results[0].to_doubles()[1], 1 - 0.1 * 420, 1e-12);
}

}  // namespace
}  // namespace onnxgrad::ops_test::reference_test

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "device/testing/instruction_sets.h"
#include "ir/builder.h"
#include "ops/testing/case_runner.h"
#include "ops/testing/kernel_run.h"

// Compares LayerNormalization and its gradient, fused with their neighbours, with the nodes that
// they replace; passes/fuse_layer_norms_test.cpp tests what is fused.

namespace onnxgrad::ops_test::fused_layer_norm_test {
namespace {

CaseInput number(double value) { return values({value}, {}).constant(); }
CaseInput mode(bool is_on) {
  return values({is_on ? 1.0 : 0.0}, {}, DataType::kBool).constant().named("mode");
}

struct Sizes {
  Dims x;
  Dims row;
  int axis = -1;
};

// Builds a case: `before` leads from x and r to the sum s, `after` from y and s to the output z.
OpCase make_case(const Sizes& n, const std::string& before, const std::string& after,
                 const std::vector<CaseInput>& more) {
  OpCase made{
      .name = "layer_norm_" + std::to_string(before.size()),
      .model = before + "\ny = LayerNormalization <axis = " + std::to_string(n.axis) +
               ", epsilon = 0.001> (s, scale, bias)\n" + after,
      .inputs = {uniform(n.x, -1, 1).named("x"), uniform(n.x, -1, 1).named("r"),
                 uniform(n.row, 0.5, 2).named("scale"), uniform(n.row, -1, 1).named("bias")},
      .outputs = {"z"},
      .wrt = {"x", "r", "scale", "bias"}};
  made.inputs.insert(made.inputs.end(), more.begin(), more.end());
  return made;
}

void check(const OpCase& one, const device::CpuOptions& cpu = {}) {
  SCOPED_TRACE(one.model);
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    const BuiltCase built = build_case(one, {.dtype = dtype});
    const CaseResult fused = run_case(one, built, {.cpu = cpu});
    const CaseResult plain = run_case(one, built, {.fuse = false, .cpu = cpu});
    const double tolerance = dtype == DataType::kFloat32 ? 2e-5 : 1e-13;
    EXPECT_EQ(compare(fused.outputs[0], plain.outputs[0], tolerance), "");
    ASSERT_EQ(fused.gradients.size(), plain.gradients.size());
    for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
      EXPECT_EQ(compare(fused.gradients[i], plain.gradients[i], tolerance), "") << i;
    }
    std::vector<Tensor> inputs = built.inputs;
    inputs.insert(inputs.end(), fused.seeds.begin(), fused.seeds.end());
    runtime::Executor alone(built.gradient, builtin_engine(), {.threads = 1, .cpu = cpu});
    runtime::Executor shared(built.gradient, builtin_engine(), {.threads = 3, .cpu = cpu});
    const std::vector<Tensor> expected = alone.run(inputs);
    const std::vector<Tensor> given = shared.run(inputs);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(compare(given[i], expected[i], tolerance), "") << i << ", three threads";
    }
  }
}

const std::vector<Sizes>& sizes() {
  static const std::vector<Sizes> all = {
      {{2, 5, 7}, {7}}, {{3, 4, 6}, {4, 6}, 1}, {{1, 33}, {33}}, {{300, 240}, {240}}};
  return all;
}

TEST(FusedLayerNorm, PostNorm) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    for (const Sizes& n : sizes()) {
      check(make_case(n, "s = Add (x, r)", "z = Sin (y)", {}), cpu);
      for (const bool is_on : {false, true}) {
        check(make_case(n, "d, m = Dropout <seed = 7> (x, ratio, mode)\ns = Add (d, r)",
                        "z = Sin (y)", {number(0.25).named("ratio"), mode(is_on)}),
              cpu);
      }
      check(make_case(n, "d = Dropout (x, ratio, mode)\ns = Add (r, d)", "z = Sin (y)",
                      {number(0.25).named("ratio"), mode(true)}),
            cpu);
      check(make_case(n, "d = Dropout (x, , mode)\ns = Add (r, d)", "z = Sin (y)", {mode(true)}),
            cpu);
    }
  });
}

// The sum has another consumer than the normalisation: two cotangents are added.
TEST(FusedLayerNorm, PreNorm) {
  for (const Sizes& n : sizes()) {
    check(make_case(n, "s = Add (x, r)", "w = Sin (y)\nz = Add (w, s)", {}));
    check(make_case(n, "d = Dropout <seed = 3> (x, ratio, mode)\ns = Add (d, r)",
                    "w = Sin (y)\nz = Add (s, w)", {number(0.5).named("ratio"), mode(true)}));
  }
}

// Biases are added before the residual: their gradients are sums over the rows.
TEST(FusedLayerNorm, BiasesBefore) {
  for (const Sizes& n : sizes()) {
    OpCase one = make_case(n, "h = Add (x, b)\nd = Dropout (h, ratio, mode)\ns = Add (d, r)",
                           "w = Sin (y)\nz = Add (s, w)", {number(0.5).named("ratio"), mode(true)});
    one.inputs.insert(one.inputs.begin(), uniform(n.row, -1, 1).named("b"));
    one.wrt.emplace_back("b");
    check(one);
    one = make_case(n, "h = Add (x, b)\ns = Add (h, r)", "z = Sin (y)", {});
    one.inputs.insert(one.inputs.begin(), uniform(n.row, -1, 1).named("b"));
    one.wrt.emplace_back("b");
    check(one);
  }
}

// A scale that depends on the sum cannot be read before the sum is computed.
TEST(FusedLayerNorm, ScaleOfTheSum) {
  check({.name = "layer_norm_adaptive",
         .model = "s = Add (x, r)\nm = ReduceMean (s, axes)\nk = Reshape (m, shape)\n"
                  "z = LayerNormalization <axis = -1> (s, k)",
         .inputs = {uniform({4, 6}, -1, 1).named("x"), uniform({4, 6}, -1, 1).named("r"),
                    ints({0}).named("axes"), ints({6}).named("shape")},
         .outputs = {"z"},
         .wrt = {"x", "r"}});
}

TEST(LayerNormRows, AgreeWithThePlainKernels) {
  for (const Dims& dims : {Dims{3, 5}, Dims{0, 4}, Dims{2, 0}, Dims{700, 128}}) {
    const Dims row{dims[1]};
    KernelCall call{.op_type = "LayerNormalization",
                    .attributes = {{.name = "axis", .value = std::int64_t{-1}},
                                   {.name = "epsilon", .value = 1e-3F}},
                    .inputs = {random_tensor(DataType::kFloat32, dims, 1),
                               random_tensor(DataType::kFloat32, row, 2),
                               random_tensor(DataType::kFloat32, row, 3)},
                    .outputs = {{DataType::kFloat32, dims}}};
    EXPECT_EQ(compare_offers(call, 1e-5), 1U);
    call.op_type = "LayerNormalizationGrad";
    call.domain = ir::kFunctionDomain;
    call.inputs = {random_tensor(DataType::kFloat32, dims, 4), call.inputs[0], call.inputs[1]};
    call.outputs = {
        {DataType::kFloat32, dims}, {DataType::kFloat32, row}, {DataType::kFloat32, row}};
    for (const int threads : {1, 3}) {
      call.threads = threads;
      EXPECT_EQ(compare_offers(call, 1e-4), 1U);
    }
  }
}

// Compares with float64 reference kernels on equal operands: results are rounded once.
TEST(LayerNormRows, OfF16) {
  for (const auto& [half, unit] :
       {std::pair{DataType::kBfloat16, 0x1p-8}, std::pair{DataType::kFloat16, 0x1p-11}}) {
    for (const Dims& dims : {Dims{3, 5}, Dims{0, 4}, Dims{37, 33}, Dims{700, 128}, Dims{3, 9000}}) {
      const Dims row{dims[1]};
      const Tensor x = random_tensor(DataType::kFloat32, dims, 1).cast(half);
      const Tensor dy = random_tensor(DataType::kFloat32, dims, 4).cast(half);
      const Tensor scale = random_tensor(DataType::kFloat32, row, 2);
      const auto expect_near = [&, unit = unit](const std::vector<Tensor>& given,
                                                const std::vector<Tensor>& plain) {
        for (std::size_t i = 0; i < plain.size(); ++i) {
          const auto got = given[i].to_doubles();
          const auto want = plain[i].to_doubles();
          ASSERT_EQ(got.size(), want.size());
          const double size = i == 0 ? 1 : std::sqrt(static_cast<double>(dims[0])) + 1;
          for (std::size_t k = 0; k < want.size(); ++k) {
            const double rounding = is_f16(given[i].dtype()) ? unit * std::fabs(want[k]) : 0;
            ASSERT_NEAR(got[k], want[k], 1e-4 * size + rounding) << i << ", " << k;
          }
        }
      };
      KernelCall call{.op_type = "LayerNormalization",
                      .attributes = {{.name = "axis", .value = std::int64_t{-1}},
                                     {.name = "epsilon", .value = 1e-3F}},
                      .inputs = {x.cast(DataType::kFloat64), scale.cast(DataType::kFloat64)},
                      .outputs = {{DataType::kFloat64, dims}}};
      KernelCall grad{.op_type = "LayerNormalizationGrad",
                      .attributes = call.attributes,
                      .inputs = {dy.cast(DataType::kFloat64), call.inputs[0], call.inputs[1]},
                      .outputs = {{DataType::kFloat64, dims},
                                  {DataType::kFloat64, row},
                                  {DataType::kFloat64, row}},
                      .domain = ir::kFunctionDomain};
      const std::vector<Tensor> y = run_plain(call);
      const std::vector<Tensor> gradients = run_plain(grad);
      for (int halves = 1; halves < 8; ++halves) {
        const auto type = [&, half = half](int bit) {
          return (halves & bit) != 0 ? half : DataType::kFloat32;
        };
        call.inputs = {x.cast(type(1)), scale};
        call.outputs = {{type(2), dims}};
        grad.inputs = {dy.cast(type(4)), x.cast(type(1)), scale};
        grad.outputs = {{type(2), dims}, {DataType::kFloat32, row}, {DataType::kFloat32, row}};
        for (const int threads : {1, 3}) {
          SCOPED_TRACE(dims.to_string() + ", halves " + std::to_string(halves));
          call.threads = grad.threads = threads;
          expect_near(run_offers(call).at(0).outputs, y);
          expect_near(run_offers(grad).at(0).outputs, gradients);
        }
      }
    }
  }
}

}  // namespace
}  // namespace onnxgrad::ops_test::fused_layer_norm_test

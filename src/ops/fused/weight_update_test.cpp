#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/inline.h"
#include "opdef/fused.h"
#include "ops/testing/case_runner.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

// Compares fast kernels with the reference, and the reference with the function's body;
// device/cpu/update_test.cpp tests the loops themselves.

namespace onnxgrad::ops_test {

// No file and no gradient contains it: it is tested with the optimizers that write it.
std::vector<OpCase> weight_update_cases() { return {}; }
std::vector<ErrorCase> weight_update_error_cases() { return {}; }

namespace weight_update_test {
namespace {

using opdef::UpdateRule;

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

opdef::WeightUpdate update_of(const Variant& variant) {
  const bool is_average = variant.rule == UpdateRule::kAdam || variant.rule == UpdateRule::kRoot ||
                          variant.rule == UpdateRule::kLion;
  return {.rule = variant.rule,
          .decay = variant.decay,
          .beta1 = 0.9,
          .share1 = is_average ? 0.1 : 1,
          .beta2 = 0.99,
          .share2 = is_average ? 0.01 : 1,
          .shrinks = variant.shrinks};
}

// Appends w, m, v?, rate, epsilon?, shrink? after `gradient`, and the outputs.
KernelCall update_call(const Variant& variant, DataType dtype, const Dims& dims,
                       std::vector<Tensor> gradient) {
  const opdef::WeightUpdate update = update_of(variant);
  const bool has_matmul = gradient.size() == 2;
  KernelCall call{.op_type = has_matmul ? "GemmWeightUpdate" : opdef::kWeightUpdate,
                  .attributes = update.attributes(),
                  .inputs = std::move(gradient),
                  .domain = has_matmul ? ir::kFusedDomain : ir::kFunctionDomain};
  const auto scalar = [&](double x) { return Tensor::scalar_of(dtype, x); };
  call.inputs.push_back(random_tensor(dtype, dims, 2));
  const bool of_squares = update.rule == UpdateRule::kRoot;
  call.inputs.push_back(random_tensor(dtype, dims, 3, of_squares ? 0 : -1, 1));
  if (update.has_v()) call.inputs.push_back(random_tensor(dtype, dims, 4, 0, 1));
  call.inputs.push_back(scalar(0.05));
  if (update.has_epsilon()) call.inputs.push_back(scalar(1e-8));
  if (update.shrinks) call.inputs.push_back(scalar(0.9));
  call.outputs.assign(update.num_outputs(), {dtype, dims});
  return call;
}

// Returns the results of the standard operators of the function's body.
std::vector<Tensor> run_body(const KernelCall& call) {
  auto model = std::make_shared<ir::Model>();
  model->set_opset("", ir::kInternalOpset);
  ir::Graph& graph = *model->graph;
  const auto inferer = builtin_engine().make_inferer(*model);
  ir::GraphBuilder g(*model, graph, *inferer, builtin_ops());
  std::vector<ir::Value*> inputs;
  for (const Tensor& input : call.inputs) {
    inputs.push_back(graph.add_input("x", ir::Type::tensor(input.dtype(), input.dims())));
  }
  graph.outputs = g.call(call.op_type, inputs, call.outputs.size(), call.attributes);
  ir::inline_call(*graph.nodes.front(), model->functions.front(), *inferer);
  return runtime::Executor(model, builtin_engine()).run(call.inputs);
}

TEST(WeightUpdate, BodyAndPlainKernelAgree) {
  for (const Variant& variant : variants()) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      const Dims dims{4, 3};
      const KernelCall call = update_call(variant, dtype, dims, {random_tensor(dtype, dims, 1)});
      const std::vector<Tensor> expected = run_body(call);
      const std::vector<Tensor> given = run_plain(call);
      ASSERT_EQ(given.size(), expected.size());
      for (std::size_t i = 0; i < given.size(); ++i) {
        EXPECT_EQ(compare(given[i], expected[i], dtype == DataType::kFloat64 ? 1e-14 : 1e-6), "")
            << opdef::update_rule_name(variant.rule) << ", output " << i;
      }
    }
  }
}

TEST(WeightUpdate, AttributesAreReadAsTheyWereWritten) {
  std::set<std::string> keys;
  for (const Variant& variant : variants()) {
    const opdef::WeightUpdate update = update_of(variant);
    ir::Node node;
    node.attributes = update.attributes();
    EXPECT_EQ(opdef::WeightUpdate::read(node), update);
    EXPECT_TRUE(keys.insert(update.key()).second) << update.key();
  }
  EXPECT_EQ((opdef::WeightUpdate{.rule = UpdateRule::kAdam, .decay = -1e-8, .beta1 = 0.5}.key()),
            "adam_m1em08_0p5_1_0_1");
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

// Products that fit into a block, that are split into blocks with and without a remainder, and with
// one column.
TEST(GemmWeightUpdate, OfAllProducts) {
  for (const Variant& variant : variants()) {
    for (const auto& [m, n, k] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{100, 50, 15},
                                  {50, 10, 15},
                                  {10, 1, 15},
                                  {1, 7, 5},
                                  {784, 16, 3},
                                  {130, 70, 90},
                                  {3, 4000, 2},
                                  {130, 300, 90},
                                  {310, 200, 300},
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
        call.threads = m > 200 ? 3 : 1;
        EXPECT_EQ(compare_offers(call, kTolerance), 1U) << m << "x" << n << "x" << k << " " << t;
      }
    }
  }
}

// Returns the gradient A * B of f16/bf16 operands, in double, as float32.
Tensor gradient_of(const std::vector<double>& a, const std::vector<double>& b, const Dims& dims,
                   std::int64_t k, bool transpose_a, bool transpose_b) {
  const std::int64_t m = dims[0];
  const std::int64_t n = dims[1];
  std::vector<float> sums;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        sum += a[static_cast<std::size_t>(transpose_a ? p * m + i : i * k + p)] *
               b[static_cast<std::size_t>(transpose_b ? j * k + p : p * n + j)];
      }
      sums.push_back(static_cast<float>(sum));
    }
  }
  return Tensor::from(sums, dims);
}

// GEMMs with and without a consumer, in float32 and in blocks of f16/bf16.
TEST(GemmWeightUpdate, OfF16) {
  const Variant variant{UpdateRule::kAdam, 0.1, true};
  for (const DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const auto& [m, n, k] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{20, 30, 7},
                                  {9, 1, 15},
                                  {200, 130, 90},
                                  {130, 300, 1300},
                                  {24, 17, 4500}}) {
      for (int kind = 0; kind < 8; ++kind) {
        const bool transpose_a = kind % 2 != 0;
        const bool transpose_b = kind / 2 % 2 != 0;
        const bool rounds_b = kind / 4 != 0;
        const Tensor a =
            random_tensor(DataType::kFloat32, transpose_a ? Dims{k, m} : Dims{m, k}, 5).cast(half);
        const Tensor b =
            random_tensor(DataType::kFloat32, transpose_b ? Dims{n, k} : Dims{k, n}, 6);
        const Tensor f16_b = b.cast(half);
        const Dims dims{m, n};
        const Tensor gradient = gradient_of(a.cast(DataType::kFloat64).to_doubles(),
                                            f16_b.cast(DataType::kFloat64).to_doubles(), dims, k,
                                            transpose_a, transpose_b);
        const std::vector<Tensor> updated =
            run_plain(update_call(variant, DataType::kFloat32, dims, {gradient}));
        KernelCall call = update_call(variant, DataType::kFloat32, dims, {a, rounds_b ? b : f16_b});
        call.attributes.push_back({.name = "transA", .value = std::int64_t{transpose_a}});
        call.attributes.push_back({.name = "transB", .value = std::int64_t{transpose_b}});
        call.threads = 1 + kind % 3;
        const std::vector<KernelRun> runs = run_offers(call);
        ASSERT_EQ(runs.size(), 1U);
        for (std::size_t i = 0; i < updated.size(); ++i) {
          EXPECT_EQ(compare(runs[0].outputs[i], updated[i], 1e-4), "") << m << " " << kind;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weight_update_test
}  // namespace onnxgrad::ops_test

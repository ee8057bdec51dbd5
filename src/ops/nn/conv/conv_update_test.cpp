#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/testing/emulated_amx.h"
#include "ir/builder.h"
#include "opdef/conv_update.h"
#include "opdef/fused.h"
#include "ops/testing/kernel_run.h"

// Compares bit by bit with the kernels that store the gradient and then update with it.

namespace onnxgrad::ops_test::conv_update_test {
namespace {

using opdef::UpdateRule;
using opdef::WeightUpdate;

constexpr std::string_view kWeightGrad = "ConvWeightGrad";

struct Layer {
  const char* way;  ///< part of the label of its float32 kernel
  Dims x, w, y;
  std::int64_t stride, pad;
  std::int64_t group = 1;
};

std::vector<Layer> layers() {
  return {
      {"all weights", {4, 32, 23, 24}, {31, 32, 3, 3}, {4, 31, 23, 24}, 1, 1},
      {"all images", {24, 64, 4, 4}, {130, 64, 3, 3}, {24, 130, 4, 4}, 1, 1},
      {"channels", {3, 20, 9, 9}, {40, 20, 3, 3}, {3, 40, 5, 5}, 2, 1},
      {"channels", {3, 60, 3, 3}, {90, 60, 1, 1}, {3, 90, 3, 3}, 1, 0},
      {"taps", {4, 3, 16, 16}, {32, 3, 3, 3}, {4, 32, 8, 8}, 2, 1},
      {"taps", {4, 4, 40, 40}, {3, 4, 2, 2}, {4, 3, 41, 41}, 1, 1},
      {"", {2, 12, 7, 7}, {18, 4, 3, 3}, {2, 18, 5, 5}, 1, 0, 3},
      {"", {2, 5, 40}, {7, 5, 4}, {2, 7, 20}, 2, 1},
  };
}

std::vector<ir::Attribute> attributes_of(const Layer& layer) {
  const std::size_t rank = layer.x.rank() - 2;
  return {{.name = "strides", .value = std::vector(rank, layer.stride)},
          {.name = "pads", .value = std::vector(2 * rank, layer.pad)},
          {.name = "dilations", .value = std::vector(rank, std::int64_t{1})},
          {.name = "group", .value = layer.group}};
}

WeightUpdate update_of(UpdateRule rule, bool changes) {
  const bool averages =
      rule == UpdateRule::kAdam || rule == UpdateRule::kRoot || rule == UpdateRule::kLion;
  return {.rule = rule,
          .decay = changes ? 0.2 : 0,
          .beta1 = 0.9,
          .share1 = averages ? 0.1 : 1,
          .beta2 = 0.99,
          .share2 = averages ? 0.01 : 1,
          .shrinks = changes};
}

void expect_same_bits(const std::vector<Tensor>& given, const std::vector<Tensor>& expected,
                      const std::string& what) {
  ASSERT_EQ(given.size(), expected.size()) << what;
  for (std::size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(given[i].to_doubles(), expected[i].to_doubles()) << what << ", output " << i;
  }
}

/// Returns dy and x.
std::vector<Tensor> operands_of(const Layer& layer, DataType dtype) {
  return {random_tensor(dtype, layer.y, 1), random_tensor(dtype, layer.x, 2)};
}

/// Returns the weight gradient. `images`: the type of dy and x, if it is another.
Tensor gradient_of(const Layer& layer, DataType dtype, int threads,
                   DataType images = DataType::kUndefined, const device::CpuOptions& cpu = {}) {
  if (images == DataType::kUndefined) images = dtype;
  const KernelCall call{.op_type = kWeightGrad,
                        .attributes = attributes_of(layer),
                        .inputs = operands_of(layer, images),
                        .outputs = {{dtype, layer.w}},
                        .domain = ir::kFunctionDomain,
                        .threads = threads,
                        .cpu = &cpu};
  const auto runs = run_offers(call);
  if (images == DataType::kFloat32 && threads == 1) {
    EXPECT_NE(runs.front().label.find(layer.way), std::string::npos)
        << runs.front().label << ", not " << layer.way;
  }
  return runs.front().outputs.front();
}

void check_update(const Layer& layer, const WeightUpdate& update, DataType dtype, int threads,
                  DataType images = DataType::kUndefined, const device::CpuOptions& cpu = {}) {
  std::vector<Tensor> others{random_tensor(dtype, layer.w, 3),
                             random_tensor(dtype, layer.w, 4, 0, 1)};
  if (update.has_v()) others.push_back(random_tensor(dtype, layer.w, 5, 0, 1));
  others.push_back(Tensor::scalar_of(dtype, 0.05));
  if (update.has_epsilon()) others.push_back(Tensor::scalar_of(dtype, 1e-8));
  if (update.shrinks) others.push_back(Tensor::scalar_of(dtype, 0.9));
  KernelCall stored{.op_type = opdef::kWeightUpdate,
                    .attributes = update.attributes(),
                    .inputs = {gradient_of(layer, dtype, threads, images, cpu)},
                    .domain = ir::kFunctionDomain,
                    .threads = threads};
  KernelCall joined{.op_type = opdef::kConvWeightUpdate,
                    .attributes = attributes_of(layer),
                    .inputs = operands_of(layer, images == DataType::kUndefined ? dtype : images),
                    .domain = ir::kFusedDomain,
                    .threads = threads,
                    .cpu = &cpu};
  for (const ir::Attribute& attribute : update.attributes()) {
    joined.attributes.push_back(attribute);
  }
  for (KernelCall* call : {&stored, &joined}) {
    call->inputs.insert(call->inputs.end(), others.begin(), others.end());
    call->outputs.assign(update.num_outputs(), {dtype, layer.w});
  }
  expect_same_bits(run_offers(joined).front().outputs, run_offers(stored).front().outputs,
                   std::string(opdef::update_rule_name(update.rule)) + " of " +
                       layer.w.to_string() + ", threads " + std::to_string(threads));
}

void check_descent(const Layer& layer, DataType dtype, int threads) {
  const Tensor w = random_tensor(dtype, layer.w, 3);
  const Tensor rate = Tensor::scalar_of(dtype, 0.3);
  KernelCall joined{.op_type = opdef::kConvDescent,
                    .attributes = attributes_of(layer),
                    .inputs = operands_of(layer, dtype),
                    .outputs = {{dtype, layer.w}},
                    .domain = ir::kFusedDomain,
                    .threads = threads};
  joined.inputs.push_back(w);
  joined.inputs.push_back(rate);
  opdef::ExprProgram program{.num_inputs = 3};
  const auto scaled = program.emit(opdef::ExprOp::kMul, program.input(1), program.input(2));
  program.results = {program.emit(opdef::ExprOp::kSub, program.input(0), scaled)};
  const KernelCall stored{
      .op_type = opdef::kElementwise,
      .attributes =
          opdef::Elementwise{.program = program, .compute = dtype, .stored = 1}.attributes(),
      .inputs = {w, rate, gradient_of(layer, dtype, threads)},
      .outputs = {{dtype, layer.w}},
      .domain = ir::kFusedDomain};
  expect_same_bits(run_offers(joined).front().outputs, run_offers(stored).front().outputs,
                   "descent of " + layer.w.to_string());
}

TEST(ConvWeightUpdate, IsTheUpdateOfTheStoredGradient) {
  for (const Layer& layer : layers()) {
    for (const int threads : {1, 2, 3}) {
      for (int rule = 0; rule < opdef::kNumUpdateRules; ++rule) {
        const WeightUpdate update = update_of(static_cast<UpdateRule>(rule), rule % 2 == 0);
        check_update(layer, update, DataType::kFloat32, threads);
        check_update(layer, update, DataType::kFloat64, threads);
      }
    }
  }
}

// bfloat16 images are multiplied directly if the processor can.
TEST(ConvWeightUpdate, JoinsGradientsOfBfloat16) {
  for (const Layer& layer : layers()) {
    if (layer.group > 1 || layer.w[0] < 16) continue;
    for (const int threads : {1, 2, 3}) {
      const WeightUpdate update = update_of(UpdateRule::kAdam, threads == 2);
      check_update(layer, update, DataType::kFloat32, threads, DataType::kBfloat16,
                   device::with_emulated_amx());
    }
  }
}

TEST(ConvWeightUpdate, ShrinksAndDecays) {
  for (const bool changes : {false, true}) {
    check_update(layers()[0], update_of(UpdateRule::kAdam, changes), DataType::kFloat32, 2);
    check_update(layers()[2], update_of(UpdateRule::kNesterov, changes), DataType::kFloat32, 2);
  }
}

TEST(ConvDescent, IsTheStepWithTheStoredGradient) {
  for (const Layer& layer : layers()) {
    for (const int threads : {1, 2, 3}) {
      check_descent(layer, DataType::kFloat32, threads);
      check_descent(layer, DataType::kFloat64, threads);
    }
  }
}

TEST(ConvDescent, HasNoKernelForF16AndDepthwiseConvolutions) {
  const auto offers = [](const Dims& x, const Dims& w, std::int64_t group, DataType images) {
    const Layer layer{"", x, w, {x[0], w[0], x[2], x[3]}, 1, 1, group};
    KernelCall call{.op_type = opdef::kConvDescent,
                    .attributes = attributes_of(layer),
                    .inputs = operands_of(layer, images),
                    .outputs = {{DataType::kFloat32, w}},
                    .domain = ir::kFusedDomain};
    call.inputs.push_back(random_tensor(DataType::kFloat32, w, 3));
    call.inputs.push_back(Tensor::scalar_of(DataType::kFloat32, 0.3));
    return run_offers(call).size();
  };
  EXPECT_EQ(offers({2, 8, 6, 6}, {8, 8, 3, 3}, 1, DataType::kFloat32), 1U);
  EXPECT_EQ(offers({2, 8, 6, 6}, {8, 8, 3, 3}, 1, DataType::kFloat16), 0U);
  EXPECT_EQ(offers({2, 8, 6, 6}, {8, 1, 3, 3}, 8, DataType::kFloat32), 0U);
}

}  // namespace
}  // namespace onnxgrad::ops_test::conv_update_test

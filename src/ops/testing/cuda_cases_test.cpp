#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "onnxgrad/error.h"
#include "ops/testing/card_engine.h"
#include "ops/testing/case_runner.h"
#include "runtime/device_use.h"
#include "runtime/executor.h"

// All sample cases of the operators on a card, or on the stand-ins of its libraries: float32 there
// beside float64 on the CPU, whose gradients other tests compare with finite differences.

namespace onnxgrad::ops_test {
namespace cuda_cases {

constexpr double kTolerance = 3e-5;  // relative to the largest element

std::vector<OpCase> all() {
  return device::cuda::num_cards() > 0 ? all_op_cases() : std::vector<OpCase>{};
}

// Operators without a kernel on the card, with the number of cases that have them. Written to the
// file that ONNXGRAD_CUDA_FALLBACKS names.
class Fallbacks : public ::testing::Environment {
 public:
  void TearDown() override {
    const char* path = std::getenv("ONNXGRAD_CUDA_FALLBACKS");
    if (path == nullptr) return;
    std::ofstream file(path);
    for (const auto& [op, cases] : cases_) file << op << ' ' << cases << '\n';
  }
  void add(const std::shared_ptr<const ir::Model>& model, const std::vector<Tensor>& inputs) {
    runtime::Executor executor(model, card_engine(), {});
    std::vector<Dims> dims;
    for (const Tensor& input : inputs) dims.push_back(input.dims());
    for (const auto& [op, nodes] : runtime::device_use(executor.prepare(dims)).on_cpu) {
      ++cases_[op];
    }
  }

 private:
  std::map<std::string, int> cases_;
};
auto* const kFallbacks =
    dynamic_cast<Fallbacks*>(::testing::AddGlobalTestEnvironment(new Fallbacks));

// Scores s of 70 queries and 33 keys; `between` leads to the probabilities d.
OpCase attention(std::string name, const std::string& between, const std::vector<CaseInput>& more) {
  OpCase made{.name = std::move(name),
              .model = "s = MatMul (q, kt)\n" + between + "\ny = MatMul (d, v)",
              .inputs = {uniform({2, 3, 70, 20}, -1, 1).named("q"),
                         uniform({2, 3, 20, 33}, -1, 1).named("kt"),
                         uniform({2, 3, 33, 40}, -1, 1).named("v")},
              .outputs = {"y"},
              .wrt = {"q", "kt", "v"}};
  made.inputs.insert(made.inputs.end(), more.begin(), more.end());
  return made;
}

// Products that cuBLASLt takes, convolutions whose tiles are large or whose sums are split,
// attention, long states, and updates that are sorted in several runs.
std::vector<OpCase> library_cases() {
  if (device::cuda::num_cards() == 0) return {};
  return {
      {.name = "product",
       .model = "y = MatMul (a, b)",
       .inputs = {uniform({33, 300}, -1, 1), uniform({300, 17}, -1, 1)}},
      {.name = "batch",
       .model = "y = MatMul (a, b)",
       .inputs = {uniform({2, 3, 19, 200}, -1, 1), uniform({2, 3, 200, 18}, -1, 1)}},
      {.name = "shared_factor",
       .model = "y = MatMul (a, b)",
       .inputs = {uniform({20, 150}, -1, 1), uniform({3, 150, 21}, -1, 1)}},
      {.name = "broadcast",
       .model = "y = MatMul (a, b)",
       .inputs = {uniform({2, 1, 5, 140}, -1, 1), uniform({3, 140, 6}, -1, 1)}},
      {.name = "transposed",
       .model = "y = Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0> (a, b, c)",
       .inputs = {uniform({260, 33}, -1, 1), uniform({18, 260}, -1, 1), uniform({18}, -1, 1)}},
      {.name = "bias_relu",
       .model = "z = Gemm (a, b, c)\ny = Relu (z)",
       .inputs = {uniform({16, 260}, -1, 1), uniform({260, 32}, -1, 1), uniform({32}, -1, 1)}},
      attention("attention", "d = Softmax (s)", {}),
      attention("attention_mask", "a = Add (s, bias)\nm = Where (keep, a, fill)\nd = Softmax (m)",
                {uniform({3, 1, 33}, -1, 1).named("bias"),
                 integers({70, 33}, 0, 3, DataType::kBool).named("keep"),
                 values({-1e9}, {}).constant().named("fill")}),
      attention("attention_dropout", "p = Softmax (s)\nd = Dropout <seed = 5> (p, ratio, mode)",
                {values({0.25}, {}).constant().named("ratio"),
                 values({1}, {}, DataType::kBool).constant().named("mode")}),
      {.name = "long_states",
       .model = "y, h, c = LSTM <hidden_size = 70, direction = \"bidirectional\"> (x, w, r, b)",
       .inputs = {uniform({3, 5, 9}, -1, 1), uniform({2, 280, 9}, -0.2, 0.2),
                  uniform({2, 280, 70}, -0.2, 0.2), uniform({2, 560}, -0.2, 0.2)}},
      {.name = "long_signal", .model = "y = DFT (x)", .inputs = {uniform({2, 8192, 2}, -1, 1)}},
      {.name = "long_real_signals",
       .model = "y = DFT <onesided = 1> (x, n, axis)",
       .inputs = {uniform({1, 4099, 2, 1}, -1, 1), int_scalar(4099), int_scalar(1)}},
      {.name = "long_inverse",
       .model = "y = DFT <inverse = 1> (x)",
       .inputs = {uniform({4100, 2}, -1, 1)}},
      {.name = "many_updates",
       .model = "y = ScatterND <reduction = \"add\"> (x, i, u)",
       .inputs = {uniform({40, 3}, -1, 1), integers({1300, 1}, 0, 6), uniform({1300, 3}, -1, 1)}},
      {.name = "updates_of_one_place",
       .model = "y = ScatterElements <reduction = \"max\"> (x, i, u)",
       .inputs = {uniform({2}, -1, 1), integers({600}, 1, 1), uniform({600}, -1, 1)}},
      {.name = "last_update",
       .model = "y = ScatterElements (x, i, u)",
       .inputs = {uniform({90}, -1, 1), integers({600}, 0, 89), uniform({600}, -1, 1)}},
      {.name = "grouped_strides",
       .model =
           "y = Conv <group = 2, strides = [2, 1], dilations = [1, 2], pads = [1, 2, 1, 1]> (x, w)",
       .inputs = {uniform({4, 16, 25, 24}, -1, 1), uniform({24, 8, 3, 3}, -1, 1)}},
      {.name = "transposed_convolution",
       .model = "y = ConvTranspose <strides = [2, 2]> (x, w, b)",
       .inputs = {uniform({2, 24, 12, 12}, -1, 1), uniform({24, 16, 2, 2}, -1, 1),
                  uniform({16}, -1, 1)}},
      {.name = "large_average_pool",
       .model =
           "y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 1]> (x)",
       .inputs = {uniform({2, 16, 41, 40}, -1, 1)}},
      {.name = "large_average_pool_of_pads",
       .model = "y = AveragePool <kernel_shape = [3, 4], pads = [1, 1, 1, 1], "
                "count_include_pad = 1> (x)",
       .inputs = {uniform({1, 9, 33, 40}, -1, 1)}},
      {.name = "large_max_pool",
       .model = "y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)",
       .inputs = {uniform({2, 8, 33, 40}, -1, 1)}},
      {.name = "three_axes",
       .model = "y = Conv (x, w)",
       .inputs = {uniform({2, 4, 9, 9, 9}, -1, 1), uniform({16, 4, 3, 3, 3}, -1, 1)}},
      {.name = "large_convolution",
       .model = "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)",
       .inputs = {uniform({4, 20, 33, 32}, -1, 1), uniform({72, 20, 3, 3}, -1, 1),
                  uniform({72}, -1, 1)}},
  };
}

// LayerNormalization of a sum with a residual. Rounded to 16 bits are its gradients and the sums of
// those over rows, which are the gradient of the bias b. In the pre-norm form another cotangent is
// added, and a Dropout masks what is summed; its mask is that of float32.
std::vector<OpCase> layer_norms() {
  if (device::cuda::num_cards() == 0) return {};
  const auto norm_of = [](std::string name, std::string model, const std::vector<CaseInput>& more) {
    OpCase made{
        .name = std::move(name),
        .model = std::move(model),
        .inputs = {uniform({2, 9, 16}, -1, 1).named("x"), uniform({16}, -1, 1).named("b"),
                   uniform({2, 9, 16}, -1, 1).named("r"), uniform({16}, 0.5, 2).named("scale"),
                   uniform({16}, -1, 1).named("shift")},
        .outputs = {"z"},
        .wrt = {"x", "b", "r", "scale", "shift"}};
    made.inputs.insert(made.inputs.end(), more.begin(), more.end());
    return made;
  };
  const std::string norm =
      "h = Add (x, b)\ns = Add (h, r)\ny = LayerNormalization (s, scale, shift)\n";
  return {norm_of("post_norm", norm + "z = Sin (y)", {}),
          norm_of("pre_norm", norm + "w = Sin (y)\nz = Add (w, s)", {}),
          norm_of("dropout",
                  R"(x1 = Cast <to = 1> (x)
b1 = Cast <to = 1> (b)
r1 = Cast <to = 1> (r)
h = Add (x1, b1)
d, m = Dropout <seed = 7> (h, ratio, mode)
sum = Add (d, r1)
s = Cast <to = $D> (sum)
y = LayerNormalization (s, scale, shift)
z = Sin (y))",
                  {values({0.25}, {}, DataType::kFloat32).constant().named("ratio"),
                   values({1}, {}, DataType::kBool).constant().named("mode")})};
}

std::string name_of(const ::testing::TestParamInfo<OpCase>& info) {
  std::string name = info.param.name;
  std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

// Some cases ask for steps in float16: there the CPU's float32 is the measure.
void expect_close(const std::vector<Tensor>& given, const std::vector<Tensor>& expected,
                  const std::vector<Tensor>& narrow, const std::string& what) {
  ASSERT_EQ(given.size(), expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string difference = compare(given[i], expected[i], kTolerance);
    if (difference.empty() || compare(given[i], narrow[i], kTolerance).empty()) continue;
    ADD_FAILURE() << what << ' ' << i << ": " << difference;
  }
}

}  // namespace cuda_cases

class CudaCaseTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(CudaCaseTest, EqualsFloat64) {
  const OpCase& op_case = GetParam();
  BuiltCase narrow;
  try {
    narrow = build_case(op_case, {.dtype = DataType::kFloat32});
  } catch (const Error&) {
    GTEST_SKIP() << "the case is for float64 alone";
  }
  const CaseResult given = run_case(op_case, narrow, {}, card_engine());
  const CaseResult expected =
      run_case(op_case, build_case(op_case, {.dtype = DataType::kFloat64}), {});
  const CaseResult on_host = run_case(op_case, narrow, {});
  cuda_cases::expect_close(given.outputs, expected.outputs, on_host.outputs, "output");
  cuda_cases::expect_close(given.gradients, expected.gradients, on_host.gradients, "gradient");
  if (std::getenv("ONNXGRAD_CUDA_FALLBACKS") == nullptr) return;
  std::vector<Tensor> inputs = narrow.inputs;
  cuda_cases::kFallbacks->add(narrow.forward, inputs);
  if (narrow.gradient == nullptr) return;
  inputs.insert(inputs.end(), given.seeds.begin(), given.seeds.end());
  cuda_cases::kFallbacks->add(narrow.gradient, inputs);
}

// Operands and results of 16 bits on a card, beside float64 of equal inputs on the CPU.
class CudaHalfTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(CudaHalfTest, EqualsFloat64) {
  const OpCase& op_case = GetParam();
  const BuiltCase narrow = build_case(op_case, {.dtype = DataType::kFloat16});
  BuiltCase wide = build_case(op_case, {.dtype = DataType::kFloat64});
  for (std::size_t i = 0; i < wide.inputs.size(); ++i) {
    wide.inputs[i] = narrow.inputs[i].cast(wide.inputs[i].dtype());
  }
  const CaseResult given = run_case(op_case, narrow, {}, card_engine());
  const CaseResult expected = run_case(op_case, wide, {});
  constexpr double kRoundings = 1.0 / 128;
  ASSERT_EQ(given.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < given.outputs.size(); ++i) {
    EXPECT_EQ(compare(given.outputs[i], expected.outputs[i], kRoundings), "") << "output " << i;
  }
  for (std::size_t i = 0; i < given.gradients.size(); ++i) {
    EXPECT_EQ(given.gradients[i].dtype(), narrow.inputs[narrow.wrt[i]].dtype());
    EXPECT_EQ(compare(given.gradients[i], expected.gradients[i], kRoundings), "")
        << "gradient " << i;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaCaseTest);  // without a card
INSTANTIATE_TEST_SUITE_P(Cuda, CudaCaseTest, ::testing::ValuesIn(cuda_cases::all()),
                         cuda_cases::name_of);
INSTANTIATE_TEST_SUITE_P(CudaLibraries, CudaCaseTest,
                         ::testing::ValuesIn(cuda_cases::library_cases()), cuda_cases::name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaHalfTest);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaHalfTest, ::testing::ValuesIn(cuda_cases::layer_norms()),
                         cuda_cases::name_of);

}  // namespace onnxgrad::ops_test

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "onnxgrad/error.h"
#include "ops/builtin.h"
#include "ops/testing/case_runner.h"
#include "runtime/device_use.h"
#include "runtime/executor.h"

// All sample cases of the operators on a card, or on the stand-ins of its libraries: float32 there
// beside float64 on the CPU, whose gradients other tests compare with finite differences.

namespace onnxgrad::ops_test {
namespace cuda_cases {

constexpr double kTolerance = 3e-5;  // relative to the largest element

const runtime::Engine& card() {
  static device::cuda::CudaDevice device(0);
  static const auto kernels = [] {
    auto made = std::make_unique<opdef::KernelRegistry>();
    ops::register_builtin_cuda_kernels(*made);
    return made;
  }();
  static const runtime::Engine engine{.ops = builtin_ops(),
                                      .kernels = *kernels,
                                      .make_inferer = builtin_engine().make_inferer,
                                      .device = device,
                                      .host_kernels = &builtin_engine().kernels};
  return engine;
}

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
    runtime::Executor executor(model, card(), {});
    std::vector<Dims> dims;
    for (const Tensor& input : inputs) dims.push_back(input.dims());
    for (const auto& [op, nodes] : runtime::device_use(executor.prepare(dims)).on_cpu) {
      ++cases_[op];
    }
  }

 private:
  std::map<std::string, int> cases_;
};
auto* const fallbacks =
    dynamic_cast<Fallbacks*>(::testing::AddGlobalTestEnvironment(new Fallbacks));

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
  const CaseResult given = run_case(op_case, narrow, {}, cuda_cases::card());
  const CaseResult expected =
      run_case(op_case, build_case(op_case, {.dtype = DataType::kFloat64}), {});
  const CaseResult on_host = run_case(op_case, narrow, {});
  cuda_cases::expect_close(given.outputs, expected.outputs, on_host.outputs, "output");
  cuda_cases::expect_close(given.gradients, expected.gradients, on_host.gradients, "gradient");
  if (std::getenv("ONNXGRAD_CUDA_FALLBACKS") == nullptr) return;
  std::vector<Tensor> inputs = narrow.inputs;
  cuda_cases::fallbacks->add(narrow.forward, inputs);
  if (narrow.gradient == nullptr) return;
  inputs.insert(inputs.end(), given.seeds.begin(), given.seeds.end());
  cuda_cases::fallbacks->add(narrow.gradient, inputs);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaCaseTest);  // without a card
INSTANTIATE_TEST_SUITE_P(Cuda, CudaCaseTest, ::testing::ValuesIn(cuda_cases::all()),
                         cuda_cases::name_of);

}  // namespace onnxgrad::ops_test

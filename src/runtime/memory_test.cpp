// Memory of a device: what an executor reports is what its budget is charged for, and what its
// plans are made for.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "onnx/model_io.h"
#include "runtime/evaluator.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime::memory_test {
namespace {

struct Case {
  std::string name;
  std::string graph;
};

class Memory : public testing::TestWithParam<Case> {
 protected:
  static Executor executor_of(std::int64_t limit, std::shared_ptr<base::MemoryBudget>& budget) {
    const std::string text = "<ir_version: 10, opset_import: [\"\" : 21]>\n" + GetParam().graph;
    const KernelEvaluator evaluator(builtin_engine());
    auto model = std::make_shared<const ir::Model>(
        onnx_io::to_internal(onnx_io::load_text(text), builtin_engine().ops, &evaluator));
    budget = std::make_shared<base::MemoryBudget>(limit);
    return Executor(std::move(model), builtin_engine(),
                    {.budget = budget, .fits_budget = limit > 0});
  }
  static std::int64_t run(Executor& executor) {
    const std::vector<double> numbers{1, 2, -4, 8, 3};
    for (int i = 0; i < 2; ++i) executor.run(std::vector{Tensor::from(numbers, Dims{5})});
    const MemoryUse use = executor.memory();
    return use.state + use.arena + use.constants + use.dynamic + use.blocks + use.slots + use.cells;
  }
};

TEST_P(Memory, IsReportedAsItIsCharged) {
  device::Device& device = builtin_engine().device;
  if (device.is_host()) GTEST_SKIP() << "the host has other memory besides";
  std::shared_ptr<base::MemoryBudget> budget;
  Executor executor = executor_of(0, budget);
  const std::int64_t reported = run(executor);
  EXPECT_EQ(reported, device.budget(budget)->used_bytes());
}

TEST_P(Memory, IsAllThatIsNeeded) {
  device::Device& device = builtin_engine().device;
  if (device.is_host()) GTEST_SKIP() << "the host has other memory besides";
  std::shared_ptr<base::MemoryBudget> budget;
  Executor free = executor_of(std::int64_t{1} << 30, budget);
  const std::int64_t used = run(free);
  Executor limited = executor_of(used, budget);
  EXPECT_EQ(run(limited), used);
  EXPECT_THROW(
      {
        Executor small = executor_of(used - 1, budget);
        run(small);
      },
      DeviceError);
}

INSTANTIATE_TEST_SUITE_P(Models, Memory,
                         testing::Values(Case{"constants", R"(g (double[N] x) => (double[N] y)
  <double[5] c = {1.0, 2.0, 3.0, 4.0, 5.0}> { h = Softmax (x)  s = Mul (h, c)  y = Softmax (s) })"},
                                         Case{"scan",
                                              R"(g (double[N] x) => (double last, double[N] all)
  <double zero = {0.0}, double three = {3.0}> {
  h = Softmax (x)
  last, all = Scan <num_scan_inputs = 1, body = add (double s, double e) => (double t, double u) {
    f = Mul (e, three)  t = Add (s, f)  u = Mul (t, t) }> (zero, h) })"},
                                         Case{"tail", R"(g (double[N] x) => (double[M] y)
  <double[1] five = {5.0}, double zero = {0.0}> {
  h = Softmax (x)  p = Greater (x, zero)  z = Compress (h, p)  s = Mul (z, five)
  y = Softmax (s) })"}),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace onnxgrad::runtime::memory_test

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime::plan_threads_test {
namespace {

using Result = std::pair<std::string, int>;

// First line of the plan of exp(x x), x: [size, size], up to the number of threads; and the number
// of threads that its kernels took.
Result threads_of(std::int64_t size, int most) {
  auto model = std::make_shared<ir::Model>();
  model->set_opset("", ir::kInternalOpset);
  const auto inferer = onnx_io::make_type_inferer(*model);
  ir::GraphBuilder g{*model, *model->graph, *inferer, builtin_engine().ops};
  ir::Value* x =
      model->graph->add_input("x", ir::Type::tensor(DataType::kFloat32, Dims{size, size}));
  model->graph->outputs = {g.exp(g.matmul(x, x))};
  Executor executor(model, builtin_engine(), {.threads = most});
  const std::string text = executor.prepare({Dims{size, size}}).to_text();
  executor.set_profiling(true);
  executor.run({{Tensor::zeros(DataType::kFloat32, Dims{size, size})}});
  int used = 0;
  for (const KernelProfile& kernel : executor.profile()) used = std::max(used, kernel.threads);
  return {text.substr(0, text.find(", arena")), used};
}

// A device that works on threads of its own does not say how many a kernel took there.
bool is_counted() { return builtin_engine().device.is_host(); }

// A product of 8 columns is not worth waking anybody.
TEST(PlanThreads, ASmallPlanHasOne) {
  EXPECT_EQ(threads_of(8, 64), Result("plan of 1 kernels, 1 thread", 1));
}

// 33 million operations are some 300 microseconds.
TEST(PlanThreads, AMiddleOneTakesSome) {
  if (!is_counted()) GTEST_SKIP() << "kernels of the CPU are counted";
  const auto [line, used] = threads_of(256, 64);
  EXPECT_GT(used, 1);
  EXPECT_LT(used, 64);
  EXPECT_NE(line, "plan of 1 kernels, 64 threads");
  EXPECT_EQ(threads_of(256, 2), Result("plan of 1 kernels, 2 threads", 2));
}

TEST(PlanThreads, ALargeOneTakesAll) {
  if (!is_counted()) GTEST_SKIP() << "kernels of the CPU are counted";
  EXPECT_EQ(threads_of(768, 16), Result("plan of 1 kernels, 16 threads", 16));
}

}  // namespace
}  // namespace onnxgrad::runtime::plan_threads_test

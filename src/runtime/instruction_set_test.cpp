#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "device/isa.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime {
namespace {

// Executors of one process, at the same time.
TEST(InstructionSets, EachExecutorHasItsOwn) {
  ir::Model model;
  model.set_opset("", ir::kInternalOpset);
  const auto inferer = onnx_io::make_type_inferer(model);
  ir::GraphBuilder g(model, *model.graph, *inferer, builtin_engine().ops);
  const Dims rows{40, 30};
  const Dims weights{30, 50};
  ir::Value* x = model.graph->add_input("x", ir::Type::tensor(DataType::kFloat32, rows));
  ir::Value* w = model.graph->add_input("w", ir::Type::tensor(DataType::kFloat32, weights));
  model.graph->outputs = {g.op("Softmax", {g.matmul(x, w)})};
  const auto shared = std::make_shared<const ir::Model>(ir::clone(model));
  std::vector<std::unique_ptr<Executor>> executors;
  for (const device::Isa isa : device::available_isas()) {
    const ExecutorOptions options{.cpu = device::CpuOptions{.isa = isa}};
    executors.push_back(std::make_unique<Executor>(shared, builtin_engine(), options));
    const std::string plan = executors.back()->prepare({rows, weights}).to_text();
    EXPECT_NE(plan.find(std::string("tiles ") + device::isa_name(isa)), std::string::npos) << plan;
  }
  const std::vector<Tensor> inputs = {Tensor::zeros(DataType::kFloat32, rows),
                                      Tensor::zeros(DataType::kFloat32, weights)};
  for (const auto& executor : executors) {
    const std::vector<Tensor> outputs = executor->run(inputs);
    for (const float y : outputs[0].data<float>()) EXPECT_NEAR(y, 0.02, 1e-6);
  }
}

}  // namespace
}  // namespace onnxgrad::runtime

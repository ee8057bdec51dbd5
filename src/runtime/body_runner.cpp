#include "runtime/body_runner.h"

#include <utility>

#include "runtime/bodies.h"
#include "runtime/executor.h"

namespace onnxgrad::runtime {

BodyRunner::BodyRunner(const ir::Graph& body, std::span<ir::Value* const> captured,
                       const ir::Model& model, const Engine& engine, ExecutorOptions options) {
  auto runner = std::make_shared<ir::Model>();
  runner->functions = model.functions;
  runner->opset_imports = model.opset_imports;
  runner->graph = close_body(body, captured);
  options.output_blocks.clear();
  options.shape_inputs.clear();
  executor_ = std::make_unique<Executor>(std::move(runner), engine, std::move(options));
}

BodyRunner::~BodyRunner() = default;

std::vector<Tensor> BodyRunner::run(const std::vector<Tensor>& inputs,
                                    const opdef::StepCells& cells, std::int64_t iteration) {
  executor_->cells() = opdef::cells_of_iteration(cells, iteration);
  return executor_->run(inputs);
}

std::int64_t BodyRunner::memory_bytes() const {
  const MemoryUse use = executor_->memory();
  return use.state + use.arena + use.constants + use.dynamic;
}

std::int64_t BodyRunner::num_plans() const { return executor_->num_cached(); }

}  // namespace onnxgrad::runtime

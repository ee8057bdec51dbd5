#ifndef ONNXGRAD_RUNTIME_BODY_RUNNER_H_
#define ONNXGRAD_RUNTIME_BODY_RUNNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "runtime/engine.h"

namespace onnxgrad::runtime {

/// Runs one subgraph of a dynamic node with an executor: its formal inputs, then the captured
/// values.
class BodyRunner {
 public:
  /// `model`: whose functions the body may call. `options`: of the executor of the node.
  BodyRunner(const ir::Graph& body, std::span<ir::Value* const> captured, const ir::Model& model,
             const Engine& engine, ExecutorOptions options);
  ~BodyRunner();
  BodyRunner(const BodyRunner&) = delete;
  BodyRunner& operator=(const BodyRunner&) = delete;

  /// `iteration`: how often the body has run for its node before; each run has random numbers of
  /// its own.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs, const opdef::StepCells& cells,
                          std::int64_t iteration);
  /// Bytes that its executor holds.
  std::int64_t memory_bytes() const;
  std::int64_t num_plans() const;

 private:
  std::unique_ptr<Executor> executor_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_BODY_RUNNER_H_

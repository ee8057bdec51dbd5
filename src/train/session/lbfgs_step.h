#ifndef ONNXGRAD_TRAIN_SESSION_LBFGS_STEP_H_
#define ONNXGRAD_TRAIN_SESSION_LBFGS_STEP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/executor.h"
#include "train/graphs/training_graph.h"
#include "train/optimizers/lbfgs.h"

namespace onnxgrad::train {

/// A step of L-BFGS: its loop around runs of a plan that computes the loss and its gradient.
class LbfgsStep {
 public:
  /// `executor` and `graph` outlive this; the weights are the first states.
  LbfgsStep(const Lbfgs& spec, runtime::Executor& executor, const StepGraph& graph);

  /// Returns the loss before the step. Copies of the outputs `wanted` go to `results`, before which
  /// the step can be undone: if it throws, the state is as before.
  double run(runtime::Execution& plan, double learning_rate, std::span<const std::size_t> wanted,
             std::vector<Tensor>* results);
  LbfgsSolver& solver() { return solver_; }
  /// Bytes of the copies of the state, after the first step.
  std::int64_t snapshot_bytes() const;

 private:
  runtime::Executor& executor_;
  const StepGraph& graph_;
  std::vector<Tensor> tensors_;  ///< one per weight, to be copied to the state
  std::vector<double> weights_;  ///< the same
  std::vector<Tensor> before_;   ///< all states before the step
  LbfgsSolver solver_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_LBFGS_STEP_H_

#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_LBFGS_LOOP_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_LBFGS_LOOP_H_

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/executor.h"
#include "train/optimizers/lbfgs.h"

namespace onnxgrad::train {

/// L-BFGS over the weights that an executor holds as state.
class LbfgsLoop {
 public:
  /// weights: views of the trained weights' states, in the order of their gradients among the
  /// outputs, which begin at `first_gradient`.
  LbfgsLoop(const Lbfgs& spec, std::span<const Tensor> weights, std::size_t first_gradient);

  /// One step on the bound batch; the weights have their new values afterwards. Returns the loss
  /// before it; the outputs of `execution` are those of its last evaluation.
  double step(runtime::Execution& execution, double learning_rate);

  LbfgsSolver& solver() { return solver_; }
  const LbfgsSolver& solver() const { return solver_; }

 private:
  std::vector<Tensor> weights_;
  std::size_t first_gradient_;
  LbfgsSolver solver_;
  std::vector<double> x_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_LBFGS_LOOP_H_

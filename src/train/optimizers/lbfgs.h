#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_LBFGS_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_LBFGS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "onnxgrad/optimizers.h"
#include "onnxgrad/weights.h"

namespace onnxgrad::train {

/// Loss at x; writes its gradient. x, gradient: all weights in one row.
using LossFunctionOf = std::function<double(std::span<const double> x, std::span<double> gradient)>;

/// The loop of L-BFGS over a loss and its gradient; see onnxgrad::Lbfgs. Works in float64.
class LbfgsSolver {
 public:
  /// size: number of weights' elements n. Keeps 2 * history * n numbers.
  LbfgsSolver(const Lbfgs& spec, std::int64_t size);

  /// Runs up to spec.max_iterations iterations from x, which becomes the last point. Returns the
  /// loss at the initial x. Stops without a step if loss or gradient are not finite.
  double step(const LossFunctionOf& loss, double learning_rate, std::span<double> x);
  /// Restores the solver to its state before the last step(), even if that threw; does nothing
  /// after keep_step().
  void undo_step() noexcept;
  /// Forgets the state before the last step().
  void keep_step() noexcept;

  /// Clears all pairs, as if no step had been done.
  void clear();
  /// Everything kept from step to step, by name; of fixed shapes.
  const NamedTensors& state() const { return state_; }
  NamedTensors& state() { return state_; }

 private:
  using Row = std::span<double>;

  Row row(std::size_t tensor, std::int64_t i = 0);
  std::int64_t& count(std::size_t i);
  double& number(std::size_t i);
  void begin_step();
  void save_pair(std::int64_t place);
  void add_pair(std::span<const double> gradient);
  void find_direction(std::span<const double> gradient);

  Lbfgs spec_;
  std::int64_t size_;
  NamedTensors state_;
  /// State before the last step, while it can be undone.
  bool can_undo_ = false;
  struct Pair {
    std::int64_t place = 0;
    std::vector<double> s, y;
  };
  std::vector<Pair> pairs_before_;     ///< pairs that were overwritten
  std::vector<Tensor> others_before_;  ///< all states but the pairs
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_LBFGS_H_

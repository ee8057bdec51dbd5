#ifndef ONNXGRAD_TRAIN_SESSION_OUTER_STEP_H_
#define ONNXGRAD_TRAIN_SESSION_OUTER_STEP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/executor.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

/// The outer step of workers that update their own weights for a while, which combines these. With
/// w the weights at the last time, g the mean over the workers of w - (their weights now):
///   m = momentum m + g,  w = w - rate (g + momentum m).
/// Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023.
class OuterStep {
 public:
  struct Options {
    std::int64_t every = 1;  ///< steps
    double rate = 0.7;
    double momentum = 0.9;
  };
  /// The weights are the first `num_weights` states of `executor`; all outlive this.
  OuterStep(runtime::Executor& executor, std::size_t num_weights, Workers& workers,
            const Options& options);

  /// Called after each step.
  void count_step() {
    if (++steps_ == options_.every) take();
  }
  /// Ends the interval early: all workers have the same weights then. Does nothing without steps.
  void finish() {
    if (steps_ > 0) take();
  }
  /// Begins at the current weights, which were set from elsewhere, equal on all workers.
  void begin_at_weights();
  /// Begins at the current weights and clears the momenta.
  void restart();

  /// State of the outer step, in this order: a momentum for each weight, the same on all workers;
  /// the value of each weight at the last outer step; the steps since then, int64 []. Views, for
  /// checkpoints.
  std::vector<Tensor> state() const;
  /// Copies a state with the shapes and types of state(); otherwise changes nothing and returns
  /// false.
  bool set_state(std::span<const Tensor> state);
  std::size_t num_weights() const { return start_.size(); }

 private:
  void take();
  template <class T>
  void step_weights(std::span<const std::size_t> weights, dist::Element element);

  runtime::Executor& executor_;
  Workers& workers_;
  Options options_;
  std::int64_t steps_ = 0;  ///< steps since the last outer step
  std::vector<Tensor> start_;
  std::vector<Tensor> momenta_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_OUTER_STEP_H_

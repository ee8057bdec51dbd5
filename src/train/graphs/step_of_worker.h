#ifndef ONNXGRAD_TRAIN_STEP_OF_WORKER_H_
#define ONNXGRAD_TRAIN_STEP_OF_WORKER_H_

#include <memory>
#include <span>
#include <vector>

#include "train/graphs/place_loss.h"
#include "train/graphs/step_parts.h"
#include "train/graphs/training_graph.h"
#include "train/optimizers/optimizers.h"

namespace onnxgrad::train {

/// The parts of a step that concern the other workers. Here there are none, and all is as it is.
class StepOfWorker : public UpdateOfWorkers {
 public:
  virtual LossOfWorker of_loss() const { return {}; }
  virtual void treat_statistics(std::vector<ir::StateBinding>& /*statistics*/) const {}
  /// The mean of what each worker has of a number, if that is its own.
  virtual ir::Value* mean_of(ir::Value* number) const { return number; }
  /// The sum of what each worker computes of a value.
  virtual ir::Value* sum_of(ir::Value* value) const { return value; }
  /// The loss of all workers, and with it the sum of the signals. The denominator in `placed`
  /// becomes that of all of them, if it is not.
  virtual ir::Value* sum_of_loss(PlacedLoss& placed, bool /*is_mean*/) {
    return placed.written.loss;
  }
  /// Gradients for the update, from those of this worker's rows; those that are accumulated first
  /// are added up later.
  virtual std::vector<ir::Value*> sums_for_update(const std::vector<ir::Value*>& gradients,
                                                  std::span<ir::Value* const> /*weights*/) {
    return gradients;
  }
  /// Gradients of the rows of all workers, in every step.
  virtual std::vector<ir::Value*> sums_of_all(const std::vector<ir::Value*>& gradients) const {
    return gradients;
  }
  /// Gradients for further outputs. `for_update`: what sums_for_update() has returned.
  virtual std::vector<ir::Value*> sums_to_report(const std::vector<ir::Value*>& /*gradients*/,
                                                 const std::vector<ir::Value*>& for_update) const {
    return for_update;
  }
  /// For UpdateInputs.
  virtual UpdateOfWorkers* update() { return nullptr; }
  virtual void add_ports(StepGraph& /*step*/) const {}
  /// Writes which worker updates what, after the update is written.
  virtual void describe_owners(StepGraph& /*step*/) const {}
  virtual void bind_inputs() const {}
};

/// According to StepGraphOptions::workers. The arguments outlive it.
std::unique_ptr<StepOfWorker> make_step_of_worker(Draft& draft, const opdef::OpRegistry& registry,
                                                  const Optimizer& optimizer,
                                                  const StepGraphOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_STEP_OF_WORKER_H_

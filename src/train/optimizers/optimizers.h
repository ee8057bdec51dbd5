#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_H_

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/optimizers.h"
#include "train/schedules/schedules.h"

// Updates of weights as nodes of the training step. train/optimizers/ has the formulas, one file
// per family; this file has the rest of an update.

namespace onnxgrad::train {

/// Name of the state that counts updates: the number done so far, int64, rank 0.
inline constexpr const char* kStepCount = "step_count";

/// Name of the state that counts the batches of an accumulated update: 0 after it.
inline constexpr const char* kAccumulatedBatches = "accumulated_batches";

/// Whether a state of this name is a sum over the batches of an accumulated update: of gradients,
/// by the rows of one worker.
bool is_accumulated(std::string_view state);
/// The weight of a state "<slot>/<weight>"; names of slots contain no slash.
std::string_view weight_of_slot(std::string_view state);

/// The parts of an update that several workers do together. Here there is one, which does all.
class UpdateOfWorkers {
 public:
  virtual ~UpdateOfWorkers() = default;
  /// Sums of accumulated gradients of these weights, in the steps in which `when` is true; see
  /// UpdateInputs::gradients. Gradients that are not accumulated are sums already.
  virtual std::vector<ir::Value*> add_up(std::span<ir::Value* const> gradients,
                                         std::span<ir::Value* const> /*weights*/,
                                         ir::Value* /*when*/) {
    return {gradients.begin(), gradients.end()};
  }
  /// The part of the i-th of these weights that this worker updates; nullptr: none.
  virtual ir::Value* own_part(ir::Value* weight, std::size_t /*i*/) const { return weight; }
  /// From what each worker has of a number, of the weights that it owns. Unchanged if it owns all.
  virtual ir::Value* sum_over_owners(ir::Value* number) const { return number; }
  /// The new weights from what their owners have: `parts`, by weight. `when`: as above, or nullptr.
  virtual std::vector<ir::Value*> gather(std::span<ir::Value* const> /*weights*/,
                                         std::span<ir::Value* const> parts,
                                         ir::Value* /*when*/) const {
    return {parts.begin(), parts.end()};
  }
};

/// The inputs of an update.
struct UpdateInputs {
  /// Inputs of the graph with an initializer.
  std::span<ir::Value* const> weights = {};
  /// Gradients in the shapes and dtypes of the weights; with several workers, of this one's parts.
  std::span<ir::Value* const> gradients = {};
  ir::Value* learning_rate = nullptr;  ///< rank 0, floating
  /// Schedule of the learning rate in the graph, by number of updates; nullptr: the fed rate is
  /// used.
  const ScheduleRun* schedule = nullptr;
  std::span<ir::Value* const> plateau_factors = {};  ///< see ScheduleRun::write
  /// The divisor of the loss, rank 0: the weight of this batch among those that are
  /// accumulated. nullptr: the loss is a sum.
  ir::Value* denominator = nullptr;
  UpdateOfWorkers* workers = nullptr;  ///< nullptr: one worker
  /// Scales of quantized numbers among the weights, and the factor of their rate under optimizers
  /// whose steps do not depend on the size of gradients. They do not decay, and a step changes
  /// them by a factor of at most 2.
  std::unordered_map<std::string, double> scales = {};
  /// Names of weights with their own update count, "step_count/<weight>": they were not
  /// trained in all steps.
  std::unordered_set<std::string> with_own_count = {};
  /// Receives the norm of the accumulated gradients, rank 0, negative in steps that do not update.
  ir::Value** large_norm = nullptr;
};

/// Appends the update of each weight (formulas: onnxgrad/optimizers.h). Slots become further graph
/// inputs "<slot>/<weight>" with their initial values, "step_count" if the formula needs it, and
/// those of UpdateOptions. Returns the bindings of the weights in their order, then the others.
/// L-BFGS has no update: each weight is bound to itself.
/// Throws: ModelError (a group's pattern that matches no weight, L-BFGS with options that it does
/// not support).
std::vector<ir::StateBinding> write_optimizer(ir::GraphBuilder& g, const Optimizer& optimizer,
                                              const UpdateInputs& inputs,
                                              const UpdateOptions& options = {});

/// True, for each weight, if its elements are updated independently, so that several workers can
/// update parts of it. False if a norm of the weight, or a product with it, is needed.
std::vector<bool> updates_by_element(const Optimizer& optimizer, const UpdateOptions& options,
                                     std::span<ir::Value* const> weights);

/// The Euclidean norm of all gradients together, rank 0, in float32 or, if all are, in float64. Of
/// several workers that share the update of `weights`, each has its parts of gradients, or nullptr.
ir::Value* write_global_norm(ir::GraphBuilder& g, std::span<ir::Value* const> gradients,
                             std::span<ir::Value* const> weights = {},
                             const UpdateOfWorkers& workers = {});

/// True if steps are a loop around the graph and not a subgraph.
inline bool is_host_loop(const Optimizer& optimizer) {
  return std::holds_alternative<Lbfgs>(optimizer);
}

/// Checks parameters. Throws: OptionError for one out of range, naming it.
void check_optimizer(const Optimizer& optimizer);
void check_update_options(const UpdateOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_H_

#ifndef ONNXGRAD_TRAIN_TRAINING_GRAPH_H_
#define ONNXGRAD_TRAIN_TRAINING_GRAPH_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/optimizers.h"
#include "onnxgrad/precision.h"
#include "onnxgrad/schedules.h"
#include "onnxgrad/training_mode.h"
#include "opdef/custom_gradients.h"
#include "opdef/registry.h"
#include "train/tools/collectives.h"
#include "train/weights/weights.h"

// Builders of the graphs that training runs. Each function takes a working copy (internal opset,
// types inferred) and returns a new model; none runs a graph.

namespace onnxgrad::train {

/// Weights by name that a session trains, after freezing and unfreezing some; and the state of
/// those that it trained before.
struct TrainedSet {
  std::vector<std::string> trained = {};
  std::vector<std::string> held = {};  ///< weights that remain in the state, without updates
  /// Slots of held weights: states by name with their initial values, without updates.
  std::vector<NamedTensor> held_slots = {};
  /// Owners of held weights among several workers; see StepGraph::owners.
  std::map<std::string, std::vector<std::int64_t>> held_owners = {};
  std::unordered_set<std::string> with_own_count = {};  ///< see UpdateInputs
  std::vector<std::string> statistics = {};             ///< statistics that are state in any case
};

/// A schedule and the fit that it is for.
struct ScheduleInGraph {
  Schedule schedule = {};
  std::optional<std::int64_t> updates = {};
  std::int64_t epochs = 1;
};

struct StepGraphOptions {
  std::vector<std::string> trainable = {};  ///< patterns; see select_weights
  std::vector<std::string> frozen = {};
  /// The exact set, which replaces the patterns.
  std::optional<TrainedSet> exact = {};
  TrainingMode training_mode = TrainingMode::kAuto;
  const opdef::CustomGradients* custom_gradients = nullptr;  ///< rules that users registered
  MixedPrecision precision = {};
  /// True: a step whose loss or new state is not finite changes nothing.
  bool skip_non_finite = false;
  UpdateOptions update = {};
  /// Schedule of the learning rate, in the graph; L-BFGS has none.
  std::optional<ScheduleInGraph> schedule = {};
  /// Further outputs: outputs of the model, "<weight>_grad", "gradient_norm".
  std::vector<std::string> outputs = {};
  bool all_gradients = false;  ///< "<weight>_grad" of every trained weight, after `outputs`
  /// Whether the step computes these for the history: see StepPorts.
  bool target_losses = false;
  bool gradient_norm = false;
  bool noise_scale = false;
  bool evaluation_only = false;  ///< the loss alone: no gradient, no update, no state
  /// The step of one of several workers: they add up losses, gradients and counts.
  WorkerGraphOptions workers = {};
};

/// The positions of a step's results among its outputs. Numbers are rank 0, except the row losses.
struct StepPorts {
  std::size_t loss = 0;
  /// The divisor of the loss, if that is not the number of rows.
  std::optional<std::size_t> denominator = {};
  std::optional<std::size_t> row_losses = {};     ///< [N], for Reduction::kNone
  std::vector<std::size_t> extras = {};           ///< StepGraphOptions::outputs, all_gradients
  std::vector<std::size_t> target_losses = {};    ///< see StepGraph::target_losses
  std::optional<std::size_t> gradient_norm = {};  ///< norm of all gradients together
  /// Norms of the gradient of this batch, and of that which several batches have together in a step
  /// that updates; negative in other steps.
  std::optional<std::size_t> small_norm = {};
  std::optional<std::size_t> large_norm = {};
  std::vector<std::size_t> gradients = {};  ///< gradients of the trained weights, with L-BFGS
  std::optional<std::size_t> signal = {};   ///< the sum of StepGraph::worker_signal
};

/// The training step: loss, gradient and update. With L-BFGS the update is a loop around the graph:
/// there is no `learning_rate`, and the gradients are outputs. Graph inputs: those of the model
/// that the loss needs, the target, the sample weight if there is one, `learning_rate`, with a
/// schedule a `plateau_factor` for each of its plateaus, then the state (with initial values).
/// Graph outputs: those of `ports`, then the new state.
struct StepGraph {
  std::shared_ptr<ir::Model> model;  ///< with its state bindings
  LossInfo loss;
  /// The symbol of the number of classes, if the target is a class number and only data decides.
  std::string class_symbol = {};
  StepPorts ports = {};
  std::string sample_weight = {};  ///< name of that input; empty: none
  std::string learning_rate = {};  ///< name of that input; empty: L-BFGS
  std::string worker_weight = {};  ///< names of the inputs of WorkerInputs; empty: one worker
  std::string worker_signal = {};
  /// Bounds of each weight, held ones included: worker r updates its elements from [r] to [r + 1],
  /// and alone has their slots. Empty: all workers update all elements.
  std::map<std::string, std::vector<std::int64_t>> owners = {};
  int rank = 0;  ///< rank of this worker
  DataType learning_rate_dtype = DataType::kFloat32;
  std::vector<WeightInfo> weights = {};  ///< trained weights: the first state bindings
  /// Weights in the state that are not trained: the next ones.
  std::vector<WeightInfo> held = {};
  std::vector<WeightInfo> statistics = {};  ///< running statistics: the ones after these
  std::unordered_set<std::string> with_own_count = {};  ///< see TrainedSet
  /// The loss of each of several targets, without its factor: names of the outputs that they are
  /// on.
  std::vector<std::string> target_losses = {};
  bool is_mean = true;                ///< Reduction::kMean
  std::int64_t steps_per_update = 1;  ///< UpdateOptions::accumulate

  /// `weights`, `held` and `statistics`.
  std::vector<WeightInfo> state_weights() const {
    std::vector<WeightInfo> all = weights;
    all.insert(all.end(), held.begin(), held.end());
    all.insert(all.end(), statistics.begin(), statistics.end());
    return all;
  }
};

/// Builds the training step. Throws: ModelError (see resolve_loss, select_weights,
/// check_optimizer), GradientError.
StepGraph build_step(const ir::Model& working, const opdef::OpRegistry& registry, const Loss& loss,
                     const Optimizer& optimizer, const StepGraphOptions& options);

/// Outputs of the evaluation graph, which computes only the loss. Inputs: as for the step, then the
/// trained weights by name, as plain inputs.
struct EvaluationPorts {
  std::size_t numerator = 0;
  std::size_t denominator = 0;
  /// The (weighted) numbers of right rows and of all rows that count, for classifiers.
  std::optional<std::size_t> correct = {};
  std::optional<std::size_t> counted = {};
  std::optional<std::size_t> scores = {};  ///< scores of the first loss, if requested
};
struct EvaluationGraph {
  std::shared_ptr<ir::Model> model;
  EvaluationPorts ports = {};
};
struct EvaluationGraphOptions {
  bool scores = false;
};
EvaluationGraph build_evaluation(const ir::Model& working, const opdef::OpRegistry& registry,
                                 const Loss& loss, const std::vector<WeightInfo>& weights,
                                 const EvaluationGraphOptions& options = {});

/// `working` with `outputs` as its only ones and the named weights as plain inputs.
std::shared_ptr<ir::Model> build_prediction(const ir::Model& working,
                                            const std::vector<ir::Value*>& outputs,
                                            const std::vector<WeightInfo>& weights);

/// The loss as an output of a working copy, for files: see add_loss() of onnxgrad/losses.h.
/// Nodes from `first_new_node` on are new.
struct LossGraph {
  /// A value of the model that the loss reads; `name`: its original one, if a new input took it.
  struct Input {
    ir::Value* value = nullptr;
    std::string name = {};
  };
  std::shared_ptr<ir::Model> model;
  LossInfo info = {};
  std::size_t first_new_node = 0;
  std::vector<Input> inputs = {};        ///< scores, penalized weights
  std::vector<ir::Value*> targets = {};  ///< new inputs: targets, then the sample weight
  ir::Value* loss = nullptr;
};
LossGraph build_loss(const ir::Model& working, const opdef::OpRegistry& registry, const Loss& loss,
                     const std::string& loss_name);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRAINING_GRAPH_H_

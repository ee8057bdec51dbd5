#ifndef ONNXGRAD_TRAIN_TRAINING_GRAPH_H_
#define ONNXGRAD_TRAIN_TRAINING_GRAPH_H_

#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/optimizers.h"
#include "opdef/registry.h"
#include "train/weights.h"

// From a model to the graphs that training runs. Each function takes a working copy (internal
// opset, types inferred) and returns a new model; nothing here runs anything.

namespace onnxgrad::train {

struct StepGraphOptions {
  std::vector<std::string> trainable = {};  ///< patterns; see select_weights
  std::vector<std::string> frozen = {};
  /// Further outputs: outputs of the model, "<weight>_grad", "gradient_norm".
  std::vector<std::string> outputs = {};
  bool all_gradients = false;  ///< "<weight>_grad" of every trained weight, after `outputs`
};

/// Loss, gradient and update. Graph inputs: those of the model that the loss needs, the target, the
/// sample weight if there is one, `learning_rate`, then the state (with first values). Graph
/// outputs: the loss, (with sample weights) its denominator, the further outputs, then the new
/// state.
struct StepGraph {
  std::shared_ptr<ir::Model> model;  ///< with its state bindings
  LossInfo loss;
  std::string sample_weight = {};  ///< name of that input; empty: none
  std::string learning_rate = {};  ///< name of that input
  DataType learning_rate_dtype = DataType::kFloat32;
  std::vector<WeightInfo> weights = {};  ///< that are trained: the first state bindings
  std::size_t num_extra_outputs = 0;     ///< after the loss and the denominator
};

/// Throws: ModelError (see resolve_loss, select_weights, check_optimizer), GradientError.
StepGraph build_step(const ir::Model& working, const opdef::OpRegistry& registry, const Loss& loss,
                     const Optimizer& optimizer, const StepGraphOptions& options);

/// The loss alone, for data that is not trained on. Inputs: as of the step, then the trained
/// weights by name, as plain inputs. Outputs: numerator, denominator, and for classifiers the
/// number of right rows.
struct EvaluationGraph {
  std::shared_ptr<ir::Model> model;
  bool has_correct_rows = false;
};
EvaluationGraph build_evaluation(const ir::Model& working, const opdef::OpRegistry& registry,
                                 const Loss& loss, const std::vector<WeightInfo>& weights);

/// `working` with `outputs` as its only ones and the named weights as plain inputs.
std::shared_ptr<ir::Model> build_prediction(const ir::Model& working,
                                            const std::vector<ir::Value*>& outputs,
                                            const std::vector<WeightInfo>& weights);

/// The loss as an output of a working copy, for files: see add_loss() of onnxgrad/losses.h.
/// `added` gets the new inputs' and nodes' range: nodes from `first_new_node` on are new.
struct LossGraph {
  std::shared_ptr<ir::Model> model;
  LossInfo info = {};
  std::size_t first_new_node = 0;
  ir::Value* target = nullptr;
  ir::Value* sample_weight = nullptr;
  ir::Value* loss = nullptr;
};
LossGraph build_loss(const ir::Model& working, const opdef::OpRegistry& registry, const Loss& loss,
                     const std::string& loss_name);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRAINING_GRAPH_H_

#ifndef ONNXGRAD_TRAIN_FILE_TRAINING_H_
#define ONNXGRAD_TRAIN_FILE_TRAINING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "onnx/training_info.h"
#include "train/graphs/training_graph.h"

namespace onnxgrad::train {

/// The training that a file describes itself: its TrainingInfoProtos, in order, as one step.
/// Initial values are computed from `initialization`, unless the file says that it was trained
/// since. Its loss is
/// - an output "loss", else the y of a Gradient node, else the first single floating-point number
///   among the outputs of an algorithm, of those that are bound to no initializer.
/// Its target is the one input that its algorithms add to the model's; of several the one named
/// "label", else the first, without "sample_weight".
class FileTraining {
 public:
  /// `file.bytes` must be there. `seed`: seed of random initial values. `operators`: registered by
  /// users. Throws: ModelError naming the place (see onnx_io::read_training_info; a value of
  /// another type or shape than its initializer; no loss), and what onnx_io::to_internal throws.
  FileTraining(const onnx_io::FileModel& file, std::uint64_t seed,
               std::shared_ptr<const onnx_io::OperatorTable> operators = {});

  /// The model's graph and the algorithm that has the loss; only the first outputs are the model's.
  std::shared_ptr<const ir::Model> working() const { return parts_[loss_part_].working; }
  std::size_t num_model_outputs() const { return num_model_outputs_; }
  const Loss& loss() const { return loss_; }
  /// Value of an algorithm's initializer `learning_rate`, a scalar that nothing updates; else 0.
  double learning_rate() const { return learning_rate_; }

  /// Builds the step. State: initializers of the model that change, floating-point ones first, then
  /// those of the algorithms. Each has the WeightOrigin of its place in the file. Without
  /// learning_rate() there is no such input.
  StepGraph build(bool skip_non_finite) const;
  /// The states that are initializers of working().
  std::vector<WeightInfo> evaluated_states() const;

 private:
  struct Part {
    onnx_io::TrainingInfo info;
    std::shared_ptr<ir::Model> working = {};
  };
  class Writer;

  void initialize(std::uint64_t seed);
  void set_initial(std::size_t part, const std::string& name, const Tensor& value);
  void check_updates() const;
  void find_loss();
  void find_targets();
  void find_learning_rate();
  void find_classes();
  std::unordered_set<std::string> bound_outputs(const Part& part) const;
  std::string find_loss_in(const Part& part) const;
  /// Whether an initializer of a working copy is one of the model, or of this part, that changes.
  bool is_model_state(const std::string& name) const {
    return model_initializers_.contains(name) && updated_.contains(name);
  }
  static bool is_own_state(const Part& part, const std::string& name);

  std::shared_ptr<const onnx_io::OperatorTable> operators_;  ///< operators that users registered
  std::vector<Part> parts_;
  std::unordered_set<std::string> updated_;  ///< names of the initializers
  std::unordered_set<std::string> model_inputs_;
  std::unordered_set<std::string> model_initializers_;
  std::size_t num_model_outputs_ = 0;
  std::size_t loss_part_ = 0;
  Loss loss_;
  std::optional<LossInfo> classes_;  ///< the head whose classes the target numbers
  double learning_rate_ = 0;
  bool has_learning_rate_ = false;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FILE_TRAINING_H_

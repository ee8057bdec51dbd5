#ifndef ONNXGRAD_TRAINING_SESSION_H_
#define ONNXGRAD_TRAINING_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/inference_session.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/model.h"
#include "onnxgrad/optimizers.h"
#include "onnxgrad/profile.h"
#include "onnxgrad/training_mode.h"

namespace [[gnu::visibility("default")]] onnxgrad {

struct TrainingOptions {
  /// Glob patterns of the weights to train; empty: WeightInfo::trainable says.
  std::vector<std::string> trainable = {};
  /// Glob patterns of weights that stay as they are.
  std::vector<std::string> frozen = {};
  /// Weights that are one in the file by accident are trained apart, and written so; false: the
  /// file keeps its tensors. See SeparatedWeight.
  bool untie = true;
  /// What step() gives besides the loss: outputs of the model, "<weight>_grad", "gradient_norm"
  /// (the Euclidean norm of all gradients together).
  std::vector<std::string> outputs = {};
  UpdateOptions update = {};  ///< groups of weights, clipping, accumulation
  TrainingMode training_mode = TrainingMode::kAuto;
  /// A step whose loss or new weights are NaN or infinite changes nothing; its loss is returned.
  bool skip_non_finite = false;
  EngineOptions engine = {};
};

struct StepResult {
  double loss = 0;              ///< before the update; the sum of the rows with Reduction::kNone
  Tensor row_losses = {};       ///< [N], of Reduction::kNone; a copy
  std::vector<Tensor> outputs;  ///< TrainingOptions::outputs in their order; copies
};

struct EvaluationResult {
  double loss = 0;
  std::optional<double> accuracy = {};  ///< share of rows whose class is right; classifiers only
  std::int64_t rows = 0;
  std::vector<double> metrics = {};  ///< of the Metric list that was given
};

/// Loss, gradient and update in one compiled step over weights and optimizer state that the session
/// holds. One call at a time: a call while another thread is inside, or its fit(), throws Error. A
/// callback of fit() may call what only reads the state, and set_learning_rate().
class TrainingSession {
 public:
  /// Throws: what find_loss and gradient throw; UnsupportedOperatorError; ModelError (a pattern
  /// that matches no weight, no weight to train).
  explicit TrainingSession(const Model& model, const Loss& loss = {},
                           const Optimizer& optimizer = Sgd{}, const TrainingOptions& options = {});
  ~TrainingSession();
  TrainingSession(TrainingSession&&) noexcept;
  TrainingSession& operator=(TrainingSession&&) noexcept;

  /// One step on a batch: the model's inputs, the target under its name (LossInfo::target), and the
  /// sample weight if the loss has one. Feeds are read, not copied.
  /// Throws: DataError (missing or unknown name, dtype, class number out of range), ShapeError. The
  /// state is then as before.
  StepResult step(const NamedTensors& feeds);
  /// Loss (and accuracy) on a batch with the current weights; nothing is updated.
  EvaluationResult evaluate(const NamedTensors& feeds);
  /// The model's outputs (empty: all) with the current weights; outputs as InferenceSession gives
  /// them.
  std::vector<Tensor> predict(const NamedTensors& feeds,
                              std::span<const std::string> output_names = {});

  /// What the model is fed with: its inputs, without target and sample weight.
  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  const LossInfo& loss() const;
  const Optimizer& optimizer() const;
  /// Weights that are trained, in file order.
  const std::vector<WeightInfo>& trained_weights() const;
  /// Tensors of the file that are several weights here; see TrainingOptions::untie.
  const std::vector<SeparatedWeight>& separated_weights() const;
  /// For people: "trains 38 of 40 weights; not trained: 'mask' (a mask), 'knots' (evenly spaced
  /// numbers)", and a second line where weights are trained apart. Single numbers of formulas do
  /// not count.
  std::string weights_line() const;

  /// From the next step on, the trained weights that match one of these glob patterns stay as they
  /// are; they and their optimizer state remain part of state(). All others continue as before.
  /// Throws: ModelError (pattern that matches no trained weight, nothing left to train). The
  /// session is then as before. The step is recompiled, as by unfreeze().
  void freeze(std::span<const std::string> patterns);
  /// Trains floating-point weights that match and are not trained, frozen ones and those that never
  /// were. A weight continues from the optimizer state that it had, and counts its updates itself.
  /// Throws: ModelError (pattern that matches no such weight, weight without influence on the
  /// loss), GradientError.
  void unfreeze(std::span<const std::string> patterns);

  /// Labels as the user has them (numbers, strings) as the loss reads them: class numbers int64
  /// [N], or for a regression numbers in the shape and dtype of the scores. `output`: which of
  /// several losses; empty: the first. Throws: DataError (unknown label; names it, its row, the
  /// classes).
  Tensor encode_target(const Tensor& labels, const std::string& output = "") const;

  /// From the next step on the loss has an input of this name for a weight of each row, as with
  /// Loss::sample_weight, or with `of_places` for each label (Loss::weigh_places); nothing changes
  /// where it has one. Weights and optimizer state stay; the step is recompiled.
  void use_sample_weights(const std::string& name = "sample_weight", bool of_places = false);

  /// In force from the next step on.
  double learning_rate() const;
  void set_learning_rate(double learning_rate);
  /// Steps done since construction, reset() or load_state().
  std::int64_t steps() const;

  /// Weights, then optimizer state, by the names of training_step(); copies.
  NamedTensors state() const;
  /// Throws: CheckpointError (unknown or missing name, other dtype or shape). All or nothing.
  void load_state(const NamedTensors& state);
  /// Writes a checkpoint: state(), the number of steps, the learning rate and the seed, so that
  /// training continues from it bit for bit. A safetensors file, described in docs/checkpoints.md;
  /// written whole or not at all. Throws: CheckpointError.
  void save(const std::string& path) const;
  /// Reads such a file. Everything is checked before anything is changed. Throws: CheckpointError
  /// (a damaged file; one of another model, loss or optimizer, naming the first difference).
  void load(const std::string& path);
  /// First weights and empty optimizer state again.
  void reset();

  /// The file as it was loaded, with the current weights.
  Model trained_model() const;
  /// The step's plan for the last batch shape, one line per kernel; empty before the first.
  std::string plan_summary() const;

  /// While on, the kernels of steps are timed (those of fit() too). Switching on starts over.
  void set_profiling(bool on);
  /// What was measured so far.
  Profile profile() const;
  MemoryReport memory() const;
  /// Step plans compiled so far: one for each set of input shapes, as long as no more than 64 are
  /// in use; of models with an If or with shapes that depend on values, one more for each branch
  /// and for each set of shapes that was seen.
  std::int64_t num_compiled() const;
  /// Step plans that are kept, the ones used last: at most 64 for input shapes and 64 for shapes
  /// that depend on values.
  std::int64_t num_cached() const;

  struct Impl;  ///< private to the library
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAINING_SESSION_H_

#ifndef ONNXGRAD_TRAINING_SESSION_H_
#define ONNXGRAD_TRAINING_SESSION_H_

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/inference_session.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/model.h"
#include "onnxgrad/model_forms.h"
#include "onnxgrad/optimizers.h"
#include "onnxgrad/precision.h"
#include "onnxgrad/profile.h"
#include "onnxgrad/training_info.h"
#include "onnxgrad/training_mode.h"
#include "onnxgrad/workers.h"

namespace [[gnu::visibility("default")]] onnxgrad {

struct TrainingOptions {
  /// Glob patterns of weights to train; empty: those with WeightInfo::trainable.
  std::vector<std::string> trainable = {};
  /// Glob patterns of weights to leave unchanged.
  std::vector<std::string> frozen = {};
  /// Weights that share a tensor of the file by accident are trained and written separately; false:
  /// the file keeps its tensors. See SeparatedWeight.
  bool untie = true;
  /// Values that step() returns besides the loss: outputs of the model, "<weight>_grad",
  /// "gradient_norm" (the Euclidean norm of all gradients together).
  std::vector<std::string> outputs = {};
  UpdateOptions update = {};  ///< groups of weights, clipping, accumulation
  /// Values, or nodes for all their outputs, by their names in the file, also of subgraphs: no
  /// gradient flows through them. To leave weights unchanged, use `frozen`.
  std::vector<std::string> stop_gradient = {};
  TrainingMode training_mode = TrainingMode::kAuto;
  BatchOpening open_batch = BatchOpening::kAuto;
  MixedPrecision precision = {};  ///< precision of steps; not with L-BFGS
  /// True: a step whose loss or new weights are NaN or infinite changes nothing; its loss is
  /// returned.
  bool skip_non_finite = false;
  /// True: no gradient and no update, evaluate() and predict() only, for models without weights to
  /// train too. Options of the update are ignored.
  bool evaluation_only = false;
  /// Options for several workers: feeds of step() are this worker's rows of a batch, at least one.
  WorkerOptions workers = {};
  EngineOptions engine = {};
};

/// Weights of a session with an average of them.
enum class WeightKind {
  kEvaluated,  ///< those that evaluate() and predict() use, see use_average()
  kTrained,
  kAverage,  ///< of weights that have an average; the others as they are
};

struct StepResult {
  double loss = 0;              ///< before the update; the sum of the rows with Reduction::kNone
  Tensor row_losses = {};       ///< [N], for Reduction::kNone; a copy
  std::vector<Tensor> outputs;  ///< TrainingOptions::outputs in their order; copies
};

struct EvaluationResult {
  double loss = 0;
  std::optional<double> accuracy = {};  ///< fraction of rows classified correctly; classifiers only
  std::int64_t rows = 0;
  std::vector<double> metrics = {};  ///< values of the given Metric list
};

/// Trains a model: loss, gradient and update in one compiled step over the session's weights and
/// optimizer state. One call at a time: a call during another thread's call or fit() throws Error.
/// A callback of fit() may call methods that only read the state, and set_learning_rate().
class TrainingSession {
 public:
  /// Builds and compiles the step. Throws: the errors of find_loss and gradient;
  /// UnsupportedOperatorError; ModelError (a pattern that matches no weight, no weight to train).
  explicit TrainingSession(const Model& model, const Loss& loss, const Optimizer& optimizer = Sgd{},
                           const TrainingOptions& options = {});
  /// Takes a loss without options: TrainingSession(model, SoftmaxCrossEntropy{}, Adam{}).
  template <class Function>
    requires(std::convertible_to<Function, LossFunction> && !std::convertible_to<Function, Loss>)
  explicit TrainingSession(const Model& model, const Function& function,
                           const Optimizer& optimizer = Sgd{}, const TrainingOptions& options = {})
      : TrainingSession(model, Loss{.function = function}, optimizer, options) {}
  /// Trains as the model's file describes, if it has training information (has_training_info());
  /// else with Loss{} and Sgd{}. Options that contradict the file throw OptionError.
  explicit TrainingSession(const Model& model, const TrainingOptions& options = {});
  ~TrainingSession();
  TrainingSession(TrainingSession&&) noexcept;
  TrainingSession& operator=(TrainingSession&&) noexcept;

  /// Runs one step on a batch: the model's inputs, the target by name (LossInfo::target), and the
  /// sample weight if the loss has one. Feeds are read, not copied.
  /// Throws: DataError (missing or unknown name, dtype, class number out of range), ShapeError. The
  /// state is then unchanged.
  StepResult step(const NamedTensors& feeds);
  /// Computes loss (and accuracy) on a batch with the current weights; nothing is updated.
  EvaluationResult evaluate(const NamedTensors& feeds);
  /// Computes the model's outputs (empty: all) with the current weights, in the same form as from
  /// InferenceSession.
  std::vector<Tensor> predict(const NamedTensors& feeds,
                              std::span<const std::string> output_names = {});

  /// step() and evaluate() of feeds in any memory; inputs in that of the session's device are read
  /// in place, others copied. Targets and sample weights are checked on the host.
  StepResult step(const NamedDeviceTensors& feeds);
  EvaluationResult evaluate(const NamedDeviceTensors& feeds);
  /// predict() with results that stay in the memory of the session's device; see
  /// InferenceSession::run_on_device().
  std::vector<DeviceTensor> predict_on_device(const NamedDeviceTensors& feeds,
                                              std::span<const std::string> output_names = {});

  /// The model's inputs, without target and sample weight; then their siblings (Loss::views), which
  /// predict() does not need.
  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  /// Whether the model's file describes the training; optimizer() is then without effect, and
  /// learning_rate() 0 unless there is an initializer of that name.
  bool is_of_file() const;
  LossInfo loss() const;
  const Optimizer& optimizer() const;
  /// Trained weights, in file order.
  std::vector<WeightInfo> trained_weights() const;
  /// Tensors of the file that are several weights here; see TrainingOptions::untie.
  const std::vector<SeparatedWeight>& separated_weights() const;
  /// A summary: "trains 38 of 40 weights; not trained: 'mask' (a mask), 'knots' (evenly spaced
  /// numbers)", and a second line if weights are trained separately. Single numbers of formulas do
  /// not count.
  std::string weights_line() const;
  /// A line for each pattern that matches the bias of a layer and not its matrix, which no other
  /// pattern matches either; not for patterns of biases ("*.bias"). `patterns`; empty: those that
  /// the session was made with (trainable, frozen, groups, penalties).
  std::vector<std::string> pattern_warnings(std::span<const std::string> patterns = {}) const;

  /// Rows that every batch of step() must have, because the file fixes them and they cannot be
  /// opened (TrainingOptions::open_batch); 0: any number. evaluate(), predict() and a Trainer take
  /// any number: they run the model on so many at a time, and fill up what is left with rows that
  /// do not count.
  std::int64_t fixed_batch() const;
  /// One line about a batch size that the file fixes: "batch: 1 row in the file, opened; the
  /// trained model keeps it". Empty if the file has an open batch, or none.
  std::string batch_line() const;

  /// Freezes trained weights that match one of these glob patterns, from the next step on;
  /// they and their optimizer state remain part of state(). All others continue as before.
  /// Throws: ModelError (pattern that matches no trained weight, nothing left to train); the
  /// session is then unchanged. The step is recompiled, as by unfreeze().
  void freeze(std::span<const std::string> patterns);
  /// Trains the matching weights that are not trained, whether frozen or never trained; a pattern
  /// matches parameters, a full name any floating-point weight. A weight continues from its
  /// previous optimizer state, with its own update count. Nothing happens if all that match are
  /// trained. Throws: ModelError (pattern that matches no such weight, weight that does not affect
  /// the loss), GradientError.
  void unfreeze(std::span<const std::string> patterns);

  /// Converts labels in the user's form (numbers, strings) to the target that the loss reads: class
  /// numbers int64 [N], or for regression numbers in the shape and dtype of the scores. `output`:
  /// which of several losses; empty: the first. Throws: DataError (unknown label; names it, its
  /// row, the classes).
  Tensor encode_target(const Tensor& labels, const std::string& output = "") const;

  /// Adds an input of this name to the loss, from the next step on, with a weight for each row, as
  /// with Loss::sample_weight, or with `of_places` for each label (Loss::weigh_places); no effect
  /// if it has one. Weights and optimizer state are kept; the step is recompiled.
  void use_sample_weights(const std::string& name = "sample_weight", bool of_places = false);

  /// The learning rate; a new one takes effect from the next step on.
  double learning_rate() const;
  void set_learning_rate(double learning_rate);
  /// Steps done since construction, reset() or load_state().
  std::int64_t steps() const;

  /// The weights that are trained, in file order: views that the next step, load() or reset()
  /// changes; on other devices than the CPU copies.
  NamedTensors weights() const;
  /// Whether there is an average of the weights: UpdateOptions::average, or that of the optimizer.
  bool has_average() const;
  /// Whether evaluate(), predict() and trained_model() use it.
  bool uses_average() const;
  /// Throws: OptionError (there is none), Error (while fit() runs).
  void use_average(bool on);
  /// Weights, then optimizer state, by the names of training_step(); copies.
  NamedTensors state() const;
  /// Loads all states or none. Throws: CheckpointError (unknown or missing name, different dtype or
  /// shape).
  void load_state(const NamedTensors& state);
  /// Writes a checkpoint: state(), the number of steps, the learning rate and the seed, so that
  /// training continues from it bit for bit. A safetensors file, described in docs/checkpoints.md;
  /// written atomically. Throws: CheckpointError.
  void save(const std::string& path) const;
  /// Loads a checkpoint of save(). Everything is checked before anything is changed. Throws:
  /// CheckpointError (a damaged file; one of another model, loss or optimizer, naming the first
  /// difference).
  void load(const std::string& path);
  /// Restores the initial weights and an empty optimizer state.
  void reset();

  /// The file as it was loaded, with the current weights; with BatchOpening::kOn as from
  /// open_batch(). Throws: OptionError (there is no average).
  Model trained_model(WeightKind kind = WeightKind::kEvaluated) const;
  /// trained_model() with the session's training in the file, as it is now: weights, optimizer
  /// state and learning rate; see add_training_info(). Throws: ModelError (L-BFGS).
  Model with_training_info(const TrainingInfoOptions& options = {}) const;
  /// The step's plan for the last batch shape, one line per kernel; empty before the first.
  std::string plan_summary() const;

  /// Turns timing of the kernels of steps on or off (including those of fit()). Turning it on
  /// clears the profile.
  void set_profiling(bool on);
  /// Measurements so far.
  Profile profile() const;
  MemoryReport memory() const;
  /// Step plans compiled so far: one for each set of input shapes, as long as no more than 64 are
  /// in use; for models with an If or with shapes that depend on values, one more for each branch
  /// and for each set of shapes seen.
  std::int64_t num_compiled() const;
  /// Step plans kept, the most recently used ones: at most 64 for input shapes and 64 for shapes
  /// that depend on values.
  std::int64_t num_cached() const;

  struct Impl;  ///< private to the library
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAINING_SESSION_H_

#ifndef ONNXGRAD_TRAIN_SESSION_H_
#define ONNXGRAD_TRAIN_SESSION_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/training_session.h"
#include "train/data/dataset.h"
#include "train/open_batch/open_batch.h"
#include "train/session/batch_check.h"
#include "train/session/batch_filler.h"
#include "train/session/forward_runner.h"
#include "train/session/label_form.h"
#include "train/session/placed_feeds.h"
#include "train/session/session_values.h"
#include "train/session/step_runner.h"
#include "train/tools/engine.h"
#include "train/tools/text_codes.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

class FileTraining;

/// The implementation of TrainingSession: a model, the options of its training, and the step,
/// evaluation and prediction compiled from them (train/session/). Evaluation and prediction
/// read the weights in the step's state, without a copy. Not thread-safe, but for copies of what
/// describes the step.
class Session {
 public:
  Session(Source source, const Loss& loss, const Optimizer& optimizer,
          const TrainingOptions& options);
  /// Trains as the file describes. Throws: OptionError (options that contradict it).
  Session(const onnx_io::FileModel& file, std::shared_ptr<const FileTraining> training,
          const TrainingOptions& options);

  StepResult step(const NamedTensors& feeds) { return step(feeds, {}); }
  EvaluationResult evaluate(const NamedTensors& feeds) { return evaluate(feeds, {}); }
  std::vector<Tensor> predict(const NamedTensors& feeds, std::span<const std::string> output_names);

  // With feeds in any memory (train/session/placed_feeds.cpp).

  StepResult step(const NamedDeviceTensors& feeds);
  EvaluationResult evaluate(const NamedDeviceTensors& feeds);
  std::vector<DeviceTensor> predict_on_device(const NamedDeviceTensors& feeds,
                                              std::span<const std::string> output_names);

  const std::vector<ValueInfo>& inputs() const { return values_.inputs; }
  const std::vector<ValueInfo>& outputs() const { return values_.outputs; }
  const StepGraph& graph() const { return step_->graph(); }
  const Source& source() const { return source_; }
  /// The batch of the file, and whether it was opened.
  const BatchForm& batch() const { return batch_; }
  const TrainingOptions& options() const { return options_; }
  const LossInfo& loss() const { return graph().loss; }
  /// Copies, which any thread may ask for.
  LossInfo copy_loss() const;
  std::vector<WeightInfo> copy_weight_infos() const;
  double learning_rate() const;
  std::int64_t steps() const;
  const Optimizer& optimizer() const { return optimizer_; }
  /// Encodes labels for the loss on `output`; empty: the first. Throws: DataError (see
  /// train/data/targets.h). Any thread may ask for it.
  Tensor encode_target(const Tensor& labels, const std::string& output = "") const;
  /// The schema that rows are checked against.
  DataSchema schema() const {
    return {.inputs = values_.inputs,
            .loss = loss(),
            .sample_weight = graph().sample_weight,
            .texts = texts_.get(),
            .threads = thread_count(options_.engine),
            .constants = values_.constants};
  }

  /// Throws: OptionError: the session only evaluates.
  void expect_training() const;
  /// Throws OptionError if the training that the file describes has no rate that can be set.
  void expect_learning_rate() const;
  /// The training that the file describes; nullptr: the loss and the optimizer are ours.
  const FileTraining* file_training() const { return training_.get(); }
  bool reads_texts() const { return texts_ != nullptr; }

  // Methods that recompile the step: its state keeps the values, previous plans and executions are
  // invalid afterwards, and nothing has changed if it throws. Throws: Error while a FitScope
  // exists.

  /// See TrainingSession.
  void freeze(std::span<const std::string> patterns);
  void unfreeze(std::span<const std::string> patterns);
  void use_sample_weights(const std::string& name, bool of_places = false);
  /// Turns TrainingOptions::skip_non_finite on.
  void guard_updates();
  /// Whether steps also compute the norms for the noise scale of gradients.
  void log_noise_scale(bool wanted);
  /// Makes the step read probabilities where its target is class numbers, so that targets can be
  /// mixed; evaluations do not change. Throws: OptionError (a loss of which there is no such form).
  void read_mixed_targets(bool wanted);
  /// Whether steps also compute the norm of all gradients (StepPorts::gradient_norm).
  void log_gradient_norm(bool wanted);

  /// The loss as requested, with what labels have decided; another one keeps the state.
  const Loss& asked_loss() const { return loss_; }
  void ask_loss(Loss loss);

  /// Copies.
  NamedTensors state() const;
  void reset();
  /// Copies of the trained weights, by their names in the working copy. Throws: OptionError.
  NamedTensors weights(WeightKind kind = WeightKind::kTrained) const;
  /// See TrainingSession.
  bool has_average() const { return step_->state().has_averages(); }
  bool uses_average() const { return has_average() && step_->reads_averages(); }
  void use_average(bool on);
  /// Views of them, which the next step changes.
  NamedTensors weight_views() const;
  MemoryReport memory() const;

  /// The step: its state, learning rate and number of steps; valid as long as the session is not
  /// recompiled, as are views of its state.
  StepRunner& runner() { return *step_; }
  const StepRunner& runner() const { return *step_; }
  const Backend& backend() const { return backend_; }
  /// While a FitScope exists.
  bool is_fitting() const { return is_fitting_; }
  const Workers& workers() const { return workers_; }
  /// Whether workers have states that differ: some slots, weights, running statistics, or sums of
  /// gradients within an accumulated update.
  bool has_own_state() const;
  /// See training_checksum(); equal for any number of workers.
  std::string checksum() const;
  /// The evaluation, compiled at the first call. Shared, since one with scores replaces one
  /// without.
  std::shared_ptr<Evaluation> evaluation(bool with_scores = false);

 private:
  friend class FitScope;

  Tensor weight_value(const std::string& name) const {
    return step_->executor().read_state(step_->state().find(name).value());
  }
  Session(Source source, const Loss& loss, const Optimizer& optimizer,
          const TrainingOptions& options, std::shared_ptr<const FileTraining> training);

  void charge_file();
  void open_batch();
  void build_first();
  BatchFiller filler() const { return {batch_, *step_, fills_batches_}; }
  BatchCheck::Step checked_step() const {
    return {.working = *source_.working,
            .loss = loss(),
            .sample_weight = graph().sample_weight,
            .backend = backend_};
  }
  EvaluationResult evaluate_parts(const NamedTensors& feeds, std::int64_t rows);
  std::vector<Tensor> predict_parts(const NamedTensors& feeds, std::int64_t rows,
                                    std::span<const std::string> output_names);
  StepGraph write_step(const std::optional<TrainedSet>& set, bool of_worker = true) const;
  void share_rows(std::int64_t rows);
  bool updates_alone() const { return workers_.has_others() && options_.workers.sync_every > 1; }
  /// Throws: OptionError if the file describes its training.
  void expect_own_step(const std::string& what) const;
  std::unique_ptr<StepRunner> build(const std::optional<TrainedSet>& set, bool keeps_state = false);
  void change_trained(TrainedSet set);
  template <class T>
  void change(T& option, T value);
  using OnDevice = std::span<const NamedDeviceTensor>;  ///< see PlacedFeeds
  PlacedFeeds place(const NamedDeviceTensors& feeds, InUse& in_use) const;
  StepResult step(const NamedTensors& feeds, OnDevice on_device);
  StepResult step_on(const NamedTensors& feeds, OnDevice on_device);
  EvaluationResult evaluate(const NamedTensors& feeds, OnDevice on_device);
  EvaluationResult evaluate_on(const NamedTensors& feeds, OnDevice on_device);
  LossSums sums_on(const NamedTensors& feeds, OnDevice on_device, std::int64_t& rows);
  EvaluationResult result_of(const LossSums& sums, std::int64_t rows);
  std::vector<Tensor> predict_batch(const NamedTensors& feeds,
                                    std::span<const std::string> output_names);
  Prediction& prediction(std::span<const std::string> output_names);
  std::vector<std::string> input_names() const;

  Source source_;               ///< the working copy has numbers for texts
  BatchForm batch_;             ///< the model before texts are numbered
  bool fills_batches_ = false;  ///< sample weights may be absent: they fill batches up
  std::shared_ptr<const FileTraining> training_;
  std::shared_ptr<const TextCodes> texts_;  ///< nullptr: the model reads none
  Loss loss_;
  Optimizer optimizer_;
  TrainingOptions options_;
  Backend backend_;
  std::shared_ptr<const void> file_charge_;  ///< the file's bytes in the memory budget
  Workers workers_;
  std::optional<TrainedSet> built_with_;  ///< the step
  mutable std::string checksum_;          ///< of it, of several workers; empty: not known yet
  bool logs_gradient_norm_ = false;
  bool logs_noise_scale_ = false;
  bool reads_mixed_targets_ = false;
  bool is_fitting_ = false;
  SessionValues values_;
  BatchCheck checks_;
  mutable std::mutex replacing_;  ///< of step_: calls of other threads may copy what describes it
  std::unique_ptr<StepRunner> step_;
  std::shared_ptr<Evaluation> evaluation_;
  /// Predictions of the last sets of outputs (see SessionValues::runnable) that were wanted, the
  /// last one first.
  std::list<std::pair<std::vector<std::size_t>, Prediction>> predictions_;
};

/// An epoch loop that runs. During its lifetime, plans are kept.
class FitScope {
 public:
  explicit FitScope(Session& session) : session_(session) {
    session.expect_training();
    session_.is_fitting_ = true;
  }
  ~FitScope() { session_.is_fitting_ = false; }
  FitScope(const FitScope&) = delete;
  FitScope& operator=(const FitScope&) = delete;

 private:
  Session& session_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_H_

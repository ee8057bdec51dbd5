#ifndef ONNXGRAD_TRAIN_SESSION_H_
#define ONNXGRAD_TRAIN_SESSION_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/training_session.h"
#include "runtime/input_sizes.h"
#include "train/data/dataset.h"
#include "train/open_batch/open_batch.h"
#include "train/session/forward_runner.h"
#include "train/session/label_form.h"
#include "train/session/step_runner.h"
#include "train/tools/engine.h"
#include "train/tools/text_codes.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

struct Checkpoint;
class FileTraining;

/// The implementation of TrainingSession: a model, the options of its training, and the step,
/// evaluation and prediction compiled from them (train/session/). Evaluation and prediction
/// read the weights in the step's state, without a copy. Not thread-safe.
class Session {
 public:
  Session(Source source, const Loss& loss, const Optimizer& optimizer,
          const TrainingOptions& options);
  /// Trains as the file describes. Throws: OptionError (options that contradict it).
  Session(const onnx_io::FileModel& file, std::shared_ptr<const FileTraining> training,
          const TrainingOptions& options);

  StepResult step(const NamedTensors& feeds);
  EvaluationResult evaluate(const NamedTensors& feeds);
  std::vector<Tensor> predict(const NamedTensors& feeds, std::span<const std::string> output_names);

  const std::vector<ValueInfo>& inputs() const { return inputs_; }
  const std::vector<ValueInfo>& outputs() const { return outputs_; }
  const StepGraph& graph() const { return step_->graph(); }
  const Source& source() const { return source_; }
  /// The batch of the file, and whether it was opened.
  const BatchForm& batch() const { return batch_; }
  /// Checks the number of rows. Throws: DataError (they are no whole batches, and batches cannot be
  /// filled up).
  void expect_filling(std::int64_t rows) const;
  const TrainingOptions& options() const { return options_; }
  const LossInfo& loss() const { return graph().loss; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// Encodes labels for the loss on `output`; empty: the first. Throws: DataError (see
  /// train/data/targets.h).
  Tensor encode_target(const Tensor& labels, const std::string& output = "") const;
  /// The schema that rows are checked against.
  DataSchema schema() const {
    return {.inputs = inputs_,
            .loss = loss(),
            .sample_weight = graph().sample_weight,
            .texts = texts_.get(),
            .threads = thread_count(options_.engine),
            .constants = constants_};
  }

  double learning_rate() const { return step_->learning_rate(); }
  void set_learning_rate(double rate) {
    expect_learning_rate();
    step_->set_learning_rate(rate);
  }
  /// Throws OptionError if the session only evaluates.
  void expect_training() const;
  /// Throws OptionError if the training that the file describes has no rate that can be set.
  void expect_learning_rate() const;
  /// The training that the file describes; nullptr: the loss and the optimizer are ours.
  const FileTraining* file_training() const { return training_.get(); }
  bool reads_texts() const { return texts_ != nullptr; }
  std::int64_t steps() const { return step_->steps(); }
  void set_steps(std::int64_t steps) { step_->set_steps(steps); }
  /// Seed of Dropout and other random operators.
  std::uint64_t seed() const { return step_->seed(); }
  void set_seed(std::uint64_t seed) { step_->set_seed(seed); }

  // Methods that recompile the step: its state keeps the values, previous plans and executions are
  // invalid afterwards, and nothing has changed if it throws. Throws: Error while a FitSession
  // exists.

  /// See TrainingSession.
  void freeze(std::span<const std::string> patterns);
  void unfreeze(std::span<const std::string> patterns);
  void use_sample_weights(const std::string& name, bool of_places = false);
  /// Turns TrainingOptions::skip_non_finite on.
  void guard_updates();
  /// Whether steps also compute the norm of all gradients (StepPorts::gradient_norm).
  void log_gradient_norm(bool wanted);

  /// True while labels may still determine a class axis: see label_form.h.
  bool is_open() const;
  /// Decides the properties that depend on labels. Called before a fit; inside one it does nothing.
  /// Throws: DataError (labels that match no axis of the scores, or several).
  void settle_by_labels(const FirstRows& rows);
  void settle_by_labels(const Dataset& data);
  /// Forms that labels have decided so far. set_label_forms() takes decisions from elsewhere for
  /// what is still open here.
  LabelForms label_forms() const;
  void set_label_forms(const LabelForms& forms);
  /// The loss as requested, with what labels have decided; another one keeps the state.
  const Loss& asked_loss() const { return loss_; }
  void ask_loss(Loss loss);

  NamedTensors state() const;
  /// State as from Executor::read_state: on the CPU views that are valid as long as the
  /// session is not recompiled.
  NamedTensors read_state() const { return step_->read_state(); }
  void load_state(const NamedTensors& state) { step_->load_state(state); }
  void reset();
  /// Copies of the trained weights, by their names in the working copy.
  NamedTensors weights() const;
  std::string plan_summary() const { return step_->plan_summary(); }
  MemoryReport memory() const;

  StepRunner& runner() { return *step_; }
  const OuterStep* outer() const { return step_->outer(); }
  /// The workers of a data-parallel training; nullptr: there is one.
  Workers* workers() const { return workers_.get(); }
  /// Whether workers have states that differ: some slots, weights, running statistics, or sums of
  /// gradients within an accumulated update.
  bool has_own_state() const;
  /// See training_checksum(); equal for any number of workers.
  std::string checksum() const;
  /// The evaluation, compiled at the first call. Shared, since one with scores replaces one
  /// without.
  std::shared_ptr<Evaluation> evaluation(bool with_scores = false);

 private:
  friend class FitSession;

  Tensor weight_value(const std::string& name) const {
    return step_->executor().read_state(step_->find_state(name).value());
  }
  Session(Source source, const Loss& loss, const Optimizer& optimizer,
          const TrainingOptions& options, std::shared_ptr<const FileTraining> training);

  void charge_file();
  void open_batch();
  void build_first();
  NamedTensors with_weights_of_rows(const NamedTensors& feeds) const;
  // Batches of a fixed size: see session/filled_batches.h.
  bool has_rows(const std::string& feed) const;
  std::optional<std::int64_t> rows_to_split(const NamedTensors& feeds) const;
  NamedTensors batch_of(const NamedTensors& feeds, std::int64_t begin, std::int64_t rows) const;
  EvaluationResult evaluate_parts(const NamedTensors& feeds, std::int64_t rows);
  std::vector<Tensor> predict_parts(const NamedTensors& feeds, std::int64_t rows,
                                    std::span<const std::string> output_names);
  void expect_whole_batch(const NamedTensors& feeds) const;
  void find_inputs(const ir::Model& given);
  void find_constants();
  void find_outputs(const ir::Model& given);
  bool needs_targets(const RunnableOutput& output) const;
  bool is_own_input(const ir::Value* value) const;
  StepGraph write_step(const std::optional<TrainedSet>& set, bool of_worker = true) const;
  void share_rows(std::int64_t rows);
  bool updates_alone() const { return workers_ != nullptr && options_.workers.sync_every > 1; }
  /// Throws OptionError if the file describes its training.
  void expect_own_step(const std::string& what) const;
  std::unique_ptr<StepRunner> build(const std::optional<TrainedSet>& set, bool keeps_state = false);
  void change_trained(TrainedSet set);
  template <class T>
  void change(T& option, T value);
  bool may_be_scores(const Loss& asked, const LossInfo& loss) const;
  void take_columns_as_scores(const LabelForms& forms);
  bool check_target(const std::string& port, const Tensor& tensor) const;
  void check_rows(std::span<const runtime::Port> ports, std::span<const Tensor* const> fed);
  std::optional<std::int64_t> rows_of_scores(const LossInfo& loss,
                                             std::span<const runtime::Port> ports,
                                             const std::vector<Dims>& dims);
  StepResult step_on(const NamedTensors& feeds);
  EvaluationResult evaluate_on(const NamedTensors& feeds);
  LossSums sums_on(const NamedTensors& feeds);
  EvaluationResult result_of(const LossSums& sums, std::int64_t rows);
  std::vector<Tensor> predict_batch(const NamedTensors& feeds,
                                    std::span<const std::string> output_names);
  bool needs_fitting(const NamedTensors& feeds) const;
  NamedTensors fit_feeds(const NamedTensors& feeds);
  std::optional<std::int64_t> find_class_axis(const LossInfo& loss, const Dims& labels,
                                              const FirstRows& rows) const;

  Source source_;               ///< the working copy has numbers for texts
  BatchForm batch_;             ///< the model before texts are numbered
  bool fills_batches_ = false;  ///< sample weights may be absent: they fill batches up
  std::shared_ptr<const FileTraining> training_;
  std::shared_ptr<const TextCodes> texts_;  ///< nullptr: the model reads none
  Loss loss_;
  Optimizer optimizer_;
  TrainingOptions options_;
  runtime::ExecutorOptions executor_options_;
  std::shared_ptr<const void> file_charge_;  ///< the file's bytes in the memory budget
  std::unique_ptr<Workers> workers_;
  std::optional<TrainedSet> built_with_;  ///< set of weights that the step was built with
  /// Checksum of the step, for several workers; empty: unknown.
  mutable std::string checksum_;
  bool logs_gradient_norm_ = false;
  bool is_fitting_ = false;
  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> outputs_;
  std::vector<RunnableOutput> runnable_;    ///< computable forms of outputs_
  std::vector<std::string> constants_;      ///< inputs without rows
  std::vector<std::string> unused_inputs_;  ///< inputs that the loss does not need
  runtime::SizeWatch sizes_;
  struct ScoreRows {
    std::string scores = {};
    std::vector<Dims> dims = {};  // shapes of the inputs
    std::optional<std::int64_t> rows = {};
  };
  ScoreRows score_rows_;  // result for the last feeds
  std::unique_ptr<StepRunner> step_;
  std::shared_ptr<Evaluation> evaluation_;
  /// Predictions for the last requested sets of outputs (see runnable_), the last one first.
  std::list<std::pair<std::vector<std::size_t>, Prediction>> predictions_;
};

/// The interface of a session for an epoch loop. During its lifetime, plans are kept.
class FitSession {
 public:
  explicit FitSession(Session& session) : session_(session) {
    session.expect_training();
    session_.is_fitting_ = true;
  }
  ~FitSession() { session_.is_fitting_ = false; }
  FitSession(const FitSession&) = delete;
  FitSession& operator=(const FitSession&) = delete;

  StepRunner& step() const { return session_.runner(); }
  std::shared_ptr<Evaluation> evaluation(bool with_scores) const {
    return session_.evaluation(with_scores);
  }
  DataSchema schema() const { return session_.schema(); }
  const Session& session() const { return session_; }
  Workers* workers() const { return session_.workers(); }
  /// Checkpoint of the session alone: see session/session_checkpoint.h.
  Checkpoint checkpoint(bool of_worker = false) const;
  void restore(const Checkpoint& checkpoint) const;

 private:
  Session& session_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_H_

#ifndef ONNXGRAD_TRAIN_SESSION_H_
#define ONNXGRAD_TRAIN_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "onnx/model_io.h"
#include "onnxgrad/training_session.h"
#include "runtime/executor.h"
#include "train/label_form.h"
#include "train/optimizers/lbfgs_loop.h"
#include "train/outputs.h"
#include "train/training_graph.h"

namespace onnxgrad::train {

/// A file and its working copy; both immutable and shared.
struct Source {
  onnx_io::FileModel file;
  std::shared_ptr<const ir::Model> working;
};

/// The value of a rank-0 floating output.
double read_scalar(const std::byte* data, DataType dtype);

/// What the engine options mean for an executor. Throws: DeviceError (unknown device, listing those
/// there are).
runtime::ExecutorOptions executor_options(const EngineOptions& options);

/// Tensors by the order of `ports`. `ignored` names may be fed too, without effect. `cells` are
/// ports that the caller binds itself: their entry is nullptr. Throws: DataError (missing, unknown
/// or doubly fed name, other dtype).
std::vector<const Tensor*> order_feeds(const NamedTensors& feeds,
                                       std::span<const runtime::Port> ports,
                                       std::span<const std::string> ignored,
                                       std::span<const std::string> cells);

/// The implementation of TrainingSession. Weights and slots live in the step's executor; evaluation
/// and prediction read the weights there, without a copy. Not thread-safe.
class Session {
 public:
  Session(Source source, const Loss& loss, const Optimizer& optimizer,
          const TrainingOptions& options);

  StepResult step(const NamedTensors& feeds);
  EvaluationResult evaluate(const NamedTensors& feeds);
  std::vector<Tensor> predict(const NamedTensors& feeds, std::span<const std::string> output_names);

  const std::vector<ValueInfo>& inputs() const { return inputs_; }
  const std::vector<ValueInfo>& outputs() const { return outputs_; }
  const StepGraph& graph() const { return graph_; }
  const Source& source() const { return source_; }
  /// The weights in the state.
  std::vector<WeightInfo> state_weights() const { return graph_.state_weights(); }
  /// See TrainingSession::weights_line; its first line.
  std::string weights_line() const;
  const LossInfo& loss() const { return graph_.loss; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// For the loss on `output`; empty: the first. Throws: DataError (see train/targets.h).
  Tensor encode_target(const Tensor& labels, const std::string& output = "") const;

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double learning_rate);
  std::int64_t steps() const { return steps_; }
  /// The number of steps done: also the position of the random streams.
  void set_steps(std::int64_t steps);

  /// Of Dropout and other random operators.
  std::uint64_t seed() const { return options_.engine.seed; }
  void set_seed(std::uint64_t seed);

  /// See TrainingSession. Plans and executions of before are gone afterwards.
  void freeze(std::span<const std::string> patterns);
  void unfreeze(std::span<const std::string> patterns);
  /// True while labels may still settle a class axis: see label_form.h.
  bool is_open() const;
  /// Settles what the labels decide, and compiles the step anew if that was guessed otherwise; the
  /// state stays. Before a fit; inside one nothing is done.
  /// Throws: DataError (labels that fit no axis of the scores, or several).
  void settle_by_labels(const FirstRows& rows);
  /// What is settled by now; and the same from elsewhere, for what is open here.
  LabelForms label_forms() const;
  void set_label_forms(const LabelForms& forms);
  /// The loss as it is asked for, with what labels have settled; another one keeps the state.
  const Loss& asked_loss() const { return loss_; }
  void ask_loss(Loss loss);
  /// See TrainingSession.
  void use_sample_weights(const std::string& name);

  /// From now on as with TrainingOptions::skip_non_finite.
  void guard_updates();
  /// Whether steps also give the norm of all gradients (StepGraph::has_gradient_norm).
  void log_gradient_norm(bool wanted);

  NamedTensors state() const;
  /// The same without copies: views that are valid as long as the session is not compiled anew.
  NamedTensors state_view() const;
  void load_state(const NamedTensors& state);
  void reset();
  /// The trained weights alone, under their names in the working copy; copies.
  NamedTensors weights() const;
  std::string plan_summary() const;
  MemoryReport memory() const;

  // For the epoch loop.

  /// While one lives, plans stay: what would compile the step anew throws Error.
  class FitScope {
   public:
    explicit FitScope(Session& session) : session_(session) { session_.is_fitting_ = true; }
    ~FitScope() { session_.is_fitting_ = false; }
    FitScope(const FitScope&) = delete;
    FitScope& operator=(const FitScope&) = delete;

   private:
    Session& session_;
  };

  /// The step's executor: inputs as in StepGraph, output 0 is the loss (output 1 its denominator
  /// where graph().has_denominator).
  runtime::Executor& step_executor() { return *step_; }
  /// Place of the learning rate among the executor's inputs; behind all of them with L-BFGS.
  std::size_t learning_rate_port() const { return rate_port_; }
  /// Where the learning rate is read at each step.
  const std::byte* learning_rate_cell() const;
  /// A plan of the step for these shapes, with the learning rate bound.
  runtime::Execution& prepare_step(const std::vector<Dims>& dims);
  /// One step on what is bound, and the loss before it.
  double run_step(runtime::Execution& execution) {
    if (lbfgs_ != nullptr) return lbfgs_->step(execution, learning_rate_);
    execution.run();
    return read_scalar(execution.output(0), loss_dtype_);
  }
  DataType loss_dtype() const { return loss_dtype_; }  ///< and that of its denominator
  bool takes_whole_batch() const { return lbfgs_ != nullptr; }
  /// Steps from one update to the next.
  std::int64_t steps_per_update() const { return options_.update.accumulate; }
  /// After the state was set from outside: what is kept outside the executor begins anew.
  void forget_host_state() {
    if (lbfgs_ != nullptr) lbfgs_->solver().clear();
  }
  /// A step of one kernel per node, with a state of its own: for finding where a fault begins.
  runtime::Executor make_unfused() const;
  /// What an evaluation is fed with, in order: model inputs, target, sample weight.
  std::span<const runtime::Port> evaluation_ports();
  /// A plan of the evaluation for these shapes of evaluation_ports(), with the weights bound.
  runtime::Execution& prepare_evaluation(const std::vector<Dims>& dims);
  /// Views of the state, in the executor's order, valid as long as the session.
  const std::vector<Tensor>& state_views() const { return state_views_; }
  /// Copies of the state that somebody keeps, for memory().
  void add_snapshot_bytes(std::int64_t bytes) { snapshot_bytes_ += bytes; }
  bool reduces_by_mean() const { return loss_.reduction == Reduction::kMean; }
  /// Beside the loss, for the history: StepGraph::num_log_outputs.
  bool has_log_outputs() const { return has_log_outputs_; }
  bool counts_correct_rows() const { return evaluation_graph_.has_correct_rows; }
  /// From now on the last output of an evaluation are the scores.
  void give_scores_in_evaluation();
  /// Names of model inputs that the loss does not need.
  const std::vector<std::string>& unused_inputs() const { return unused_inputs_; }

 private:
  void build(const std::optional<TrainedSet>& set);
  void adopt_step();
  TrainedSet present_set() const;
  void change_trained(TrainedSet set);
  void add_slots_of(const std::string& weight, TrainedSet& set) const;
  std::unordered_map<std::string, Tensor> states_by_name() const;
  runtime::Executor& evaluation();
  void check_class_columns(const std::vector<Dims>& dims) const;
  bool check_target(const std::string& port, const Tensor& tensor) const;
  runtime::Execution& prepare(runtime::Executor& executor, const std::vector<Dims>& dims) const;
  void check_places(std::span<const runtime::Port> ports, const std::vector<Dims>& dims) const;
  StepResult step_on(const NamedTensors& feeds);
  EvaluationResult evaluate_on(const NamedTensors& feeds);
  NamedTensors fit_feeds(const NamedTensors& feeds);
  bool needs_fitting(const NamedTensors& feeds) const;
  void take_columns_as_scores();
  std::optional<std::int64_t> find_class_axis(const LossInfo& loss, const Dims& labels,
                                              const FirstRows& rows) const;
  const std::byte* weight_data(const std::string& name) const;

  Source source_;
  Loss loss_;
  Optimizer optimizer_;
  TrainingOptions options_;
  runtime::ExecutorOptions executor_options_;
  StepGraph graph_;
  std::unique_ptr<runtime::Executor> step_;
  std::unique_ptr<LbfgsLoop> lbfgs_;  // or nullptr
  bool is_fitting_ = false;
  bool logs_gradient_norm_ = false;
  bool has_log_outputs_ = false;
  std::unordered_set<std::string> with_own_count_;  // see TrainedSet
  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> outputs_;
  std::vector<std::string> unused_inputs_;
  std::vector<RunnableOutput> runnable_;
  std::size_t rate_port_ = 0;
  std::int64_t steps_ = 0;
  double learning_rate_ = 0;
  DataType loss_dtype_ = DataType::kFloat32;
  float rate_float_ = 0;  // one of the two is bound, by the graph's type
  double rate_double_ = 0;
  std::vector<Tensor> state_views_;
  std::int64_t snapshot_bytes_ = 0;
  runtime::Execution* last_step_ = nullptr;
  EvaluationGraph evaluation_graph_;
  bool gives_scores_ = false;
  std::optional<runtime::Executor> evaluation_;
  std::optional<runtime::Executor> prediction_;
  std::vector<std::size_t> prediction_outputs_;  // per output of prediction_: which of runnable_
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_H_

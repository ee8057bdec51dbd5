#ifndef ONNXGRAD_TRAIN_SESSION_STEP_RUNNER_H_
#define ONNXGRAD_TRAIN_SESSION_STEP_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/weights.h"
#include "train/graphs/training_graph.h"
#include "train/optimizers/lbfgs.h"
#include "train/session/outer_step.h"
#include "train/session/runner.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

/// Runs a step: holds its weights and optimizer state, the learning rate that it reads, and the
/// number of steps done. Results are those of the last run of a plan, by the names of StepPorts.
class StepRunner : public Runner {
 public:
  /// `lbfgs`: a step is its loop around loss and gradient; nullptr: one run of the graph.
  /// `options` have the same `workers`, or nullptr for one worker.
  /// `outer`: of workers that update their own weights.
  StepRunner(StepGraph graph, const Lbfgs* lbfgs, const runtime::ExecutorOptions& options,
             Workers* workers = nullptr, const std::optional<OuterStep::Options>& outer = {});

  /// The workers; nullptr: there is one.
  Workers* workers() const { return workers_; }
  /// Sets the rows of this worker in the next steps, of a batch of `batch_rows`. Without rows of
  /// its own it computes with another worker's row, which does not count.
  void set_rows(const RowSlice& slice, std::int64_t batch_rows);
  /// Sets the number that the next steps add up over the workers (see signal()).
  void set_signal(double signal) { worker_signal_ = signal; }
  /// The sum of the workers' signals in the last run of a plan.
  double signal(const runtime::Execution& plan) const { return scalar(plan, *graph_.ports.signal); }

  const StepGraph& graph() const { return graph_; }
  /// Rows of every batch, because the model takes no other number; 0: any number. A smaller batch
  /// is filled up with rows of weight 0.
  std::int64_t fixed_rows() const { return fixed_rows_; }
  void set_fixed_rows(std::int64_t rows) { fixed_rows_ = rows; }
  /// The number of the data port with the sample weights; nullopt: there is none.
  std::optional<std::size_t> weights_port() const;
  bool takes_whole_batch() const { return lbfgs_.has_value(); }

  double learning_rate() const { return rate_double_; }
  void set_learning_rate(double rate) {
    rate_float_ = static_cast<float>(rate);
    rate_double_ = rate;
  }
  std::int64_t steps() const { return steps_; }
  /// The number of steps done: also the position of the random streams.
  void set_steps(std::int64_t steps) {
    steps_ = steps;
    executor().cells().step = static_cast<std::uint64_t>(steps);
  }
  /// Seed of random operators.
  std::uint64_t seed() const { return options_.seed; }
  void set_seed(std::uint64_t seed) { executor().cells().seed = options_.seed = seed; }

  /// The plan for batches of these shapes (order of data_ports()), compiled at first use.
  /// Throws: DataError, ShapeError, and what Executor::prepare throws.
  runtime::Execution& prepare(const std::vector<Dims>& dims);
  /// Runs one step on the bound data; returns the loss before it. If it throws, the state is as
  /// before.
  double run(runtime::Execution& plan) {
    const double loss = lbfgs_ ? run_lbfgs(plan, {}, nullptr) : run_graph(plan);
    if (outer_) outer_->count_step();
    set_steps(steps_ + 1);
    return loss;
  }
  /// The results of one step, copied.
  struct Results {
    double loss = 0;
    Tensor row_losses = {};  ///< undefined if the step has none
    std::vector<Tensor> outputs = {};
  };
  Results run_with_results(runtime::Execution& plan);
  /// Whether steps are nothing but runs of the graph, which can be a series.
  bool runs_series() const { return !lbfgs_ && !outer_ && workers_ == nullptr; }
  /// Runs a series of steps and returns the loss of each; see Execution::run_series.
  std::size_t run_series(runtime::Execution& plan, runtime::StepSeries series,
                         std::span<double> losses);
  /// See Execution::run_until_non_finite.
  std::optional<runtime::NonFinite> run_until_non_finite(runtime::Execution& plan);
  /// A copy of the step and its state with one kernel per node, to find where a fault begins.
  std::unique_ptr<StepRunner> unfused() const;
  /// The last prepared plan, one line per kernel; empty before the first.
  std::string plan_summary() const;

  /// The divisor of the loss, if that is not the number of rows.
  std::optional<double> denominator(const runtime::Execution& plan) const {
    if (!graph_.ports.denominator) return std::nullopt;
    return scalar(plan, *graph_.ports.denominator);
  }
  /// Value of the i-th of StepGraph::target_losses.
  double target_loss(const runtime::Execution& plan, std::size_t i) const {
    return scalar(plan, graph_.ports.target_losses[i]);
  }
  std::optional<double> gradient_norm(const runtime::Execution& plan) const;
  /// Whether a step computes target losses or the gradient norm.
  bool has_log_results() const {
    return !graph_.ports.target_losses.empty() || graph_.ports.gradient_norm;
  }

  /// All states in order, as from Executor::read_state, and the optimizer's data on the host.
  NamedTensors read_state() const;
  /// The number of the state with this name, if there is one.
  std::optional<std::size_t> find_state(const std::string& name) const;
  /// Throws: CheckpointError (unknown or missing name, different dtype or shape). All or nothing.
  void load_state(const NamedTensors& state);
  /// Copies the values of states that `other` has too, in the same shape.
  void take_state(const StepRunner& other);
  /// Restores the initial values.
  void reset_state();
  /// True if the state is finite on all workers, which all call it.
  bool is_state_finite() const {
    const bool is_finite = executor().is_state_finite();
    return workers_ == nullptr ? is_finite : !workers_->any(!is_finite);
  }
  /// The outer step; nullptr: none.
  OuterStep* outer() { return outer_ ? &*outer_ : nullptr; }
  const OuterStep* outer() const { return outer_ ? &*outer_ : nullptr; }
  /// Combines weights that workers have updated alone.
  void finish_outer_step() {
    if (outer_) outer_->finish();
  }
  /// Sets the running statistics of all workers, which have the same weights, to their means.
  void average_statistics();
  /// Averages statistics, and sets sums of gradients within an accumulated update to those of the
  /// first worker: its state is then what one worker would have.
  void unify_state();
  /// Keeps this worker's part of a state that unify_state() made and all workers have loaded.
  void keep_own_part();
  std::int64_t state_bytes() const;
  /// Copies of all states in order, without the optimizer's data on the host; save_to()
  /// allocates nothing.
  std::vector<Tensor> make_copies() const;
  void save_to(std::vector<Tensor>& copies) const;
  /// The values that reset_state() restores, as they are in the model; none if there are others
  /// besides the states of the step.
  std::vector<Tensor> initial_values() const;
  /// Whether the states have the bits of initial_values(); memory is read only if something may
  /// have changed them before the first step.
  bool has_initial_values() const;
  /// Restores all states from `copies`, and resets the optimizer's data on the host.
  void restore_from(const std::vector<Tensor>& copies);
  /// Names of the trained weights that have the same bits in `copies`.
  std::vector<std::string> unchanged_weights(const std::vector<Tensor>& copies) const;
  /// Bytes of copies held elsewhere.
  std::int64_t snapshot_bytes() const { return snapshot_bytes_; }
  void add_snapshot_bytes(std::int64_t bytes) { snapshot_bytes_ += bytes; }

 private:
  double run_graph(runtime::Execution& plan) const {
    plan.run();
    return scalar(plan, graph_.ports.loss);
  }
  /// Runs the L-BFGS loop; copies of the outputs `wanted` go to `results`. The step can be undone
  /// until then.
  double run_lbfgs(runtime::Execution& plan, std::span<const std::size_t> wanted,
                   std::vector<Tensor>* results);
  std::vector<const std::byte*> controls() const;
  template <class IsWanted, class Change>
  void exchange_states(IsWanted&& is_wanted, Change&& change);
  std::size_t num_states() const { return executor().state().size(); }
  void check_class_columns(const std::vector<Dims>& dims) const;

  StepGraph graph_;
  runtime::ExecutorOptions options_;
  std::optional<std::uint64_t> reset_changes_;  ///< Executor::state_changes() with initial values
  std::optional<LbfgsSolver> lbfgs_;
  std::vector<double> lbfgs_weights_;
  /// One tensor for each weight in lbfgs_weights_, to be copied to the state.
  std::vector<Tensor> lbfgs_tensors_;
  std::vector<Tensor> lbfgs_before_;  ///< all states before the step
  float rate_float_ = 0;              ///< one of the two is bound, by the graph's type
  double rate_double_ = 0;
  Workers* workers_ = nullptr;
  std::optional<OuterStep> outer_;
  double worker_weight_ = 1;
  double worker_signal_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t fixed_rows_ = 0;
  std::int64_t snapshot_bytes_ = 0;
  runtime::Execution* last_plan_ = nullptr;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_STEP_RUNNER_H_

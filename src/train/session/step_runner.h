#ifndef ONNXGRAD_TRAIN_SESSION_STEP_RUNNER_H_
#define ONNXGRAD_TRAIN_SESSION_STEP_RUNNER_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/device_tensor.h"
#include "onnxgrad/losses.h"
#include "train/graphs/training_graph.h"
#include "train/session/lbfgs_step.h"
#include "train/session/state_store.h"
#include "train/session/step_results.h"
#include "train/tools/engine.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

/// An executor with data as its first inputs. In training, inputs are bound and results are read
/// only here; only StateStore accesses state memory.
class Runner {
 public:
  /// See runtime::Executor.
  Runner(std::shared_ptr<const ir::Model> model, const Backend& backend);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Inputs fed with rows; after these are inputs that a derived class binds.
  std::span<const runtime::Port> data_ports() const {
    return std::span(executor_.inputs()).first(num_data_ports_);
  }
  /// Makes each run of `plan` read data port `port` from `data`, until it is bound again.
  static void bind(runtime::Execution& plan, std::size_t port, const std::byte* data) {
    plan.bind(port, data);
  }
  runtime::Executor& executor() { return executor_; }
  const runtime::Executor& executor() const { return executor_; }

 protected:
  ~Runner() = default;
  /// The first input that is not data.
  void end_data_at(std::size_t port) { num_data_ports_ = port; }
  /// Prepares a plan for these shapes of all inputs. Throws: ShapeError, with an explanation if
  /// labels have other positions than the scores.
  runtime::Execution& prepare_plan(const std::vector<Dims>& dims, const LossInfo& loss);
  /// Read a result of the last run: a floating-point number, or a copy of a tensor.
  static double scalar(const runtime::Execution& plan, std::size_t output) {
    return plan.read_scalar(output);
  }
  static Tensor tensor(const runtime::Execution& plan, std::size_t output) {
    return plan.output_tensor(output);
  }

 private:
  runtime::Executor executor_;
  std::size_t num_data_ports_;
};

/// Prepares the plan of a runner for these tensors (order of data_ports()), and binds them, or
/// those of `on_device` with the names of the ports: see PlacedFeeds.
template <class AnyRunner>
runtime::Execution& bind_all(AnyRunner& runner, const std::vector<const Tensor*>& tensors,
                             std::span<const NamedDeviceTensor> on_device = {}) {
  std::vector<Dims> dims;
  dims.reserve(tensors.size());
  for (const Tensor* tensor : tensors) dims.push_back(tensor->dims());
  runtime::Execution& plan = runner.prepare(dims);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = runner.data_ports()[i].name;
    const auto found = std::ranges::find(on_device, name, &NamedDeviceTensor::name);
    if (found == on_device.end()) {
      runner.bind(plan, i, tensors[i]->raw());
    } else {
      runner.executor().bind(plan, i, found->tensor);
    }
  }
  return plan;
}

/// Runs a step: holds its state, the learning rate that it reads, and the number of steps done.
/// Results are those of the last run of a plan, by the names of StepPorts.
class StepRunner : public Runner {
 public:
  /// `lbfgs`: a step is its loop around loss and gradient; nullptr: one run of the graph.
  /// `workers` outlives this. `outer`: of workers that update their own weights.
  StepRunner(StepGraph graph, const Lbfgs* lbfgs, const Backend& backend, Workers& workers,
             const std::optional<OuterStep::Options>& outer = {});

  const Workers& workers() const { return workers_; }
  /// The rows of this worker in the next steps, of a batch of so many of several workers. Without
  /// any it computes with another's row, which does not count.
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
  /// Whether evaluations read the averages of weights that have one.
  bool reads_averages() const { return reads_averages_; }
  void read_averages(bool on) { reads_averages_ = on; }
  /// The state that evaluations read for a weight.
  std::optional<std::size_t> evaluated_state(const std::string& weight) const;
  /// The number of the data port with the sample weights; nullopt: there is none.
  std::optional<std::size_t> weights_port() const;
  bool takes_whole_batch() const { return lbfgs_ != nullptr; }

  /// Any thread may ask for the rate and the number of steps.
  double learning_rate() const {
    return std::atomic_ref(rate_double_).load(std::memory_order_relaxed);
  }
  void set_learning_rate(double rate) {
    rate_float_ = static_cast<float>(rate);
    std::atomic_ref(rate_double_).store(rate, std::memory_order_relaxed);
  }
  std::int64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  /// The number of steps done: also the position of the random streams.
  void set_steps(std::int64_t steps) {
    steps_.store(steps, std::memory_order_relaxed);
    executor().cells().step = static_cast<std::uint64_t>(steps);
  }
  /// Seed of random operators.
  std::uint64_t seed() const { return backend_.options.seed; }
  void set_seed(std::uint64_t seed) { executor().cells().seed = backend_.options.seed = seed; }

  /// The plan for batches of these shapes (order of data_ports()), compiled at first use.
  /// Throws: DataError, ShapeError, and what Executor::prepare throws.
  runtime::Execution& prepare(const std::vector<Dims>& dims);
  /// Runs one step on the bound data; returns the loss before it. If it throws, the state is as
  /// before.
  double run(runtime::Execution& plan) {
    const double loss = lbfgs_ ? lbfgs_->run(plan, rate_double_, {}, nullptr) : run_graph(plan);
    state_.count_step();
    set_steps(steps() + 1);
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
  bool runs_series() const { return !lbfgs_ && !workers_.has_others(); }
  /// Such steps, with a row of results() for each, and a learning rate for each if there are any
  /// `rates`; see Execution::run_series. The learning rate is that of the last step then.
  std::size_t run_series(runtime::Execution& plan, runtime::StepSeries series,
                         std::span<const double> rates, std::span<double> results);
  /// See Execution::run_until_non_finite.
  std::optional<runtime::NonFinite> run_until_non_finite(runtime::Execution& plan);
  /// A copy of the step and its state with one kernel per node, to find where a fault begins.
  std::unique_ptr<StepRunner> unfused() const;
  /// The last prepared plan, one line per kernel; empty before the first.
  std::string plan_summary() const;

  const StepResults& results() const { return results_; }
  /// Writes the results of the last run of a plan, with this loss.
  void read_results(const runtime::Execution& plan, double loss, std::span<double> row) const {
    row[0] = loss;
    const std::span<const std::size_t> outputs = results_.outputs();
    for (std::size_t i = 1; i < outputs.size(); ++i) row[i] = scalar(plan, outputs[i]);
  }
  /// The divisor of the loss, if that is not the number of rows.
  std::optional<double> denominator(const runtime::Execution& plan) const {
    if (!graph_.ports.denominator) return std::nullopt;
    return scalar(plan, *graph_.ports.denominator);
  }
  std::optional<double> gradient_norm(const runtime::Execution& plan) const;

  StateStore& state() { return state_; }
  const StateStore& state() const { return state_; }
  /// Bytes of copies of the state, here and elsewhere.
  std::int64_t snapshot_bytes() const {
    return state_.snapshot_bytes() + (lbfgs_ ? lbfgs_->snapshot_bytes() : 0);
  }

 private:
  double run_graph(runtime::Execution& plan) const {
    plan.run();
    return scalar(plan, graph_.ports.loss);
  }
  std::vector<const std::byte*> controls() const;
  void check_class_columns(const std::vector<Dims>& dims) const;

  StepGraph graph_;
  StepResults results_;
  Backend backend_;
  Workers& workers_;
  std::unique_ptr<LbfgsStep> lbfgs_;  ///< nullptr: a step is one run of the graph
  StateStore state_;
  float rate_float_ = 0;            ///< one of the two is bound, by the graph's type
  mutable double rate_double_ = 0;  ///< for atomic_ref
  double worker_weight_ = 1;
  double worker_signal_ = 0;
  std::atomic<std::int64_t> steps_ = 0;
  std::int64_t fixed_rows_ = 0;
  bool reads_averages_ = false;
  runtime::Execution* last_plan_ = nullptr;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_STEP_RUNNER_H_

#ifndef ONNXGRAD_TRAIN_SESSION_FORWARD_RUNNER_H_
#define ONNXGRAD_TRAIN_SESSION_FORWARD_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/graphs/outputs.h"
#include "train/session/placed_feeds.h"
#include "train/session/step_runner.h"

namespace onnxgrad::train {

/// sum / count; 0 if nothing counts, as in the step's loss.
inline double mean_of(double sum, double count) { return count == 0 ? 0 : sum / count; }

/// Runs a graph forward on the weights in the state of a step, which it reads in place: the
/// inputs after the data are states, by name.
class ForwardRunner : public Runner {
 public:
  /// `step` outlives this.
  ForwardRunner(std::shared_ptr<const ir::Model> model, const StepRunner& step,
                const Backend& backend);

  /// The plan for batches of these shapes (order of data_ports()), compiled at first use, with the
  /// weights bound. Throws: ShapeError, and what Executor::prepare throws.
  runtime::Execution& prepare(const std::vector<Dims>& dims);
  std::int64_t memory_bytes() const;
  /// See StepRunner.
  std::int64_t fixed_rows() const { return step_.fixed_rows(); }

 private:
  const StepRunner& step_;
  std::vector<std::size_t> weights_;  ///< states that the inputs after the data read
};

/// Sums over batches.
struct LossSums {
  double numerator = 0;
  double denominator = 0;
  double correct = 0;  ///< numbers of right rows and of all rows that count
  double counted = 0;

  LossSums& operator+=(const LossSums& other);
};

/// Computes the loss on rows that are not trained on.
class Evaluation : public ForwardRunner {
 public:
  Evaluation(EvaluationGraph graph, const StepRunner& step, const Backend& backend)
      : ForwardRunner(std::move(graph.model), step, backend), ports_(graph.ports) {}

  bool counts_correct_rows() const { return ports_.correct.has_value(); }
  bool has_scores() const { return ports_.scores.has_value(); }
  LossSums run(runtime::Execution& plan) const;
  /// Scores of the last run.
  Tensor scores(const runtime::Execution& plan) const { return tensor(plan, *ports_.scores); }

 private:
  EvaluationPorts ports_;
};

/// Computes some outputs of a model.
class Prediction : public ForwardRunner {
 public:
  /// `outputs`: each has a value.
  Prediction(const ir::Model& working, std::vector<RunnableOutput> outputs, const StepRunner& step,
             const Backend& backend);

  /// Runs the graph and returns copies of the outputs, in order. Throws: DataError (unknown names,
  /// other dtypes).
  std::vector<Tensor> run(const NamedTensors& feeds, std::span<const std::string> ignored);
  /// The outputs in the memory of the device, perhaps not computed yet.
  std::vector<DeviceTensor> run_on_device(const PlacedFeeds& feeds,
                                          std::span<const std::string> ignored);

 private:
  runtime::Execution& run_plan(const NamedTensors& feeds,
                               std::span<const NamedDeviceTensor> on_device,
                               std::span<const std::string> ignored);

  std::vector<RunnableOutput> outputs_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_FORWARD_RUNNER_H_

#ifndef ONNXGRAD_TRAIN_SESSION_RUNNER_H_
#define ONNXGRAD_TRAIN_SESSION_RUNNER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/losses.h"
#include "runtime/executor.h"

namespace onnxgrad::train {

/// An executor with data as its first inputs. In training, inputs are bound and results are read
/// only here; only StateStore accesses state memory.
class Runner {
 public:
  /// See runtime::Executor: a model that nothing else holds is taken over.
  Runner(std::shared_ptr<const ir::Model> model, const runtime::ExecutorOptions& options);
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

/// Prepares the plan of a runner for these tensors (order of data_ports()), and binds them.
template <class AnyRunner>
runtime::Execution& bind_all(AnyRunner& runner, const std::vector<const Tensor*>& tensors) {
  std::vector<Dims> dims;
  dims.reserve(tensors.size());
  for (const Tensor* tensor : tensors) dims.push_back(tensor->dims());
  runtime::Execution& plan = runner.prepare(dims);
  for (std::size_t i = 0; i < tensors.size(); ++i) runner.bind(plan, i, tensors[i]->raw());
  return plan;
}

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_RUNNER_H_

#include "train/session/lbfgs_step.h"

#include <algorithm>
#include <cstring>

namespace onnxgrad::train {
namespace {

void read_numbers(const Tensor& tensor, std::span<double> to) {
  if (tensor.dtype() == DataType::kFloat64) {
    std::ranges::copy(tensor.data<double>(), to.begin());
  } else if (tensor.dtype() == DataType::kFloat32) {
    std::ranges::copy(tensor.data<float>(), to.begin());
  } else {
    std::ranges::copy(tensor.to_doubles(), to.begin());
  }
}

void write_numbers(std::span<const double> from, Tensor& tensor) {
  if (tensor.dtype() == DataType::kFloat64) {
    std::ranges::copy(from, tensor.mutable_data<double>().begin());
  } else if (tensor.dtype() == DataType::kFloat32) {
    std::ranges::transform(from, tensor.mutable_data<float>().begin(),
                           [](double x) { return static_cast<float>(x); });
  } else {
    const Tensor converted = Tensor::from(from, tensor.dims()).cast(tensor.dtype());
    std::memcpy(tensor.mutable_raw(), converted.raw(),
                static_cast<std::size_t>(tensor.size_bytes()));
  }
}

std::int64_t elements_of(std::span<const Tensor> tensors) {
  std::int64_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.num_elements();
  return total;
}

// Room for the first states of `executor`.
std::vector<Tensor> room_for(const runtime::Executor& executor, std::size_t count) {
  std::vector<Tensor> room;
  for (const runtime::Port& state : std::span(executor.state()).first(count)) {
    room.push_back(Tensor::empty(state.type.dtype, state.type.fixed_dims()));
  }
  return room;
}

}  // namespace

LbfgsStep::LbfgsStep(const Lbfgs& spec, runtime::Executor& executor, const StepGraph& graph)
    : executor_(executor),
      graph_(graph),
      tensors_(room_for(executor, graph.weights.size())),
      weights_(static_cast<std::size_t>(elements_of(tensors_))),
      solver_(spec, elements_of(tensors_)) {}

std::int64_t LbfgsStep::snapshot_bytes() const {
  std::int64_t bytes = 0;
  for (const Tensor& copy : before_) bytes += copy.size_bytes();
  return bytes;
}

double LbfgsStep::run(runtime::Execution& plan, double learning_rate,
                      std::span<const std::size_t> wanted, std::vector<Tensor>* results) {
  if (before_.empty()) before_ = room_for(executor_, executor_.state().size());
  executor_.copy_state(before_);
  struct Undo {
    explicit Undo(LbfgsStep& step) : runner(&step) {}
    ~Undo() {
      if (runner == nullptr) return;
      runner->solver_.undo_step();
      for (std::size_t i = 0; i < runner->before_.size(); ++i) {
        runner->executor_.set_state(i, runner->before_[i]);
      }
    }
    Undo(const Undo&) = delete;
    Undo& operator=(const Undo&) = delete;
    LbfgsStep* runner;
  };
  Undo undo(*this);
  // The weights, or their gradients, as one row of numbers.
  const auto each_weight = [this](const auto& visit) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto count = static_cast<std::size_t>(tensors_[i].num_elements());
      visit(i, begin, count);
      begin += count;
    }
  };
  const auto set_weights = [&](std::span<const double> x) {
    each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
      write_numbers(x.subspan(begin, count), tensors_[i]);
      executor_.set_state(i, tensors_[i]);
    });
  };
  const auto loss = [&](std::span<const double> x, std::span<double> gradient) {
    set_weights(x);
    plan.run();
    const double value = plan.read_scalar(graph_.ports.loss);
    each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
      read_numbers(plan.output_tensor(graph_.ports.gradients[i]), gradient.subspan(begin, count));
    });
    return value;
  };
  each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
    read_numbers(executor_.read_state(i), std::span(weights_).subspan(begin, count));
  });
  const double first_loss = solver_.step(loss, learning_rate, weights_);
  set_weights(weights_);
  for (const std::size_t output : wanted) results->push_back(plan.output_tensor(output));
  undo.runner = nullptr;
  solver_.keep_step();
  return first_loss;
}

}  // namespace onnxgrad::train

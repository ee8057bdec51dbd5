#include "train/fit/epoch_loss.h"

#include <algorithm>

namespace onnxgrad::train {
namespace {

constexpr std::size_t kNumbers = 4;  // in a state, before the targets

}  // namespace

std::optional<double> gradient_norm(const Session& session, const runtime::Execution& execution) {
  const StepGraph& graph = session.graph();
  if (!graph.has_gradient_norm) return std::nullopt;
  return read_scalar(execution.output(graph.first_log_output() + graph.target_losses.size()),
                     graph.gradient_norm_dtype);
}

void EpochLoss::add_log_outputs(const Session& session, const runtime::Execution& execution,
                                double share) {
  const StepGraph& graph = session.graph();
  target_sums_.resize(graph.target_losses.size());
  for (std::size_t i = 0; i < target_sums_.size(); ++i) {
    const std::byte* const value = execution.output(graph.first_log_output() + i);
    target_sums_[i] += share * read_scalar(value, session.loss_dtype());
  }
  norm_sum_ += gradient_norm(session, execution).value_or(0);
}

void EpochLoss::clear() {
  sum_ = weight_ = norm_sum_ = steps_ = 0;
  std::ranges::fill(target_sums_, 0.0);
}

void EpochLoss::tell(const Session& session, EpochLog& log) const {
  const StepGraph& graph = session.graph();
  log.train_loss = mean();
  for (std::size_t i = 0; i < target_sums_.size(); ++i) {
    log.target_losses.emplace_back("train_loss_" + graph.target_losses[i],
                                   mean_of(target_sums_[i], weight_));
  }
  if (graph.has_gradient_norm) log.grad_norm = mean_of(norm_sum_, steps_);
}

std::vector<double> EpochLoss::state() const {
  std::vector<double> numbers{sum_, weight_, norm_sum_, steps_};
  numbers.insert(numbers.end(), target_sums_.begin(), target_sums_.end());
  return numbers;
}

bool EpochLoss::set_state(const Session& session, const std::vector<double>& state) {
  const std::size_t targets = session.graph().target_losses.size();
  if (state.size() != kNumbers && state.size() != kNumbers + targets) return false;
  sum_ = state[0];
  weight_ = state[1];
  norm_sum_ = state[2];
  steps_ = state[3];
  target_sums_.assign(state.begin() + kNumbers, state.end());
  return true;
}

}  // namespace onnxgrad::train

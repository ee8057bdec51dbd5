#include "train/fit/fit_progress.h"

#include <algorithm>

namespace onnxgrad::train {
namespace {

constexpr std::size_t kEpochNumbers = 4;  // in a state, before the targets

}  // namespace

void EpochLoss::add_log_results(const StepRunner& step, const runtime::Execution& plan,
                                double share) {
  target_sums_.resize(step.graph().target_losses.size());
  for (std::size_t i = 0; i < target_sums_.size(); ++i) {
    target_sums_[i] += share * step.target_loss(plan, i);
  }
  norm_sum_ += step.gradient_norm(plan).value_or(0);
}

void EpochLoss::clear() {
  sum_ = weight_ = norm_sum_ = steps_ = 0;
  std::ranges::fill(target_sums_, 0.0);
}

void EpochLoss::write_to(EpochLog& log, const StepGraph& graph) const {
  log.train_loss = mean();
  for (std::size_t i = 0; i < target_sums_.size(); ++i) {
    log.target_losses.emplace_back("train_loss_" + graph.target_losses[i],
                                   mean_of(target_sums_[i], weight_));
  }
  if (graph.ports.gradient_norm) log.grad_norm = mean_of(norm_sum_, steps_);
}

std::vector<double> EpochLoss::state() const {
  std::vector<double> numbers{sum_, weight_, norm_sum_, steps_};
  numbers.insert(numbers.end(), target_sums_.begin(), target_sums_.end());
  return numbers;
}

bool EpochLoss::set_state(const std::vector<double>& state, std::size_t num_targets) {
  if (state.size() != kEpochNumbers && state.size() != kEpochNumbers + num_targets) return false;
  sum_ = state[0];
  weight_ = state[1];
  norm_sum_ = state[2];
  steps_ = state[3];
  target_sums_.assign(state.begin() + kEpochNumbers, state.end());
  return true;
}

}  // namespace onnxgrad::train

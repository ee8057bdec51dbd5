#include "train/fit/fit_progress.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace onnxgrad::train {
namespace {

constexpr std::size_t kEpochNumbers = 4;  // in a state, before the targets
constexpr std::size_t kNoiseNumbers = 5;  // after them, if there are any

}  // namespace

void EpochLoss::add_log_results(const StepRunner& step, StepResults::Row results, double share,
                                double rows) {
  const StepResults& of_step = step.results();
  const StepResults::Row targets = of_step.target_losses(results);
  target_sums_.resize(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) target_sums_[i] += share * targets[i];
  norm_sum_ += of_step.gradient_norm(results).value_or(0);
  const std::optional<double> small = of_step.small_norm(results);
  if (!small) return;
  add_noise(*small, of_step.large_norm(results).value_or(-1), step.graph().steps_per_update, rows);
}

// With b rows in a batch and B in an update, E|g_b|^2 = |G|^2 + tr(S) / b and the same for B: two
// equations for both (McCandlish et al., An empirical model of large-batch training, appendix A).
void EpochLoss::add_noise(double small, double large, std::int64_t batches, double rows) {
  noise_.small += small * small;
  noise_.batches += 1;
  noise_.rows += rows;
  if (large < 0) return;
  if (noise_.batches == static_cast<double>(batches) && noise_.rows > 0) {
    const double of_batch = noise_.small / noise_.batches;
    const double b = noise_.rows / noise_.batches;
    const double all = noise_.rows;
    noise_.square += (all * large * large - b * of_batch) / (all - b);
    noise_.variance += (of_batch - large * large) / (1 / b - 1 / all);
  }
  noise_.small = noise_.batches = noise_.rows = 0;
}

void EpochLoss::clear() {
  sum_ = weight_ = norm_sum_ = steps_ = 0;
  noise_.variance = noise_.square = 0;  // an update may go on in the next epoch
  std::ranges::fill(target_sums_, 0.0);
}

void EpochLoss::write_to(EpochLog& log, const StepGraph& graph) const {
  log.train_loss = mean();
  for (std::size_t i = 0; i < target_sums_.size(); ++i) {
    log.target_losses.emplace_back("train_loss_" + graph.target_losses[i],
                                   mean_of(target_sums_[i], weight_));
  }
  if (noise_.square > 0) log.noise_scale = noise_.variance / noise_.square;
  if (graph.ports.gradient_norm) log.grad_norm = mean_of(norm_sum_, steps_);
}

std::vector<double> EpochLoss::state() const {
  std::vector<double> numbers{sum_, weight_, norm_sum_, steps_};
  numbers.insert(numbers.end(), target_sums_.begin(), target_sums_.end());
  const std::array noise{noise_.small, noise_.batches, noise_.rows, noise_.variance, noise_.square};
  if (std::ranges::any_of(noise, [](double number) { return number != 0; })) {
    numbers.insert(numbers.end(), noise.begin(), noise.end());
  }
  return numbers;
}

bool EpochLoss::set_state(const std::vector<double>& state, std::size_t num_targets) {
  std::size_t targets = state.size() - std::min(state.size(), kEpochNumbers);
  const bool has_noise = targets == kNoiseNumbers || targets == num_targets + kNoiseNumbers;
  if (has_noise && targets != num_targets) targets -= kNoiseNumbers;
  if (state.size() < kEpochNumbers || (targets != 0 && targets != num_targets)) return false;
  sum_ = state[0];
  weight_ = state[1];
  norm_sum_ = state[2];
  steps_ = state[3];
  const auto first = state.begin() + kEpochNumbers;
  target_sums_.assign(first, first + static_cast<std::ptrdiff_t>(targets));
  noise_ = {};
  if (kEpochNumbers + targets < state.size()) {
    const auto* noise = &state[kEpochNumbers + targets];
    noise_ = {.small = noise[0],
              .batches = noise[1],
              .rows = noise[2],
              .variance = noise[3],
              .square = noise[4]};
  }
  return true;
}

}  // namespace onnxgrad::train

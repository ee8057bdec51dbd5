#ifndef ONNXGRAD_TRAIN_SESSION_STEP_RESULTS_H_
#define ONNXGRAD_TRAIN_SESSION_STEP_RESULTS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "train/graphs/training_graph.h"

namespace onnxgrad::train {

/// The results of a step that an epoch loop looks at: a row of numbers, of which the first is the
/// loss, from these outputs of the step.
class StepResults {
 public:
  using Row = std::span<const double>;

  explicit StepResults(const StepPorts& ports)
      : outputs_{ports.loss}, num_targets_(ports.target_losses.size()) {
    outputs_.insert(outputs_.end(), ports.target_losses.begin(), ports.target_losses.end());
    denominator_ = add(ports.denominator);
    gradient_norm_ = add(ports.gradient_norm);
    small_norm_ = add(ports.small_norm);
    large_norm_ = add(ports.large_norm);
  }

  std::span<const std::size_t> outputs() const { return outputs_; }
  std::size_t size() const { return outputs_.size(); }

  /// See StepPorts.
  std::optional<double> denominator(Row row) const { return at(row, denominator_); }
  Row target_losses(Row row) const { return row.subspan(1, num_targets_); }
  std::optional<double> gradient_norm(Row row) const { return at(row, gradient_norm_); }
  std::optional<double> small_norm(Row row) const { return at(row, small_norm_); }
  std::optional<double> large_norm(Row row) const { return at(row, large_norm_); }

 private:
  std::size_t add(const std::optional<std::size_t>& output) {
    if (!output) return 0;
    outputs_.push_back(*output);
    return outputs_.size() - 1;
  }
  static std::optional<double> at(Row row, std::size_t place) {
    return place == 0 ? std::nullopt : std::optional(row[place]);
  }

  std::vector<std::size_t> outputs_;
  std::size_t num_targets_;
  std::size_t denominator_ = 0;  // places in a row; 0: there is none
  std::size_t gradient_norm_ = 0;
  std::size_t small_norm_ = 0;
  std::size_t large_norm_ = 0;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_STEP_RESULTS_H_

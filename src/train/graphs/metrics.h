#ifndef ONNXGRAD_TRAIN_METRICS_H_
#define ONNXGRAD_TRAIN_METRICS_H_

#include <span>
#include <vector>

#include "onnxgrad/losses.h"
#include "onnxgrad/metrics.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

/// Whether one of the metrics is computed from scores, not from the loss.
bool metrics_need_scores(const std::vector<Metric>& metrics, const LossInfo& loss);

/// Collects validation rows, batch by batch, and computes the metrics over all of them.
class MetricRows {
 public:
  /// `loss` outlives this. Throws: DataError (unknown metric, one that does not match the loss).
  MetricRows(const LossInfo& loss, std::vector<Metric> metrics);

  /// Clears the rows.
  void clear();
  /// Adds rows. scores: [n], [n, C] or [n, K] floating, for a loss with a class axis also more
  /// axes: each position is then a row; target: as the loss reads it; weights: n numbers, or empty.
  /// Throws: DataError (scores of another rank).
  void add(const Tensor& scores, const Tensor& target, std::span<const double> weights);
  /// Adds the rows of the other workers, in order of ranks; they call it too.
  void gather(const Workers& workers);
  /// One value for each metric, of rows with that mean loss. Exceptions of the user's functions are
  /// passed on.
  std::vector<double> values(double loss) const;
  /// Whether a metric is computed from the rows.
  bool needs_rows() const { return needs_rows_; }
  const std::vector<Metric>& metrics() const { return metrics_; }

 private:
  Predictions predictions() const;

  const LossInfo& loss_;
  std::vector<Metric> metrics_;
  bool needs_rows_ = false;
  std::int64_t columns_ = 0;
  std::vector<double> scores_;         ///< [rows, columns_]
  std::vector<std::int64_t> classes_;  ///< labels of a classifier
  std::vector<double> numbers_;        ///< [rows, columns_] otherwise
  std::vector<double> weights_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_METRICS_H_

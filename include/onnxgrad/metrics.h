#ifndef ONNXGRAD_METRICS_H_
#define ONNXGRAD_METRICS_H_

#include <functional>
#include <string>
#include <vector>

#include "onnxgrad/tensor.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Scores and targets of all validation rows, from which metrics are computed.
struct Predictions {
  /// Targets: class numbers int64 [N] for a classifier, else numbers float64 [N, K].
  Tensor target;
  /// Predictions in float64. For a classifier [N, C]: probabilities, or the scores themselves if
  /// the loss defines none (hinge); a single score column becomes two columns. Else the model's
  /// numbers [N, K].
  Tensor predicted;
  Tensor sample_weight = {};  ///< float64 [N]; undefined: all 1
};

/// A number that measures the quality of predictions.
struct Metric {
  std::string name;
  /// Empty: the built-in metric of that name.
  std::function<double(const Predictions&)> function = {};
};

/// Names of the built-in metrics, sorted; metric_table() (onnxgrad/tables.h) says what each is.
std::vector<std::string> metric_names();
/// Whether a larger value is better; true for a name that is not built in.
bool is_larger_better(const std::string& metric);
/// The built-in metric `name`; values agree with scikit-learn, weights included. NaN where it is
/// undefined (auc with one class). Throws: DataError (unknown name, a metric for classes on
/// numbers or vice versa).
double metric_value(const std::string& name, const Predictions& predictions);

}  // namespace onnxgrad

#endif  // ONNXGRAD_METRICS_H_

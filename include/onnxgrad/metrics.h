#ifndef ONNXGRAD_METRICS_H_
#define ONNXGRAD_METRICS_H_

#include <functional>
#include <string>
#include <vector>

#include "onnxgrad/tensor.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// What metrics are computed from: all rows of a validation.
struct Predictions {
  /// Of a classifier the class numbers int64 [N]; else the numbers float64 [N, K].
  Tensor target;
  /// float64. Of a classifier [N, C]: probabilities, or the scores themselves where the loss knows
  /// none (hinge); a single score column gives two columns. Else the model's numbers [N, K].
  Tensor predicted;
  Tensor sample_weight = {};  ///< float64 [N]; undefined: all 1
};

/// A number that says how good predictions are.
struct Metric {
  std::string name;
  /// Empty: the built-in metric of that name.
  std::function<double(const Predictions&)> function = {};
};

/// Names of the built-in metrics, sorted. For classifiers: accuracy, balanced_accuracy, precision,
/// recall, f1 (of class 1 where there are two classes, else the mean over the classes that occur),
/// auc (area under the receiver operating characteristic; with more than two classes the mean of
/// each class against the rest), log_loss. For numbers: mae, mse, rmse, max_error, r2,
/// explained_variance (the mean over the columns), pearson.
std::vector<std::string> metric_names();
/// Whether a larger value is better; of a name that is not built in, true.
bool is_larger_better(const std::string& metric);
/// The built-in metric `name`; values are those of scikit-learn, with its weights. NaN where it is
/// not defined (auc with one class). Throws: DataError (unknown name, a metric for classes on
/// numbers or the other way round).
double metric_value(const std::string& name, const Predictions& predictions);

}  // namespace onnxgrad

#endif  // ONNXGRAD_METRICS_H_

#ifndef ONNXGRAD_TRAIN_FIT_CLASS_WEIGHER_H_
#define ONNXGRAD_TRAIN_FIT_CLASS_WEIGHER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "onnxgrad/trainer.h"
#include "train/data/dataset.h"

namespace onnxgrad::train {

class Workers;

/// Multiplies the sample weights of rows, or of their positions, by a weight for their class; see
/// ClassWeights. Classes are identified by their value in the target as the loss reads it.
class ClassWeigher {
 public:
  /// Throws: OptionError (weights that are not numbers >= 0, not one per label), DataError (a label
  /// unknown to the model; a loss without sample weights, or with several targets).
  ClassWeigher(const DataSchema& schema, const ClassWeights& options);

  /// True with ClassWeights::balanced while count() has not seen all rows.
  bool needs_counts() const { return is_balanced_; }
  /// Counts the classes of target values as the loss reads them.
  void count(const Tensor& target);
  /// Adds up what several workers have counted.
  void put_together(const Workers& workers);
  /// Sets the weights from the counts: N / (number of classes * number of labels of the class).
  void settle();

  /// Gives `data` its own sample weights. Thread-safe after settle().
  /// Throws: DataError (targets that are not one class for each weight).
  void weigh(PreparedData& data) const;

 private:
  double weight_of(double label) const;

  bool is_balanced_ = false;
  std::map<double, double> weights_;  ///< by label; others count 1
  std::map<double, std::int64_t> counts_;
  std::optional<double> ignored_;  ///< an ignored label
};

/// Text of the class weights: "none", "balanced" or "0: 1.5, 1: 2".
std::string class_weights_text(const FitOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_CLASS_WEIGHER_H_

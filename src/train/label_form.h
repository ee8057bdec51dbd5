#ifndef ONNXGRAD_TRAIN_LABEL_FORM_H_
#define ONNXGRAD_TRAIN_LABEL_FORM_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/losses.h"
#include "onnxgrad/tensor.h"
#include "runtime/executor.h"

// What a loss may leave open until labels come: whether the bare columns of an automatic loss are
// scores of classes, which axis of the scores has the classes, and whether one column of a binary
// cross-entropy is compared with class numbers or with numbers from 0 to 1. The first labels settle
// it, and the step is written anew if it was guessed otherwise: Session::settle_by_labels.

namespace onnxgrad::train {

struct LabelForm {
  std::optional<std::int64_t> class_axis = {};  ///< empty: none, or still open
  bool soft_targets = false;
  bool columns_are_scores = false;  ///< of classes; of an automatic loss, softmax cross-entropy

  bool operator==(const LabelForm&) const = default;
};

/// Of a loss and of its others, in their order.
using LabelForms = std::vector<LabelForm>;

/// The first rows that a session is given.
struct FirstRows {
  /// The labels of one loss as the user has them; nullptr: there are none.
  std::function<const Tensor*(const LossInfo&)> labels;
  /// What the model is fed with for them, or for some of the rows; empty: not at hand.
  std::function<std::vector<Tensor>(std::span<const runtime::Port>)> inputs = {};
};

/// True for a loss of classes that could take fractions instead.
bool can_take_fractions(const LossInfo& loss);

/// True for floating-point labels that are not all whole numbers.
bool has_fractions(const Tensor& labels);

/// Labels of a step in the type and rank that the loss reads, where they are class numbers in
/// another type or in a column, or numbers from 0 to 1; others as they are.
/// Throws: DataError (see train/targets.h).
Tensor fit_labels(const LossInfo& loss, const Tensor& labels);

/// True if fit_labels would change something.
bool needs_fitting(const LossInfo& loss, const Tensor& labels);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LABEL_FORM_H_

#ifndef ONNXGRAD_TRAIN_SESSION_LABEL_FORM_H_
#define ONNXGRAD_TRAIN_SESSION_LABEL_FORM_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/data.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/tensor.h"
#include "runtime/execution.h"

// Decisions of a loss that wait for labels: whether the plain columns of an automatic
// loss are scores of classes, whether targets are class numbers or rows with one 1, which axis of
// the scores has the classes, whether one column of a binary cross-entropy is compared with class
// numbers or with numbers from 0 to 1, and whether the whole numbers that a loss of the user's
// reads are classes. The first labels decide, and the step is rewritten if the guess was wrong:
// settle_by_labels().

namespace onnxgrad::train {

class Session;

struct LabelForm {
  std::optional<std::int64_t> class_axis = {};  ///< empty: none, or still open
  bool soft_targets = false;
  /// Scores of classes: an automatic loss is softmax cross-entropy.
  bool columns_are_scores = false;
  bool targets_are_values = false;  ///< for a loss of the user's: see UserLoss
  bool one_hot = false;             ///< see Loss::one_hot_targets
  bool is_causal = false;           ///< the labels are the tokens that a decoder reads: CausalLm

  bool operator==(const LabelForm&) const = default;
};

/// Forms of a loss and its others, in order.
using LabelForms = std::vector<LabelForm>;

/// The first rows given to a session.
struct FirstRows {
  /// The labels of one loss in the user's form; nullptr: there are none.
  std::function<const Tensor*(const LossInfo&)> labels;
  /// The model's feeds for them, or for some of the rows; empty: not available.
  std::function<std::vector<Tensor>(std::span<const runtime::Port>)> inputs = {};
};

/// True while labels may still determine a class axis, or classes.
bool awaits_labels(const Session& session);
/// Decides what depends on the labels. Before a fit; inside one it does nothing.
/// Throws: DataError (labels that match no axis of the scores, or several).
void settle_by_labels(Session& session, const FirstRows& rows);
/// Decides what depends on the labels by the first rows of a data set.
void settle_by_labels(Session& session, const Dataset& data);
/// Returns the decisions so far; sets those of another session where this one's are open.
LabelForms label_forms(const Session& session);
void set_label_forms(Session& session, const LabelForms& forms);

/// Whether a target is not yet in the form that the loss reads, or the loss is undecided.
bool needs_fitting(const Session& session, const NamedTensors& feeds);
/// Returns `feeds` with targets in the form that the loss reads; they decide the loss first.
NamedTensors fit_feeds(Session& session, const NamedTensors& feeds);

/// Throws: ShapeError if labels of several axes differ in size from the dimensions of the scores
/// according to the inputs.
void check_places(const LossInfo& whole, std::span<const runtime::Port> ports,
                  const std::vector<Dims>& dims);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_LABEL_FORM_H_

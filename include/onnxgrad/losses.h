#ifndef ONNXGRAD_LOSSES_H_
#define ONNXGRAD_LOSSES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "onnxgrad/model.h"

// Losses as plain descriptions. N is the number of rows of a batch, C the number of classes, s the
// scores that the loss is put on, t the target. Each is written into the model as standard ONNX
// operators. Formulas give the loss of one row; `Loss::reduction` says how rows are put together.

namespace onnxgrad {

/// Chosen by the head of the model: squared error for a regression output; softmax, binary or
/// one-vs-rest cross-entropy for scores behind Softmax or Sigmoid; the negative log of the
/// probability where no scores are found.
struct AutoLoss {};

/// sum_j (s_j - t_j)^2 over the outputs of a row, averaged over j. s, t: [N, K] or [N], floating.
struct SquaredError {};

/// -log softmax(s)[t]. s: [N, C] (or [N, C, d1, ...]), before any Softmax; t: [N] class numbers.
struct SoftmaxCrossEntropy {};

/// log(1 + exp(s)) - t*s with t in {0, 1}, averaged over the columns of a row. s: [N] or [N, 1], t:
/// class numbers [N]; or s: [N, K] before any Sigmoid, t: [N, K] of 0 and 1.
struct BinaryCrossEntropy {};

/// -log(max(p[t], min_probability)) on probabilities. p: [N, C]; t: [N] class numbers.
/// min_probability 0: the smallest normal number of p's type.
struct NegativeLogLikelihood {
  double min_probability = 0;
};

/// The loss of scikit-learn's SGDClassifier, one problem "this class against the rest" per column.
/// With y = +1 for the row's class and -1 otherwise, summed over the columns, z = y*s:
///   kLog           log(1 + exp(-z))
///   kHinge         max(0, 1 - z)
///   kModifiedHuber max(0, 1 - z)^2 for z >= -1, else -4z
/// s: [N, C] raw scores, or [N, 1] for two classes; t: [N] class numbers.
struct OneVsRest {
  enum class Kind { kLog, kHinge, kModifiedHuber };
  Kind kind = Kind::kLog;
  /// Averaged over the columns instead: with two columns of opposite scores that is the loss of
  /// the one problem that they are.
  bool average = false;
};

using LossFunction = std::variant<AutoLoss, SquaredError, SoftmaxCrossEntropy, BinaryCrossEntropy,
                                  NegativeLogLikelihood, OneVsRest>;

enum class Reduction {
  kMean,  ///< sum of weighted rows / sum of their weights (rows, without weights)
  kSum,
};

/// A loss and where it is put.
struct Loss {
  LossFunction function = AutoLoss{};
  /// Output or inner value of the model; empty: found by walking back from the outputs through
  /// Identity, Reshape, Cast, ArgMax, ArrayFeatureExtractor, ZipMap, Normalizer, Softmax,
  /// LogSoftmax and Sigmoid. A function of scores placed on the name of an output behind Softmax or
  /// Sigmoid is an error that names the scores.
  std::string output = {};
  /// Wanted name of the new graph input for targets; a number is added where it is taken.
  std::string target = "label";
  /// Name of a new graph input [N] with a weight for each row; empty: none.
  std::string sample_weight = {};
  Reduction reduction = Reduction::kMean;
};

/// The function of that name: "auto", "squared_error" ("mse"), "softmax_cross_entropy"
/// ("cross_entropy"), "binary_cross_entropy", "negative_log_likelihood" ("nll"), "one_vs_rest_log",
/// "hinge", "modified_huber". Throws: ModelError naming the nearest.
LossFunction loss_from_name(std::string_view name);
/// All first names of loss_from_name, sorted.
std::vector<std::string> loss_names();

/// What was chosen for a model.
struct LossInfo {
  /// One line: "loss: softmax cross-entropy on 'add_result1' (scores behind output
  /// 'probabilities'), 10 classes from initializer 'classes'".
  std::string line;
  LossFunction function = AutoLoss{};  ///< never AutoLoss
  std::string scores;                  ///< value that the loss is put on
  std::string output = {};             ///< output of the model behind which it was found
  bool is_classifier = false;
  std::int64_t num_classes = 0;  ///< 0: regression
  /// The label of each class, int64 [C] or string [C]; undefined if the model has no list (then the
  /// labels are 0..C-1).
  Tensor classes = {};
  /// The new graph input for targets: of a classifier class *numbers* int64 [N], else the scores'
  /// type.
  ValueInfo target = {};
};

/// The loss that would be put on the model, without doing so. Throws: ModelError (nothing that a
/// loss can be put on; says what was looked at and what to pass).
LossInfo find_loss(const Model& model, const Loss& loss = {});

struct AddLossOptions {
  std::string loss_name = "loss";  ///< wanted name of the new output, of shape []
  bool keep_outputs = true;        ///< the model's outputs stay, after the loss
};

/// `model` with a loss: one more input for targets (after the others), one for sample weights if
/// wanted, and the loss as first output. Opset, IR version, names and nodes stay as they are.
/// Throws: ModelError (see find_loss; an ai.onnx opset that cannot express the loss), ShapeError.
Model add_loss(const Model& model, const Loss& loss = {}, const AddLossOptions& options = {});

}  // namespace onnxgrad

#endif  // ONNXGRAD_LOSSES_H_

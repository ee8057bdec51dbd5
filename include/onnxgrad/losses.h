#ifndef ONNXGRAD_LOSSES_H_
#define ONNXGRAD_LOSSES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "onnxgrad/model.h"

// Losses as plain descriptions. N is the number of rows of a batch, C the number of classes, s the
// scores that the loss is applied to, t the target. Each is written into the model as standard ONNX
// operators. Formulas are for one row; `Loss::reduction` determines how rows are combined.

namespace [[gnu::visibility("default")]] onnxgrad {

/// Chosen by the head of the model: squared error for a regression output; softmax, binary or
/// one-vs-rest cross-entropy for scores before Softmax or Sigmoid; the negative log of the
/// probability if no scores are found.
struct AutoLoss {};

// Regression. d = s - t; s, t: [N, K] or [N], floating. Averaged over the K columns of a row.

/// d^2
struct SquaredError {};

/// |d|
struct AbsoluteError {};

/// d^2 / 2 where |d| <= delta, else delta * (|d| - delta / 2).
struct Huber {
  double delta = 1;  ///< > 0
};

/// The Huber loss divided by beta: d^2 / (2 beta) where |d| <= beta, else |d| - beta / 2.
struct SmoothL1 {
  double beta = 1;  ///< > 0
};

/// l1_weight * |d| + l2_weight * d^2
struct Elastic {
  double l1_weight = 0.5;  ///< >= 0
  double l2_weight = 0.5;  ///< >= 0
};

/// exp(s) - t * s, with s the logarithm of the expected count; or s - t * log(s + 1e-8) with s the
/// count itself. t >= 0.
struct Poisson {
  bool log_input = true;
};

/// 1 - s.t / (max(|s|, 1e-8) * max(|t|, 1e-8)), for the rows s, t [N, K] as vectors. Not averaged.
struct Cosine {};

// Classification.

/// -log softmax(s)[t]. s: [N, C], or more axes (averaged over the positions of a row) of which
/// `Loss::class_axis` has the classes, before any Softmax; t: class numbers, of the shape of s
/// without the class axis: [N], or [B, T] for s: [B, T, C]. With options, for w = class_weights (1
/// without) and e = label_smoothing: w[t] * (1 - e) * -log p[t] + e / C * sum_c w[c] * -log p[c],
/// and in the mean a row counts w[t] times. With probabilities q as targets: -sum_c w[c] * log p[c]
/// * ((1 - e) * q[c]
/// + e / C), where each row counts once.
struct SoftmaxCrossEntropy {
  /// Rows (or positions) with this class number are ignored; integer targets only.
  std::optional<std::int64_t> ignore_index = {};
  std::vector<double> class_weights = {};  ///< [C], >= 0; empty: all 1
  double label_smoothing = 0;              ///< in [0, 1)
  /// t are probabilities (or 0 and 1) of the type and shape of s.
  bool one_hot = false;
};

/// log(1 + exp(s)) - t*s with t in {0, 1}, averaged over the columns of a row. s: [N] or [N, 1], t:
/// class numbers [N]; or s: [N, K] before any Sigmoid, t: [N, K] of numbers from 0 to 1.
struct BinaryCrossEntropy {
  /// For a single column too, t are numbers from 0 to 1, of the type and shape of s. A session sets
  /// it when given fractions as targets.
  bool soft_targets = false;
};

/// -t * log(max(p, m)) - (1 - t) * log(max(1 - p, m)) on probabilities, averaged over the columns
/// of a row. p: [N] or [N, 1], t: class numbers [N]; or p, t: [N, K]. m is min_probability; 0: the
/// smallest normal number of p's type.
struct LogLoss {
  double min_probability = 0;
  bool soft_targets = false;  ///< as for BinaryCrossEntropy
};

/// -log(max(p[t], min_probability)) on probabilities. p: [N, C], or more axes as for
/// SoftmaxCrossEntropy; t: class numbers, of the shape of p without the class axis.
/// min_probability 0: the smallest normal number of p's type.
struct NegativeLogLikelihood {
  double min_probability = 0;
  /// Rows (or positions) with this class number are ignored.
  std::optional<std::int64_t> ignore_index = {};
};

/// Kullback-Leibler divergence sum_c t[c] * (log t[c] - log softmax(s)[c]), where 0 log 0 is 0.
/// s: [N, C] before any Softmax (log-probabilities work as well), or more axes as for
/// SoftmaxCrossEntropy; t: probabilities of the shape of s.
struct KlDivergence {};

/// The loss of scikit-learn's SGDClassifier, one problem "this class against the rest" per column.
/// With y = +1 for the row's class and -1 otherwise, summed over the columns, z = y*s:
///   kLog           log(1 + exp(-z))
///   kHinge         max(0, 1 - z)
///   kSquaredHinge  max(0, 1 - z)^2
///   kModifiedHuber max(0, 1 - z)^2 for z >= -1, else -4z
/// s: [N, C] raw scores, or [N, 1] for two classes; t: [N] class numbers.
struct OneVsRest {
  enum class Kind { kLog, kHinge, kSquaredHinge, kModifiedHuber };
  Kind kind = Kind::kLog;
  /// Averaged over the columns instead: for two columns of opposite scores, this is the loss of
  /// the single binary problem that they represent.
  bool average = false;
};

/// A user-defined loss: a model with the inputs scores, target and, optionally, sample
/// weights [N], in this order, and one floating output: the loss of each row [N] or [N, 1], or the
/// mean loss of the batch ([], [1] or [1, 1]). Initializers are constants. Targets are class
/// numbers where the second input is int64 [N].
struct UserLoss {
  std::shared_ptr<const std::string> model = {};  ///< a serialized ModelProto
  /// Applied to the scores before Softmax or Sigmoid, not to the probabilities.
  bool takes_scores = false;
};

/// The model contains its loss: `Loss::output` (or an inner value) is the loss of each row, [N]
/// or [N, K] as for other losses, or of the batch, one number; Reduction then specifies whether it
/// is a mean over the rows or their sum. `Loss::target` and `Loss::sample_weight` name inputs of
/// the model; with an empty `target`, or no input of its default name, there is no target. The
/// model decides what weights do. Cannot be combined with other losses.
struct OutputLoss {};

using LossFunction =
    std::variant<AutoLoss, SquaredError, AbsoluteError, Huber, SmoothL1, Elastic, Poisson, Cosine,
                 SoftmaxCrossEntropy, BinaryCrossEntropy, LogLoss, NegativeLogLikelihood,
                 KlDivergence, OneVsRest, UserLoss, OutputLoss>;

enum class Reduction {
  kMean,  ///< sum of weighted rows / sum of their weights (rows, without weights)
  kSum,
  /// The loss of each row [N], times its weight. Training uses the gradient of their sum.
  kNone,
};

/// l1 * sum |w| + l2 * sum w^2, added to the loss (mean or sum) and thus part of its
/// gradient. In other words, l2 is half of an optimizer's weight decay.
struct Penalty {
  double l1 = 0;  ///< >= 0
  double l2 = 0;  ///< >= 0
  /// Glob patterns of weights; empty: the trainable weights of two or more dimensions that the loss
  /// depends on.
  std::vector<std::string> weights = {};
};

/// A loss and what it is applied to.
struct Loss {
  LossFunction function = AutoLoss{};
  /// Output or inner value of the model; empty: found by walking back from the outputs through
  /// Identity, Reshape, Cast, ArgMax, ArrayFeatureExtractor, ZipMap, Normalizer, Softmax,
  /// LogSoftmax and Sigmoid. Applying a function of scores to an output after Softmax or
  /// Sigmoid is an error that names the scores.
  std::string output = {};
  /// `output` is where the walk back starts, not the value itself.
  bool walk_back = false;
  /// The class axis of the scores (negative: from the end), for a classification loss on scores of
  /// three or more axes. If unset: the axis of the model's own Softmax or ArgMax, or the one whose
  /// size matches the class weights; else the axis missing from the labels' shape, which a session
  /// learns from the first labels (several candidates are an error, unless one of them is the
  /// only axis of fixed size after the first). In files, and with probabilities as targets, that
  /// only axis of fixed size, else axis 1.
  std::optional<std::int64_t> class_axis = {};
  /// Preferred name of the new graph input for targets; a number is appended if an input, output or
  /// initializer of the model has it.
  std::string target = "label";
  /// Name of a new graph input [N] with a weight for each row; empty: none.
  std::string sample_weight = {};
  /// Instead, a weight for each label, in the labels' shape [N, d1, ...]; for a classification loss
  /// with several positions in a row.
  bool weigh_places = false;
  Reduction reduction = Reduction::kMean;
  std::vector<Penalty> penalties = {};
  /// With `others`, the factor of this loss in the sum.
  double factor = 1;
  /// Losses on further outputs, each with its own target and factor; sample weights,
  /// reduction and penalties are those of the first.
  std::vector<Loss> others = {};
};

/// The function of that name; aliases in parentheses: "absolute_error" ("mae", "l1"), "auto",
/// "binary_cross_entropy" ("bce"), "cosine", "elastic", "hinge", "huber", "kl_divergence" ("kl"),
/// "log_loss", "modified_huber", "negative_log_likelihood" ("nll"), "one_vs_rest_log", "poisson",
/// "smooth_l1", "softmax_cross_entropy" ("cross_entropy"), "squared_error" ("mse", "l2"),
/// "squared_hinge". Throws: OptionError naming the nearest.
LossFunction loss_from_name(std::string_view name);
/// All primary names of loss_from_name, sorted.
std::vector<std::string> loss_names();

/// What was chosen for a model.
struct LossInfo {
  /// One line: "loss: softmax cross-entropy on 'add_result1' (scores before output
  /// 'probabilities'), 10 classes from initializer 'classes'".
  std::string line;
  LossFunction function = AutoLoss{};  ///< never AutoLoss
  std::string scores;                  ///< value that the loss is applied to
  std::string output = {};             ///< output of the model from which it was found
  bool is_classifier = false;
  std::int64_t num_classes = 0;  ///< 0: regression
  /// Class axis of the scores, from 0; empty: the loss has none.
  std::optional<std::int64_t> class_axis = {};
  /// Labels may still settle `class_axis`: see Loss::class_axis.
  bool is_class_axis_open = false;
  /// The label of each class, int64 [C] or string [C]; undefined if the model has no list (the
  /// labels are then 0..C-1).
  Tensor classes = {};
  /// The new graph input for targets: for a classifier class *numbers* int64 [N], else the scores'
  /// type. For OutputLoss the model's own; without a name there is none.
  ValueInfo target = {};
  std::vector<std::string> penalized = {};  ///< weights that penalties apply to
  std::vector<LossInfo> others = {};        ///< of Loss::others
};

/// The loss that would be added to the model, without adding it. Throws: ModelError (nothing that
/// a loss can be applied to; reports what was examined and what to pass).
LossInfo find_loss(const Model& model, const Loss& loss = {});

struct AddLossOptions {
  std::string loss_name = "loss";  ///< preferred name of the new output, shape [], or [N] (kNone)
  bool keep_outputs = true;        ///< keep the model's outputs, after the loss
  /// Of ai.onnx, 9 to 26, for the result; 0: the model's own.
  std::int64_t target_opset = 0;
};

/// `model` with a loss: one more input for targets (after the others; one for each of several
/// losses), one for sample weights if requested, and the loss as first output. Opset, IR version,
/// names and nodes are unchanged, except that an inner value with the name of a new input or of
/// the loss is renamed. Throws: ModelError (see find_loss; an ai.onnx opset that cannot
/// express the loss), ShapeError.
Model add_loss(const Model& model, const Loss& loss = {}, const AddLossOptions& options = {});

}  // namespace onnxgrad

#endif  // ONNXGRAD_LOSSES_H_

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

// Losses as plain descriptions. loss_table() (onnxgrad/tables.h) has the formula of each for one
// row, the shapes of scores and targets, and range and meaning of its fields; docs/training.md
// shows it. `Loss::reduction` determines how rows are combined. Each loss is written into the model
// as standard ONNX operators.

namespace [[gnu::visibility("default")]] onnxgrad {

/// Selects the loss by the head of the model: squared error for a regression output; softmax,
/// binary or one-vs-rest cross-entropy for scores before Softmax or Sigmoid; the negative log of
/// the probability if no scores are found. A decoder whose first labels are the tokens that it
/// reads gets CausalLm.
struct AutoLoss {};

struct SquaredError {};
struct AbsoluteError {};
struct Huber {
  double delta = 1;
};
struct SmoothL1 {
  double beta = 1;
};
struct Elastic {
  double l1_weight = 0.5;
  double l2_weight = 0.5;
};
struct Poisson {
  bool log_input = true;
};
struct Cosine {};

/// Scores of a teacher as targets: Hinton et al., arXiv:1503.02531; see onnxgrad/distillation.h.
struct Distillation {
  double temperature = 2;
  bool probabilities = false;
  bool binary = false;
};

// Losses of embeddings compare the scores with Loss::partners, or with those of Loss::views.
struct InfoNce {
  double temperature = 0.05;
  bool learn_temperature = false;
  bool symmetric = false;
  std::vector<std::int64_t> prefixes = {};
};
struct Triplet {
  double margin = 1;
  bool hardest = false;
};
struct CosineEmbedding {
  double margin = 0;
};

struct SoftmaxCrossEntropy {
  std::optional<std::int64_t> ignore_index = {};
  std::vector<double> class_weights = {};
  double label_smoothing = 0;
  bool one_hot = false;
};
struct BinaryCrossEntropy {
  bool soft_targets = false;
};
struct LogLoss {
  double min_probability = 0;
  bool soft_targets = false;
};
struct NegativeLogLikelihood {
  double min_probability = 0;
  std::optional<std::int64_t> ignore_index = {};
};
struct KlDivergence {};

/// Language models. Scores [N, T, V] of a decoder, whose targets are the tokens [N, T] that it
/// read: a place is compared with the token after it.
struct CausalLm {
  std::int64_t ignore_index = -100;
  std::optional<std::int64_t> pad = {};  ///< a token that is not learnt, besides ignore_index
};
/// Scores [N, T, V] of a masked model, or of a decoder behind an encoder: targets [N, T] are the
/// tokens of the same places, and ignore_index where nothing is learnt.
struct MaskedLm {
  std::int64_t ignore_index = -100;
};
/// Direct preference optimization (Rafailov et al. 2023) of scores [2P, T, V], rows 2i and 2i + 1
/// being a chosen and a rejected answer. Targets float64 [2P, 1 + T]: the log-probability of the
/// answer before the training, then the tokens of the row, negative where none is of the answer.
struct Dpo {
  double beta = 0.1;
  double label_smoothing = 0;
};

struct OneVsRest {
  enum class Kind { kLog, kHinge, kSquaredHinge, kModifiedHuber };
  Kind kind = Kind::kLog;
  /// Averages over the columns instead of adding them up: for two columns of opposite scores, this
  /// is the loss of the single binary problem that they represent.
  bool average = false;
};

/// A user-defined loss: a model with the inputs scores, target and, optionally, sample
/// weights [N], in this order, and one floating output: the loss of each row [N] or [N, 1], or the
/// mean loss of the batch ([], [1] or [1, 1]). Initializers are constants. Targets are class
/// numbers where the second input is int64 [N].
struct UserLoss {
  std::shared_ptr<const std::string> model = {};  ///< a serialized ModelProto
  /// True: applied to the scores before Softmax or Sigmoid, not to the probabilities.
  bool takes_scores = false;
  /// Whether a target int64 [N] has class numbers, with accuracy and the model's list of classes.
  /// Where the model has neither such a list nor probabilities, the first labels that are none of
  /// the scores' columns make it false: they are passed on as they are (identities of which a loss
  /// compares pairs, say).
  bool targets_are_classes = true;
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
                 KlDivergence, OneVsRest, UserLoss, OutputLoss, CausalLm, MaskedLm, Dpo,
                 Distillation, InfoNce, Triplet, CosineEmbedding>;

enum class Reduction {
  kMean,  ///< sum of weighted rows / sum of their weights (rows, without weights)
  kSum,
  /// The loss of each row [N], times its weight. Training uses the gradient of their sum.
  kNone,
};

/// l1 sum |w| + l2 sum w^2, added to the loss (mean or sum).
struct Penalty {
  double l1 = 0;
  double l2 = 0;
  /// Glob patterns; empty: the trainable weights of two or more dimensions that the loss depends
  /// on.
  std::vector<std::string> weights = {};
};

struct TeacherGraph;  ///< private to the library

/// A loss and what it is applied to.
struct Loss {
  LossFunction function = AutoLoss{};
  /// Output or inner value of the model; empty: found by walking back from the outputs through
  /// Identity, Reshape, Cast, ArgMax, ArrayFeatureExtractor, ZipMap, Normalizer, Softmax,
  /// LogSoftmax and Sigmoid. Applying a function of scores to an output after Softmax or
  /// Sigmoid is an error that names the scores.
  std::string output = {};
  /// True: the walk back starts at `output`, which need not be the scores themselves.
  bool walk_back = false;
  /// The class axis of the scores (negative: from the end), for a classification loss on scores of
  /// three or more axes. If unset: the axis of the model's own Softmax or ArgMax, or the one whose
  /// size matches the class weights; else the axis missing from the labels' shape, which a session
  /// learns from the first labels (several candidates are an error, unless one of them is the
  /// only axis of fixed size after the first). In files, and with probabilities as targets, that
  /// only axis of fixed size, else axis 1.
  std::optional<std::int64_t> class_axis = {};
  /// True: targets of a classification loss are rows with a 1 for the class among 0s, [N, C] or the
  /// shape of the scores; class numbers are computed from them. An automatic loss on several plain
  /// columns learns it from the first targets.
  bool one_hot_targets = false;
  /// Preferred name of the new graph input for targets; a number is appended if an input, output or
  /// initializer of the model has it.
  std::string target = "label";
  /// Name of a new graph input [N] with a weight for each row; empty: none.
  std::string sample_weight = {};
  /// True: a weight for each label instead of each row, in the labels' shape [N, d1, ...]; for a
  /// classification loss with several positions in a row.
  bool weigh_places = false;
  Reduction reduction = Reduction::kMean;
  std::vector<Penalty> penalties = {};
  /// Factor of this loss in the sum with `others`.
  double factor = 1;
  /// Losses on further outputs, each with its own target and factor; sample weights,
  /// reduction and penalties are those of the first.
  std::vector<Loss> others = {};

  /// Value that is the target, instead of a new input: of `teacher`, which takes no gradient, else
  /// of the model itself. Such a loss is applied to exactly `output`.
  std::string target_value = {};
  std::shared_ptr<const TeacherGraph> teacher = {};  ///< made by distill()
  /// The function instead, once labels have shown that `output` has a column for each class: an
  /// automatic loss on several plain columns waits for them. Set by distill().
  std::optional<Distillation> of_classes = {};
  /// Losses with a `target_value`, added with their factors; the rest as for `others`.
  std::vector<Loss> matches = {};
  /// Initial values of weights that are trained with the model and belong to the loss: they are
  /// state, also in checkpoints, and never in the model's file. With a `target_value`, one matrix
  /// [width, width of the target]: a projection of `output` along its last axis, of images along
  /// axis 1.
  NamedTensors own_weights = {};
  /// Values that a loss of embeddings compares `output` with, rows beside rows: the positives, then
  /// negatives.
  std::vector<std::string> partners = {};
  /// Inputs in each row for one encoder: every input "x" gets siblings "x_2", "x_3", ..., the model
  /// is run once on all of them, and the scores of the siblings are the partners.
  std::int64_t views = 1;
};

/// The function of that name, or short name, in loss_table(). Throws: OptionError naming the
/// nearest.
LossFunction loss_from_name(std::string_view name);
/// All primary names of loss_from_name, sorted.
std::vector<std::string> loss_names();

/// The loss found for a model.
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
  bool one_hot_targets = false;  ///< see Loss
  /// Whether labels may still determine `class_axis`: see Loss::class_axis.
  bool is_class_axis_open = false;
  /// Whether only the type indicates that targets of a user's loss are classes: see UserLoss.
  bool may_be_values = false;
  /// The label of each class, int64 [C] or string [C]; undefined if the model has no list (the
  /// labels are then 0..C-1).
  Tensor classes = {};
  /// The new graph input for targets: for a classifier class *numbers* int64 [N], else the scores'
  /// type. For OutputLoss the model's own; without a name there is none.
  ValueInfo target = {};
  std::vector<std::string> penalized = {};  ///< weights that penalties apply to
  std::vector<LossInfo> others = {};        ///< one for each of Loss::others
};

/// The loss that would be added to the model, without adding it. Throws: ModelError (nothing that
/// a loss can be applied to; reports what was examined and what to pass).
LossInfo find_loss(const Model& model, const Loss& loss = {});

struct AddLossOptions {
  std::string loss_name = "loss";  ///< preferred name of the new output, shape [], or [N] (kNone)
  bool keep_outputs = true;        ///< keep the model's outputs, after the loss
  /// Opset of ai.onnx for the result, 9 to 26; 0: the model's own.
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

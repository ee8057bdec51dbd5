#include "train/heads/head_walk.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "train/heads/head_evidence.h"
#include "train/heads/head_patterns.h"
#include "train/losses/losses.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

constexpr std::string_view kMl = "ai.onnx.ml";

/// State of the walk back from an output: the kinds of nodes that it has passed.
struct Walk {
  Value* value = nullptr;
  Value* alias = nullptr;  ///< a name of `value` nearer to the output: an Identity of it
  Value* probabilities = nullptr;
  /// Value that a single column, or rows of another axis, were taken from.
  Value* regression = nullptr;
  bool is_log = false;                ///< LogSoftmax
  bool labels = false;                ///< an ArgMax
  bool rounded = false;               ///< a Binarizer
  bool normalized = false;            ///< division by the sum of the row
  bool two_columns = false;           ///< [1 - p, p]
  bool second_column = false;         ///< p itself is the second column of a matrix
  bool opposite_columns = false;      ///< [-s, s]
  std::optional<HeadKind> kind = {};  ///< set by the last step
  ClassList classes = {};
  std::optional<std::int64_t> class_axis = {};  ///< axis in a value of rank `class_axis_rank`
  std::size_t class_axis_rank = 0;
};

// A step examines the producer of walk.value and moves walk.value to an input of it; false: it
// stays.
using WalkStep = bool (*)(const Node& node, Walk& walk);

bool pass(const Node& node, Walk& walk) {
  walk.value = node.input(0);
  return true;
}

void note_probabilities(Walk& walk) {
  if (walk.probabilities != nullptr) return;
  walk.probabilities = walk.alias == nullptr ? walk.value : walk.alias;
}

void note_classes(Walk& walk, const Tensor& labels, std::string source) {
  if (walk.classes.labels.is_defined() || !labels.is_defined()) return;
  walk.classes = {.labels = labels.reshaped(Dims{labels.num_elements()}),
                  .source = std::move(source)};
}

// True for rows [N, 1] of a value [1, N], which a Gaussian process returns.
bool has_rows_of_another(const Value& after, const Value& before) {
  const auto is_one_row = [](const Value& value) {
    return value.type.has_rank() && value.type.rank() == 2 &&
           value.type.shape->front() == ir::Dim(1);
  };
  return is_one_row(before) && !is_one_row(after);
}

// Only matrices are followed: a Reshape that merges rows and time steps is not undone.
bool pass_reshape(const Node& node, Walk& walk) {
  const Value* before = node.input(0);
  if (before == nullptr) return false;
  const bool of_labels = walk.labels || !is_floating(before->type.dtype);
  if (!of_labels && (!before->type.has_rank() || before->type.rank() > 2)) return false;
  if (walk.regression == nullptr && has_rows_of_another(*node.output(0), *before)) {
    walk.regression = walk.value;
  }
  return pass(node, walk);
}

// The axis of Softmax or ArgMax has the classes; the nearest to the scores is right.
void note_class_axis(const Node& node, Walk& walk) {
  const Value* x = node.input(0);
  if (x == nullptr || !x->type.has_rank()) return;
  const auto rank = static_cast<std::int64_t>(x->type.rank());
  const std::int64_t axis = node.int_attribute("axis");
  walk.class_axis = axis < 0 ? axis + rank : axis;
  walk.class_axis_rank = x->type.rank();
}

bool pass_argmax(const Node& node, Walk& walk) {
  walk.labels = true;
  note_class_axis(node, walk);
  return pass(node, walk);
}

// Labels of a model with several per row.
bool pass_binarizer(const Node& node, Walk& walk) {
  walk.rounded = true;
  return pass(node, walk);
}

// One column of the scores or probabilities of all classes. Of two columns made from one value,
// only the second represents that value.
bool pass_column(const Node& node, Walk& walk) {
  const ColumnOf column = match_column(node.output(0));
  if (column.matrix == nullptr || (walk.two_columns && column.index != 1)) return false;
  if (walk.regression == nullptr) walk.regression = walk.value;
  walk.second_column = walk.two_columns;
  walk.value = column.matrix;
  return true;
}

// Gather or ArrayFeatureExtractor: picks labels from the list of classes by number.
bool pass_lookup(const Node& node, Walk& walk) {
  const Value* table = node.input(0);
  if (table == nullptr || !table->is_initializer()) return pass_column(node, walk);
  if (node.input(1) == nullptr) return false;
  const DataType dtype = table->initializer.dtype();
  const bool is_attribute =
      table->origin != nullptr && table->origin->kind == ir::WeightOrigin::Kind::kAttribute;
  const std::string source = is_attribute ? "attribute '" + table->origin->attribute + "'"
                                          : "initializer '" + table->name + "'";
  if (dtype == DataType::kInt64 || dtype == DataType::kString) {
    note_classes(walk, table->initializer, source);
  } else if (is_integer(dtype) || dtype == DataType::kBool) {
    note_classes(walk, table->initializer.cast(DataType::kInt64), source);
  } else {
    return false;
  }
  walk.value = node.input(1);
  return true;
}

void note_class_attributes(const Node& node, std::string_view ints, std::string_view strings,
                           Walk& walk) {
  const auto numbers = node.ints_attribute(ints);
  if (!numbers.empty()) {
    note_classes(walk, Tensor::from(numbers, Dims{static_cast<std::int64_t>(numbers.size())}),
                 node.describe());
  }
  const ir::AttributeValue* value = node.find_attribute(strings);
  const auto* names = value == nullptr ? nullptr : std::get_if<std::vector<std::string>>(value);
  if (names != nullptr && !names->empty()) {
    const auto count = static_cast<std::int64_t>(names->size());
    note_classes(walk, Tensor::from_strings(*names, Dims{count}), node.describe());
  }
}

bool pass_zip_map(const Node& node, Walk& walk) {
  note_class_attributes(node, "classlabels_int64s", "classlabels_strings", walk);
  return pass(node, walk);
}

// Maps class numbers 0, 1, ... to labels.
bool pass_label_encoder(const Node& node, Walk& walk) {
  const auto keys = node.ints_attribute("keys_int64s");
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] != static_cast<std::int64_t>(i)) return pass(node, walk);
  }
  if (!keys.empty()) note_class_attributes(node, "values_int64s", "values_strings", walk);
  return pass(node, walk);
}

bool pass_normalizer(const Node& node, Walk& walk) {
  if (node.string_attribute("norm") != "L1") return false;
  walk.normalized = true;
  note_probabilities(walk);
  return pass(node, walk);
}

// Ends the walk before a sigmoid of `scores`.
bool end_logistic(Value* scores, Walk& walk) {
  if (walk.opposite_columns) return false;
  Value* positive = match_opposite_columns(scores);
  if (walk.second_column && positive == nullptr && !is_single_column(*scores)) return false;
  note_probabilities(walk);
  if (positive != nullptr) {  // [sigmoid(-s), sigmoid(s)], whose sum is 1
    walk.kind = HeadKind::kSigmoid;
    walk.value = positive;
    return true;
  }
  if (walk.two_columns || is_single_column(*scores)) {
    walk.kind = HeadKind::kSigmoid;
  } else {
    walk.kind = walk.normalized || walk.labels ? HeadKind::kOneVsRest : HeadKind::kSigmoids;
  }
  walk.value = scores;
  return true;
}

bool end_clipped_margin(Value* scores, Walk& walk) {
  if (walk.opposite_columns) return false;
  note_probabilities(walk);
  walk.kind = HeadKind::kModifiedHuber;
  walk.value = scores;
  return true;
}

bool end_sigmoid(const Node& node, Walk& walk) { return end_logistic(node.input(0), walk); }

// A sigmoid or a probability of the modified Huber loss that is written out, a division by the sum
// of the row, or what changes nothing.
bool pass_arithmetic(const Node&, Walk& walk) {
  if (Value* scores = match_logistic(walk.value)) return end_logistic(scores, walk);
  if (Value* scores = match_clipped_margin(walk.value)) return end_clipped_margin(scores, walk);
  Value* same = match_times_one(walk.value);
  if (same != nullptr && is_never_negative(same)) {  // not the gain of a layer
    walk.value = same;
    return true;
  }
  Value* rows = match_row_share(walk.value);
  if (rows == nullptr) return false;
  note_probabilities(walk);
  walk.normalized = true;
  walk.value = rows;
  return true;
}

bool has_several_columns(const Value& value) {
  return value.type.is_tensor() && value.type.rank() == 2 && value.type.shape->back().is_static() &&
         value.type.shape->back().value() > 1;
}

// [1 - p, p] or [-s, s]: the columns of a two-class model with one score.
bool pass_two_columns(const Node& node, Walk& walk) {
  if (node.inputs.size() == 1) return pass(node, walk);
  if ((walk.two_columns && !walk.second_column) || walk.opposite_columns) return false;
  walk.second_column = false;
  if (Value* probability = match_complement_columns(walk.value)) {
    if (has_several_columns(*probability)) {  // several labels in a row, one beside the other
      walk.value = probability;
      return true;
    }
    note_probabilities(walk);
    walk.two_columns = true;
    walk.value = probability;
    return true;
  }
  Value* scores = match_opposite_columns(walk.value);
  if (scores == nullptr) return false;
  walk.opposite_columns = true;
  walk.value = scores;
  return true;
}

bool is_column_axis(const Node& node) {
  const std::int64_t axis = node.int_attribute("axis");
  const Value* x = node.input(0);
  return axis == -1 || axis == 1 ||  // 1: the channels of images [N, C, H, W] too
         (x != nullptr && x->type.has_rank() &&
          axis == static_cast<std::int64_t>(x->type.rank()) - 1);
}

bool end_softmax(const Node& node, Walk& walk) {
  if (!is_column_axis(node) || walk.opposite_columns) return false;
  if (walk.two_columns && !has_two_columns(*node.output(0))) return false;
  note_class_axis(node, walk);
  walk.is_log = node.op_type == "LogSoftmax" && walk.probabilities == nullptr;
  note_probabilities(walk);
  walk.kind = HeadKind::kSoftmax;
  return pass(node, walk);
}

// exp(x) / sum(exp(x)), written out; the exponents may be shifted by the largest of the row. Or
// exp(x - log(sum(exp(x)))).
bool end_exponential(const Node& node, Walk& walk) {
  if (walk.two_columns) return false;
  if (Value* scores = match_log_softmax(node.input(0))) {
    note_probabilities(walk);
    walk.kind = HeadKind::kSoftmax;
    walk.value = scores;
    return true;
  }
  if (!walk.normalized) return false;
  walk.kind = HeadKind::kSoftmax;
  Value* unshifted = match_unshifted(node.input(0));
  walk.value = unshifted == nullptr ? node.input(0) : unshifted;
  return true;
}

struct WalkRule {
  std::string_view domain;
  std::string_view op_type;
  WalkStep step;
};

constexpr std::array kRules{
    WalkRule{"", "ArgMax", pass_argmax},
    WalkRule{"", "Slice", pass_column},
    WalkRule{"", "Gather", pass_lookup},
    WalkRule{kMl, "ArrayFeatureExtractor", pass_lookup},
    WalkRule{kMl, "LabelEncoder", pass_label_encoder},
    WalkRule{kMl, "ZipMap", pass_zip_map},
    WalkRule{kMl, "Normalizer", pass_normalizer},
    WalkRule{kMl, "Binarizer", pass_binarizer},
    WalkRule{"", "Concat", pass_two_columns},
    WalkRule{"", "Softmax", end_softmax},
    WalkRule{"", "LogSoftmax", end_softmax},
    WalkRule{"", "Exp", end_exponential},
    WalkRule{"", "Sigmoid", end_sigmoid},
    WalkRule{"", "Reciprocal", pass_arithmetic},
    WalkRule{"", "Div", pass_arithmetic},
    WalkRule{"", "Mul", pass_arithmetic},
    WalkRule{"", "Where", pass_arithmetic},
};

WalkStep find_step(const Node& node, opdef::Passage passage) {
  if (passage >= opdef::Passage::kConverted) return pass;
  if (passage == opdef::Passage::kReshaped) return pass_reshape;
  const auto* rule = std::ranges::find_if(kRules, [&](const WalkRule& candidate) {
    return candidate.op_type == node.op_type && candidate.domain == node.domain;
  });
  return rule == kRules.end() ? nullptr : rule->step;
}

// The kind of a walk that ended at no known squashing function.
HeadKind kind_of_rest(const Walk& walk) {
  if (walk.two_columns && is_affine(walk.value)) return HeadKind::kMargins;  // [1 - s, s]
  if (walk.normalized || walk.two_columns) return HeadKind::kProbabilities;
  if (walk.opposite_columns) return HeadKind::kMargins;
  if (walk.classes.labels.is_defined()) {
    // Producers of class scores that are not layers: trees, kernels, calibrated classifiers.
    if (is_never_negative(walk.value)) return HeadKind::kProbabilities;
    return is_affine(walk.value) ? HeadKind::kMargins : HeadKind::kScores;
  }
  return walk.labels ? HeadKind::kScores : HeadKind::kValues;
}

}  // namespace

Head walk_back(Value* value) {
  const opdef::OpRegistry& ops = builtin_ops();
  Walk walk{.value = value};
  while (!walk.kind && walk.value != nullptr && walk.value->producer != nullptr) {
    const Node node = ops.complete(*walk.value->producer);
    const opdef::OpDef* def = ops.find(node);
    const auto passage = def == nullptr ? opdef::Passage::kNone : def->passage;
    Value* const before = walk.value;
    const WalkStep step = find_step(node, passage);
    if (step == nullptr || !step(node, walk)) break;
    if (passage != opdef::Passage::kUnchanged) {
      walk.alias = nullptr;
    } else if (walk.alias == nullptr) {
      walk.alias = before;
    }
  }
  Head head{.kind = walk.kind ? *walk.kind : kind_of_rest(walk),
            .scores = walk.value,
            .probabilities = walk.probabilities,
            .is_log = walk.is_log,
            .from_labels = walk.labels || walk.rounded,
            .classes = std::move(walk.classes)};
  const bool is_of_scores = head.scores != nullptr && head.scores->type.has_rank() &&
                            head.scores->type.rank() == walk.class_axis_rank;
  if (is_of_scores && walk.class_axis > 0) head.class_axis = walk.class_axis;
  if (head.kind == HeadKind::kMargins) head.probabilities = nullptr;
  if (head.kind == HeadKind::kProbabilities) {
    if (head.probabilities == nullptr) head.probabilities = walk.value;
    head.scores = head.probabilities;
  }
  // A regression may well return one column of a matrix: the rest of it is not needed; and its
  // rows are those of the output.
  if (head.kind == HeadKind::kValues && walk.regression != nullptr) {
    head.scores = walk.regression;
  }
  return head;
}

}  // namespace onnxgrad::train

#include "train/heads/heads.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "ir/uses.h"
#include "train/heads/head_evidence.h"
#include "train/heads/head_patterns.h"
#include "train/losses/class_axis.h"
#include "train/losses/losses.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

template <class Function>
bool is(const LossFunction& function) {
  return std::holds_alternative<Function>(function);
}

// Better heads first: scores before probabilities are more specific than a plain value.
int rank_of(const Head& head) {
  switch (head.kind) {
    case HeadKind::kSoftmax:
    case HeadKind::kSigmoid:
    case HeadKind::kSigmoids:
    case HeadKind::kOneVsRest:
    case HeadKind::kModifiedHuber:
      return 0;
    case HeadKind::kProbabilities:
      return 1;
    case HeadKind::kMargins:
    case HeadKind::kScores:
      return 2;
    case HeadKind::kValues:
      return 3;
  }
  return 3;
}

bool is_usable(const Head& head) {
  return head.scores != nullptr && head.scores->type.is_tensor() &&
         is_floating(head.scores->type.dtype) && head.scores->producer != nullptr;
}

// Number of columns of scores along that axis; 0 if it is not known.
std::int64_t column_count(const Value& scores, std::int64_t axis = 1) {
  if (is_single_column(scores)) return 1;
  const ir::Type& type = scores.type;
  if (!type.has_rank() || type.rank() < 2) return 0;
  const ir::Dim& columns = type.shape->at(static_cast<std::size_t>(axis));
  return columns.is_static() ? columns.value() : 0;
}

// Number of classes that scores of this shape can distinguish; 0 if it is not known.
std::int64_t class_columns(const Value& scores, std::int64_t axis = 1) {
  const std::int64_t columns = column_count(scores, axis);
  return columns == 1 ? 2 : columns;
}

// A sigmoid per column without division by their sum: several labels per row, unless the label
// output takes the largest.
void settle_sigmoids(std::vector<Head>& heads) {
  Head& best = heads.front();
  if (best.kind != HeadKind::kSigmoids) return;
  const bool one_label = std::ranges::any_of(heads, [&](const Head& other) {
    return other.kind == HeadKind::kOneVsRest && other.scores == best.scores;
  });
  if (one_label) best.kind = HeadKind::kOneVsRest;
}

// Another output may have classes that the best one lacks: the label next to the probabilities.
void borrow_classes(std::vector<Head>& heads) {
  Head& best = heads.front();
  if (best.classes.labels.is_defined()) return;
  const std::int64_t wanted = class_columns(*best.scores);
  for (const Head& other : heads) {
    const Tensor& labels = other.classes.labels;
    if (!labels.is_defined()) continue;
    if (other.scores == best.scores || (other.from_labels && labels.num_elements() == wanted)) {
      best.classes = other.classes;
      return;
    }
  }
}

// Labels that are chosen by votes (pairs of classes, neighbours) have no scores that a gradient
// reaches. The scores are then another output with a column for each class, unless the votes are
// counted from it.
void find_scores_of_votes(std::vector<Head>& heads, const std::vector<Head>& votes) {
  for (Head& head : heads) {
    if (head.kind != HeadKind::kValues) continue;
    for (const Head& vote : votes) {
      if (!vote.from_labels || !vote.classes.labels.is_defined()) continue;
      if (class_columns(*head.scores) != vote.classes.labels.num_elements()) continue;
      if (ir::ancestors_of({&vote.scores, 1}).contains(head.scores)) continue;
      const bool are_shares = is_never_negative(head.scores);
      head.kind = are_shares ? HeadKind::kProbabilities : HeadKind::kScores;
      if (are_shares) head.probabilities = head.scores;
      head.classes = vote.classes;
    }
  }
}

// The order of the columns is that of the labels: of the scores of two outputs, one the negative
// of the other, those that the label is chosen by.
void prefer_scores_of_labels(std::vector<Head>& heads) {
  const Head& best = heads.front();
  if (best.kind != HeadKind::kMargins || best.from_labels) return;
  const auto chosen = std::ranges::find_if(heads, [&](const Head& other) {
    return other.kind == HeadKind::kMargins && other.from_labels && other.scores != best.scores;
  });
  if (chosen != heads.end()) std::rotate(heads.begin(), chosen, chosen + 1);
}

// Whether an output is an input with more appended to it, as the keys and values of a decoder are.
bool is_grown_input(const Value* output) {
  constexpr int kMostConcats = 4;
  const Value* value = output;
  for (int i = 0; i < kMostConcats; ++i) {
    const Node* node = value->producer;
    while (node != nullptr && ir::is_op(*node, {"Identity"})) node = node->input(0)->producer;
    if (node == nullptr || !ir::is_op(*node, {"Concat"})) return false;
    const Value* inner = nullptr;  // a part that was appended to before
    for (const Value* part : node->inputs) {
      if (part == nullptr || part->is_initializer()) continue;
      if (part->producer == nullptr) return true;
      if (ir::is_op(*part->producer, {"Concat", "Identity"})) inner = part;
    }
    if (inner == nullptr) return false;
    value = inner;
  }
  return false;
}

std::vector<Head> find_heads(const ir::Graph& graph) {
  const auto is_before = [](const Head& a, const Head& b) {
    const int first = rank_of(a);
    const int second = rank_of(b);
    return first != second ? first < second : !a.from_labels && b.from_labels;
  };
  std::vector<Head> heads;
  std::vector<Head> without_gradient;
  const bool has_others = !std::ranges::all_of(graph.outputs, is_grown_input);
  for (Value* output : graph.outputs) {
    if (has_others && is_grown_input(output)) continue;
    Head head = walk_back(output);
    head.output = output->name;
    if (!is_usable(head)) continue;
    (may_have_gradient(head.scores) ? heads : without_gradient).push_back(std::move(head));
  }
  find_scores_of_votes(heads, without_gradient);
  std::ranges::stable_sort(heads, is_before);  // equal ones in the order of the outputs
  std::ranges::stable_sort(without_gradient, is_before);
  std::ranges::move(without_gradient, std::back_inserter(heads));
  if (heads.empty()) return heads;
  prefer_scores_of_labels(heads);
  settle_sigmoids(heads);
  borrow_classes(heads);
  return heads;
}

LossFunction function_for(const Head& head) {
  switch (head.kind) {
    case HeadKind::kSoftmax:
    case HeadKind::kScores:
      return SoftmaxCrossEntropy{};
    case HeadKind::kSigmoid:
    case HeadKind::kSigmoids:
      return BinaryCrossEntropy{};
    case HeadKind::kOneVsRest:  // two columns: sigmoid(s) and sigmoid(-s), one problem
      return OneVsRest{.average = column_count(*head.scores) == 2};
    case HeadKind::kModifiedHuber:
      return OneVsRest{.kind = OneVsRest::Kind::kModifiedHuber};
    case HeadKind::kMargins:
      return OneVsRest{.kind = OneVsRest::Kind::kHinge};
    case HeadKind::kProbabilities:
      return NegativeLogLikelihood{};
    case HeadKind::kValues:
      return SquaredError{};
  }
  return SquaredError{};
}

std::vector<std::string> output_names(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const Value* output : graph.outputs) names.push_back(output->name);
  return names;
}

[[noreturn]] void no_head(const ir::Graph& graph) {
  const auto names = output_names(graph);
  throw ModelError({.what = "no output that a loss can be applied to",
                    .detail = "Searched back from " + base::quote_list(names) +
                              " for floating-point scores and found none.",
                    .hint = "Name an output or inner value in the loss: "
                            "loss='squared_error:output=VALUE'."});
}

// A choice between several plain outputs is the user's. One number is most likely already a loss.
[[noreturn]] void ambiguous(const std::vector<Head>& heads) {
  std::vector<std::string> names;
  std::string own;
  for (const Head& head : heads) {
    names.push_back(head.output);
    const ir::Type& type = head.scores->type;
    if (own.empty() && type.has_rank() && type.rank() == 0) own = head.output;
  }
  if (own.empty()) own = names.front();
  throw ModelError(
      {.what = "several outputs could take the loss: " + base::quote_list(names),
       .hint = "Name one in the loss, such as loss='squared_error:output=" + heads.front().output +
               "'; if '" + own + "' is the loss already, pass loss='output:" + own + "'."});
}

Value* find_value(const ir::Graph& graph, const std::string& name) {
  for (Value* output : graph.outputs) {
    if (output->name == name) return output;
  }
  if (Value* inner = graph.find(name)) return inner;
  auto names = output_names(graph);
  for (const Node* node : graph.nodes) {
    for (const Value* value : node->outputs) {
      if (value != nullptr) names.push_back(value->name);
    }
  }
  throw ModelError({.what = "no output or value '" + name + "'",
                    .detail = "Outputs: " + base::quote_list(output_names(graph)) + ".",
                    .hint = base::nearest_or(name, names)});
}

// "Softmax", or for a pattern of several nodes what it represents.
std::string squashing_of(const Head& head) {
  switch (head.kind) {
    case HeadKind::kSoftmax:
      return head.is_log ? "a LogSoftmax" : "a Softmax";
    case HeadKind::kSigmoid:
    case HeadKind::kSigmoids:
    case HeadKind::kOneVsRest:
      return "a Sigmoid";
    default:
      return "what makes probabilities";
  }
}

[[noreturn]] void squashed_twice(const LossFunction& function, const Head& head,
                                 const std::string& name) {
  const bool has_scores = head.kind != HeadKind::kProbabilities;
  throw ModelError(
      {.what = describe(function) + " takes scores, but '" + name + "' comes after " +
               squashing_of(head),
       .where = {.value = name},
       .detail = "The probabilities would be squashed a second time and training would stall.",
       .hint = has_scores ? "Apply it to '" + head.scores->name +
                                "', or omit the output of the loss: it is then found."
                          : "Use loss='negative_log_likelihood' on probabilities."});
}

[[noreturn]] void wrong_columns(const LossFunction& function, const Value& scores,
                                const std::string& wanted, const std::string& better) {
  throw ModelError({.what = describe(function) + " takes " + wanted + ", but '" + scores.name +
                            "' is " + scores.type.to_string(),
                    .where = {.value = scores.name},
                    .hint = "Use loss='" + better + "'."});
}

// Losses of one score per row and of one score per class are easily confused.
void check_columns(const ResolvedLoss& resolved, const Head& head) {
  const Value& scores = *resolved.scores;
  const std::int64_t columns =
      resolved.is_class_axis_known ? column_count(scores, resolved.class_axis) : 0;
  if (columns == 1 && has_class_axis(resolved.function)) {
    wrong_columns(resolved.function, scores, "one column per class",
                  head.kind == HeadKind::kProbabilities ? "log_loss" : "binary_cross_entropy");
  }
  const bool one_of_classes = head.kind != HeadKind::kSigmoids && head.kind != HeadKind::kValues;
  if (columns > 1 && one_of_classes && is<BinaryCrossEntropy>(resolved.function)) {
    wrong_columns(resolved.function, scores, "one score per row",
                  head.kind == HeadKind::kOneVsRest ? "one_vs_rest_log" : "softmax_cross_entropy");
  }
  if (columns > 1 && one_of_classes && is<LogLoss>(resolved.function)) {
    wrong_columns(resolved.function, scores, "one probability per row", "negative_log_likelihood");
  }
}

// The value of `head` that the function reads.
Value* place_of(const ResolvedLoss& resolved, const Head& head) {
  if (takes_scores(resolved.function)) {
    if (head.kind == HeadKind::kProbabilities) {
      squashed_twice(resolved.function, head, head.scores->name);
    }
    return head.scores;
  }
  return head.probabilities != nullptr ? head.probabilities : head.scores;
}

// The function as applied to `head`: a likelihood of logarithms is a cross-entropy of scores.
LossFunction adapt(const LossFunction& function, const Head& head) {
  if (is<AutoLoss>(function)) return function_for(head);
  if (is<NegativeLogLikelihood>(function) && head.is_log) return SoftmaxCrossEntropy{};
  return function;
}

// Combines scores and function for a value named by the user.
void place_explicitly(const Head& head, Value* value, ResolvedLoss& resolved) {
  const bool is_place = value->type.is_tensor() && is_floating(value->type.dtype);
  if (!is_place) {  // labels and maps only show where to look
    resolved.scores = place_of(resolved, head);
    return;
  }
  const bool behind_probabilities = head.probabilities != nullptr && head.scores != value;
  if (takes_scores(resolved.function) &&
      (behind_probabilities || head.kind == HeadKind::kProbabilities)) {
    if (head.is_log &&
        (is<SoftmaxCrossEntropy>(resolved.function) || is<KlDivergence>(resolved.function))) {
      resolved.scores =
          head.scores;  // the softmax of logarithms of probabilities gives these again
      return;
    }
    squashed_twice(resolved.function, head, value->name);
  }
  resolved.scores = value;
}

// "(scores before output 'probabilities')"
std::string describe_place(const ResolvedLoss& resolved, const Head& head) {
  const LossInfo& info = resolved.info;
  if (is<NegativeLogLikelihood>(info.function)) {
    const std::string of = info.output != info.scores && !info.output.empty()
                               ? "probabilities before output '" + info.output + "', "
                               : "";
    const std::string why = head.kind == HeadKind::kProbabilities ? "no scores found" : "as asked";
    return " (" + of + why + "; the logarithm is clamped)";
  }
  if (info.output == info.scores || info.output.empty()) return "";
  const bool classes = info.is_classifier || head.kind == HeadKind::kSigmoids;
  return std::string(" (") + (classes ? "scores " : "") + "before output '" + info.output + "')";
}

// ", along axis 2 of [N, 7, 10]", if the scores have more than one candidate.
std::string describe_axis(const ResolvedLoss& resolved) {
  const LossInfo& info = resolved.info;
  if (!has_class_axis(info.function) || resolved.scores->type.rank() < 3) return "";
  const std::string of = " of " + resolved.scores->type.to_string();
  const std::string axis = ", along axis " + std::to_string(resolved.class_axis) + of;
  return axis + (info.is_class_axis_open ? ", or the one missing from the labels" : "");
}

// "loss: softmax cross-entropy on 'add_result1' (scores before output 'probabilities'), 10 classes
// from initializer 'classes'"
std::string describe_choice(const ResolvedLoss& resolved, const Head& head) {
  const LossInfo& info = resolved.info;
  std::string line = "loss: " + describe(info.function) + " on '" + info.scores + "'" +
                     describe_place(resolved, head);
  if (info.num_classes > 0) {
    line += ", " + std::to_string(info.num_classes) + " classes";
    if (!head.classes.source.empty()) line += " from " + head.classes.source;
  }
  line += describe_axis(resolved);
  if (info.one_hot_targets) line += ", of one-hot targets";
  return line;
}

// Number of classes from the list, else from the scores' columns; 0 if unknown.
std::int64_t count_classes(const ResolvedLoss& resolved, const ClassList& classes) {
  const std::int64_t columns =
      resolved.is_class_axis_known ? class_columns(*resolved.scores, resolved.class_axis) : 0;
  if (!classes.labels.is_defined()) return columns;
  const std::int64_t listed = classes.labels.num_elements();
  if (columns != 0 && listed != columns) {
    throw ModelError({.what = classes.source + " lists " + std::to_string(listed) +
                              " classes, but '" + resolved.scores->name + "' has scores for " +
                              std::to_string(columns),
                      .where = {.value = resolved.scores->name},
                      .hint = "Export the model again: its labels do not match its scores."});
  }
  return listed;
}

// Head and position for a value named by the user.
Head resolve_named(const ir::Graph& graph, const Loss& loss, ResolvedLoss& resolved) {
  Value* value = find_value(graph, loss.output);
  Head head = walk_back(value);
  head.output = loss.output;
  if (!is_usable(head)) no_head(graph);
  for (const Head& other : find_heads(graph)) {
    if (other.scores != head.scores) continue;
    if (!head.classes.labels.is_defined()) head.classes = other.classes;
    // One label per row, according to the label output.
    if (head.kind == HeadKind::kSigmoids) head.kind = other.kind;
  }
  resolved.function = adapt(loss.function, head);
  if (is<AutoLoss>(loss.function) || loss.walk_back) {
    resolved.scores = place_of(resolved, head);
  } else if (is<NegativeLogLikelihood>(loss.function) && head.is_log) {
    resolved.scores = head.scores;
  } else {
    place_explicitly(head, value, resolved);
  }
  return head;
}

// Head and position among the outputs.
Head resolve_among_outputs(const ir::Graph& graph, const Loss& loss, ResolvedLoss& resolved) {
  const auto heads = find_heads(graph);
  if (heads.empty()) no_head(graph);
  const Head& head = heads.front();
  const bool bare = head.kind == HeadKind::kValues;
  if (bare &&
      std::ranges::any_of(heads, [&](const Head& other) { return other.scores != head.scores; })) {
    ambiguous(heads);
  }
  resolved.function = adapt(loss.function, head);
  resolved.scores = place_of(resolved, head);
  return head;
}

}  // namespace

Value* find_loss_value(const ir::Graph& graph, const std::string& name) {
  return find_value(graph, name);
}

// The output or value that is already the loss.
ResolvedLoss resolve_output(const ir::Graph& graph, const Loss& loss) {
  if (loss.output.empty()) {
    throw ModelError({.what = "the model's own loss: no output is named",
                      .detail = "Outputs: " + base::quote_list(output_names(graph)) + ".",
                      .hint = "Name it: loss='output:NAME'."});
  }
  Value* value = find_value(graph, loss.output);
  if (!value->type.is_tensor() || !is_floating(value->type.dtype)) {
    throw ModelError({.what = "the model's own loss: '" + value->name + "' is " +
                              value->type.to_string() + ", expected a floating-point tensor",
                      .where = {.value = value->name},
                      .hint = "Name the output that is the loss: loss='output:NAME'."});
  }
  ResolvedLoss resolved{.function = loss.function, .scores = value, .info = {}};
  resolved.info.function = loss.function;
  resolved.info.scores = resolved.info.output = loss.output;
  resolved.info.line = "loss: the model's own, '" + loss.output + "'";
  return resolved;
}

ResolvedLoss resolve_loss(const ir::Graph& graph, const Loss& loss) {
  check_loss_options(loss.function);
  if (is<OutputLoss>(loss.function)) return resolve_output(graph, loss);
  ResolvedLoss resolved{.function = loss.function, .scores = nullptr, .info = {}};
  const Head head = loss.output.empty() ? resolve_among_outputs(graph, loss, resolved)
                                        : resolve_named(graph, loss, resolved);
  const ClassAxis axis =
      choose_class_axis(resolved.function, *resolved.scores, loss.class_axis, head.class_axis);
  resolved.class_axis = axis.axis;
  // With labels still to come, the number of classes is not known either.
  resolved.is_class_axis_known = axis.is_known || axis.is_settled;
  check_columns(resolved, head);
  target_type(resolved.function, *resolved.scores, axis.axis);  // refuses scores that do not match
  LossInfo& info = resolved.info;
  if (has_class_axis(resolved.function)) info.class_axis = axis.axis;
  info.is_class_axis_open = !axis.is_settled;
  info.function = resolved.function;
  info.scores = resolved.scores->name;
  info.output = head.output;
  info.is_classifier = is_classification(resolved.function, *resolved.scores);
  info.may_be_values = is<UserLoss>(resolved.function) && head.kind == HeadKind::kValues;
  if (info.is_classifier) {
    info.num_classes = count_classes(resolved, head.classes);
    info.classes = head.classes.labels;
    info.one_hot_targets = loss.one_hot_targets;
  }
  info.line = describe_choice(resolved, head);
  return resolved;
}

}  // namespace onnxgrad::train

#include "train/heads.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "train/losses.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

constexpr std::string_view kMl = "ai.onnx.ml";

/// What has been passed on the way back from an output.
struct Walk {
  Value* value = nullptr;
  Value* probabilities = nullptr;
  bool labels = false;                ///< an ArgMax
  bool normalized = false;            ///< division by the sum of the row
  bool two_columns = false;           ///< [1 - p, p]
  std::optional<HeadKind> kind = {};  ///< set by the last step
  ClassList classes = {};
};

// A step looks at the producer of walk.value and moves walk.value to an input of it; false: it
// stays.
using Step = bool (*)(const Node& node, Walk& walk);

void note_classes(Walk& walk, Tensor labels, std::string source) {
  if (walk.classes.labels.is_defined() || !labels.is_defined()) return;
  walk.classes = {.labels = labels.reshaped(Dims{labels.num_elements()}),
                  .source = std::move(source)};
}

bool pass(const Node& node, Walk& walk) {
  walk.value = node.input(0);
  return true;
}

// Only matrices are looked behind: a Reshape that merges rows and time steps is not undone.
bool pass_reshape(const Node& node, Walk& walk) {
  const Value* before = node.input(0);
  if (!walk.labels && (!before->type.has_rank() || before->type.rank() > 2)) return false;
  return pass(node, walk);
}

bool pass_argmax(const Node& node, Walk& walk) {
  walk.labels = true;
  return pass(node, walk);
}

// Gather or ArrayFeatureExtractor: picks labels from the list of classes by number.
bool pass_lookup(const Node& node, Walk& walk) {
  const Value* table = node.input(0);
  if (table == nullptr || !table->is_initializer() || node.input(1) == nullptr) return false;
  const DataType dtype = table->initializer.dtype();
  if (dtype == DataType::kInt64 || dtype == DataType::kString) {
    note_classes(walk, table->initializer, "initializer '" + table->name + "'");
  } else if (is_integer(dtype)) {
    note_classes(walk, table->initializer.cast(DataType::kInt64),
                 "initializer '" + table->name + "'");
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
  if (node.string_attribute("norm", "MAX") != "L1") return false;
  walk.normalized = true;
  walk.probabilities = walk.probabilities == nullptr ? walk.value : walk.probabilities;
  return pass(node, walk);
}

bool is_ones(const Value* value) {
  if (value == nullptr || !value->is_initializer() || !is_floating(value->initializer.dtype()) ||
      value->initializer.num_elements() != 1) {
    return false;
  }
  return value->initializer.to_doubles().front() == 1;
}

// Concat(1 - p, p): the columns of a two-class model with one score.
bool pass_two_columns(const Node& node, Walk& walk) {
  if (node.inputs.size() != 2) return false;
  Value* positive = node.input(1);
  const Node* complement = node.input(0)->producer;
  if (complement == nullptr || complement->op_type != "Sub" || !is_ones(complement->input(0)) ||
      complement->input(1) != positive) {
    return false;
  }
  walk.two_columns = true;
  walk.probabilities = walk.probabilities == nullptr ? walk.value : walk.probabilities;
  walk.value = positive;
  return true;
}

bool is_last_axis(const Node& node, std::int64_t fallback) {
  const std::int64_t axis = node.int_attribute("axis", fallback);
  const Value* x = node.input(0);
  return axis == -1 ||
         (x->type.has_rank() && axis == static_cast<std::int64_t>(x->type.rank()) - 1);
}

bool end_softmax(const Node& node, Walk& walk) {
  const bool classes_second = node.int_attribute("axis", -1) == 1;  // images: [N, C, H, W]
  if (!is_last_axis(node, -1) && !classes_second) return false;
  if (walk.probabilities == nullptr) walk.probabilities = walk.value;
  walk.kind = HeadKind::kSoftmax;
  return pass(node, walk);
}

bool is_single_column(const Value& value) {
  if (!value.type.has_rank() || value.type.rank() == 0) return false;
  if (value.type.rank() == 1) return true;
  const ir::Dim& last = value.type.shape->back();
  return value.type.rank() == 2 && last.is_static() && last.value() == 1;
}

bool end_sigmoid(const Node& node, Walk& walk) {
  if (walk.probabilities == nullptr) walk.probabilities = walk.value;
  if (walk.two_columns || is_single_column(*node.input(0))) {
    walk.kind = HeadKind::kSigmoid;
  } else {
    walk.kind = walk.normalized || walk.labels ? HeadKind::kOneVsRest : HeadKind::kSigmoids;
  }
  return pass(node, walk);
}

struct Rule {
  std::string_view domain;
  std::string_view op_type;
  Step step;
};

constexpr std::array kRules{
    Rule{"", "Identity", pass},
    Rule{"", "Cast", pass},
    Rule{"", "Squeeze", pass_reshape},
    Rule{"", "Unsqueeze", pass_reshape},
    Rule{"", "Flatten", pass_reshape},
    Rule{"", "Reshape", pass_reshape},
    Rule{"", "ArgMax", pass_argmax},
    Rule{"", "Gather", pass_lookup},
    Rule{kMl, "ArrayFeatureExtractor", pass_lookup},
    Rule{kMl, "LabelEncoder", pass_label_encoder},
    Rule{kMl, "ZipMap", pass_zip_map},
    Rule{kMl, "Normalizer", pass_normalizer},
    Rule{"", "Concat", pass_two_columns},
    Rule{"", "Softmax", end_softmax},
    Rule{"", "LogSoftmax", end_softmax},
    Rule{"", "Sigmoid", end_sigmoid},
};

const Rule* find_rule(const Node& node) {
  const auto* rule = std::ranges::find_if(kRules, [&](const Rule& candidate) {
    return candidate.op_type == node.op_type && candidate.domain == node.domain;
  });
  return rule == kRules.end() ? nullptr : rule;
}

}  // namespace

Head walk_back(Value* value) {
  Walk walk{.value = value};
  while (!walk.kind && walk.value != nullptr && walk.value->producer != nullptr) {
    const Node& node = *walk.value->producer;
    const Rule* rule = find_rule(node);
    if (rule == nullptr || !rule->step(node, walk)) break;
  }
  Head head{.scores = walk.value,
            .probabilities = walk.probabilities,
            .from_labels = walk.labels,
            .classes = std::move(walk.classes)};
  if (walk.kind) {
    head.kind = *walk.kind;
  } else if (walk.normalized || walk.two_columns) {
    head.kind = HeadKind::kProbabilities;
    head.scores = walk.probabilities;
  } else if (walk.labels || head.classes.labels.is_defined()) {
    head.kind = HeadKind::kScores;
  }
  return head;
}

namespace {

// Better heads first: scores behind probabilities tell more than a bare value.
int rank_of(const Head& head) {
  switch (head.kind) {
    case HeadKind::kSoftmax:
    case HeadKind::kSigmoid:
    case HeadKind::kSigmoids:
    case HeadKind::kOneVsRest:
      return 0;
    case HeadKind::kProbabilities:
      return 1;
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

std::vector<Head> find_heads(const ir::Graph& graph) {
  std::vector<Head> heads;
  for (Value* output : graph.outputs) {
    Head head = walk_back(output);
    head.output = output->name;
    if (is_usable(head)) heads.push_back(std::move(head));
  }
  std::ranges::stable_sort(heads, [](const Head& a, const Head& b) {
    const int first = rank_of(a);
    const int second = rank_of(b);
    return first != second ? first < second : !a.from_labels && b.from_labels;
  });
  if (heads.empty()) return heads;
  // The label output may know classes that the probabilities do not.
  for (const Head& other : heads) {
    Head& best = heads.front();
    if (!best.classes.labels.is_defined() && other.scores == best.scores) {
      best.classes = other.classes;
    }
  }
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
    case HeadKind::kOneVsRest:
      return OneVsRest{};
    case HeadKind::kProbabilities:
      return NegativeLogLikelihood{};
    case HeadKind::kValues:
      return SquaredError{};
  }
  return SquaredError{};
}

bool wants_scores(const LossFunction& function) {
  return std::holds_alternative<SoftmaxCrossEntropy>(function) ||
         std::holds_alternative<BinaryCrossEntropy>(function) ||
         std::holds_alternative<OneVsRest>(function);
}

std::vector<std::string> output_names(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const Value* output : graph.outputs) names.push_back(output->name);
  return names;
}

[[noreturn]] void no_head(const ir::Graph& graph) {
  const auto names = output_names(graph);
  throw ModelError({.what = "no output that a loss can be put on",
                    .detail = "Looked back from " + base::quote_list(names) +
                              " for floating-point scores and found none.",
                    .mend = "Name an output or inner value with output=."});
}

// A choice between several bare outputs is the user's.
[[noreturn]] void ambiguous(const std::vector<Head>& heads) {
  std::vector<std::string> names;
  for (const Head& head : heads) names.push_back(head.output);
  throw ModelError({.what = "several outputs could take the loss: " + base::quote_list(names),
                    .mend = "Name one with output=."});
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
  throw ModelError({.what = "no output or value '" + name + "'." + base::did_you_mean(name, names),
                    .detail = "Outputs: " + base::quote_list(output_names(graph)) + "."});
}

// Puts scores and function together for a value that the user named.
void place_explicitly(const Head& head, Value* value, ResolvedLoss& resolved) {
  const bool behind_probabilities = head.probabilities != nullptr && head.scores != value;
  if (wants_scores(resolved.function) && behind_probabilities) {
    const std::string function = describe(resolved.function);
    const bool has_scores = head.kind != HeadKind::kProbabilities;
    throw ModelError(
        {.what = function + " takes scores, but '" + value->name + "' is behind " +
                 (head.probabilities->producer->op_type),
         .where = {.value = value->name},
         .detail = "The probabilities would be squashed a second time and training would stall.",
         .mend = has_scores ? "Put it on '" + head.scores->name + "' (output='" +
                                  head.scores->name + "'), or leave output= out."
                            : "Use loss='negative_log_likelihood' on probabilities."});
  }
  resolved.scores = value;
}

// "loss: softmax cross-entropy on 'add_result1' (scores behind output 'probabilities'), 10 classes
// from initializer 'classes'"
std::string describe_choice(const ResolvedLoss& resolved, const Head& head) {
  const LossInfo& info = resolved.info;
  std::string line = "loss: " + describe(resolved.function) + " on '" + info.scores + "'";
  if (info.output != info.scores && !info.output.empty()) {
    const bool probabilities = std::holds_alternative<NegativeLogLikelihood>(resolved.function);
    const bool classes = info.is_classifier || head.kind == HeadKind::kSigmoids;
    line += std::string(" (") +
            (probabilities ? "probabilities "
             : classes     ? "scores "
                           : "") +
            "behind output '" + info.output + "')";
  }
  if (info.num_classes > 0) {
    line += ", " + std::to_string(info.num_classes) + " classes";
    if (!head.classes.source.empty()) line += " from " + head.classes.source;
  }
  return line;
}

// Number of classes by the list, else by the scores' columns; 0 if neither tells.
std::int64_t count_classes(const ResolvedLoss& resolved, const ClassList& classes) {
  const ir::Type& type = resolved.scores->type;
  std::int64_t columns = 0;
  if (is_single_column(*resolved.scores)) {
    columns = 2;
  } else if (type.has_rank() && type.rank() >= 2 && (*type.shape)[1].is_static()) {
    columns = (*type.shape)[1].value();
  }
  if (!classes.labels.is_defined()) return columns;
  const std::int64_t listed = classes.labels.num_elements();
  if (columns != 0 && listed != columns) {
    throw ModelError({.what = classes.source + " lists " + std::to_string(listed) +
                              " classes, but '" + resolved.scores->name + "' has scores for " +
                              std::to_string(columns),
                      .where = {.value = resolved.scores->name}});
  }
  return listed;
}

}  // namespace

ResolvedLoss resolve_loss(const ir::Graph& graph, const Loss& loss) {
  ResolvedLoss resolved{.function = loss.function, .scores = nullptr, .info = {}};
  const bool automatic = std::holds_alternative<AutoLoss>(loss.function);
  Head head;
  if (!loss.output.empty()) {
    Value* value = find_value(graph, loss.output);
    head = walk_back(value);
    head.output = loss.output;
    if (automatic) {
      if (!is_usable(head)) no_head(graph);
      resolved.function = function_for(head);
      resolved.scores = head.scores;
    } else {
      place_explicitly(head, value, resolved);
    }
  } else {
    const auto heads = find_heads(graph);
    if (heads.empty()) no_head(graph);
    head = heads.front();
    const bool bare = head.kind == HeadKind::kValues;
    if (bare && heads.size() > 1 && heads[1].scores != head.scores) ambiguous(heads);
    if (automatic) resolved.function = function_for(head);
    const bool on_probabilities =
        std::holds_alternative<NegativeLogLikelihood>(resolved.function) ||
        std::holds_alternative<SquaredError>(resolved.function);
    resolved.scores =
        on_probabilities && head.probabilities != nullptr ? head.probabilities : head.scores;
  }
  target_type(resolved.function, *resolved.scores);  // refuses scores that do not fit
  LossInfo& info = resolved.info;
  info.function = resolved.function;
  info.scores = resolved.scores->name;
  info.output = head.output;
  info.is_classifier = is_classification(resolved.function, *resolved.scores);
  if (info.is_classifier) {
    info.num_classes = count_classes(resolved, head.classes);
    info.classes = head.classes.labels;
  }
  info.line = describe_choice(resolved, head);
  return resolved;
}

}  // namespace onnxgrad::train

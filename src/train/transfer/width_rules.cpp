#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "train/transfer/width_change.h"
#include "train/transfer/width_rules.h"

// Rules of WidthChange: how the axis of the classes passes an operator, and which of its constants
// and attributes depend on the number of classes.

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;
using width_rules::carried_of;
using width_rules::carry_rest;
using width_rules::Integers;
using width_rules::integers_of;
using width_rules::positive;
using width_rules::refuse;
using Fill = WidthChange::Fill;
using Rule = std::string (*)(Node& node, WidthChange& change);

std::string pass_cast(Node& node, WidthChange& change) {
  const Carried state = carried_of(node, change);
  if (state.is_label) {
    // Numbers that became texts are not converted.
    change.edit([&node, &change] {
      if (change.labels(DataType::kInt64).dtype() != DataType::kString) return;
      node.op_type = "Identity";
      node.attributes.clear();
    });
  }
  return width_rules::pass_same(node, change);
}

std::string pass_sigmoid(Node& node, WidthChange& change) {
  Carried state = carried_of(node, change);
  if (!state.has_classes || change.old_width() != 1) return width_rules::pass_same(node, change);
  state.is_squashed = true;
  state.scores = node.inputs[0];
  change.carry(node.output(0), state);
  // One score between two classes: with more of them, probabilities of one row add up to 1.
  const auto& outputs = change.graph().outputs;
  const bool is_output = std::ranges::find(outputs, node.output(0)) != outputs.end();
  if (is_output && change.new_width() != 1 && state.axis == state.rank - 1) {
    change.edit([&node] {
      node.op_type = "Softmax";
      node.set_attribute("axis", std::int64_t{-1});
    });
  }
  return "";
}

// Classes are channels.
std::string pass_channels(Node& node, WidthChange& change) {
  const Carried& state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change);
  if (state.axis != 1) return refuse(node, "reads other channels");
  return width_rules::pass_same(node, change);
}

std::string pass_resize(Node& node, WidthChange& change) {
  const Carried state = carried_of(node, change);
  if (!state.has_classes || change.find(node.input(0)) == nullptr) return carry_rest(node, change);
  const std::size_t last = node.inputs.size() - 1;
  const Integers sizes = last == 3 ? integers_of(node.input(last)) : Integers{};
  const auto axis = static_cast<std::size_t>(state.axis);
  if (axis < sizes.size() && sizes[axis] == change.old_width()) {
    Integers changed = sizes;
    changed[axis] = change.new_width();
    change.replace_input(node, last,
                         Tensor::from(changed, Dims{static_cast<std::int64_t>(changed.size())}));
  }
  return width_rules::pass_same(node, change);
}

// A constant operand of an element-wise operator: with one element for each class it is resized.
void resize_operand(Node& node, std::size_t input, const Carried& state, WidthChange& change) {
  const Tensor& numbers = *WidthChange::constant(node.inputs[input]);
  const auto rank = static_cast<std::int64_t>(numbers.dims().rank());
  const std::int64_t axis = state.axis - (state.rank - rank);
  if (axis < 0 || axis >= rank) return;
  const std::int64_t size = numbers.dims()[static_cast<std::size_t>(axis)];
  const bool is_sum = is_op(node, {"Add", "Sub", "Sum"});
  // The bias of a layer of one score.
  const bool is_bias = is_sum && !state.is_squashed && state.scores == nullptr;
  if (size != change.old_width() || (size == 1 && (!is_bias || rank < 1))) return;
  if (!is_floating(numbers.dtype())) {
    change.resize(node, input, static_cast<std::size_t>(axis), Fill::kLast);
    return;
  }
  if (is_bias && is_op(node, {"Add"})) change.note_bias(node, input);
  change.resize(node, input, static_cast<std::size_t>(axis), is_sum ? Fill::kZeros : Fill::kOnes);
}

// True if `operand` cannot have an element for each class, because it has one along that axis.
bool is_shared_by_classes(const Value* operand, const Carried& state, const WidthChange& change) {
  const ir::Type type = change.type_of(operand);
  if (!type.has_rank()) return false;
  const auto rank = static_cast<std::int64_t>(type.rank());
  const std::int64_t axis = state.axis - (state.rank - rank);
  return axis < 0 || type.shape->at(static_cast<std::size_t>(axis)) == ir::Dim(1);
}

std::string pass_elementwise(Node& node, WidthChange& change) {
  Carried state;
  for (const Value* input : node.inputs) {
    const Carried* given = change.find(input);
    if (given == nullptr) continue;
    if (given->has_classes && state.has_classes &&
        (given->rank - given->axis != state.rank - state.axis)) {
      return refuse(node, "combines its results along another axis");
    }
    const bool is_better = given->has_classes && (!state.has_classes || given->rank > state.rank);
    if (is_better || !state.has_classes) {
      const bool was_squashed = state.is_squashed;
      state = *given;
      state.is_squashed = state.is_squashed || was_squashed;
    }
  }
  if (!state.has_classes) {
    // Number of classes in the formula of a converter for rows of zeros.
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const Value* value = node.inputs[i];
      const Tensor* numbers = WidthChange::constant(value);
      if (numbers == nullptr || !value->name.starts_with("num_classes")) continue;
      if (numbers->num_elements() != 1) continue;
      change.replace_input(
          node, i,
          Tensor::scalar_of(numbers->dtype(), static_cast<double>(change.classes()))
              .reshaped(numbers->dims()));
    }
    return carry_rest(node, change);
  }
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Value* value = node.inputs[i];
    if (value == nullptr || change.find(value) != nullptr) continue;
    if (const Tensor* numbers = WidthChange::constant(value)) {
      const auto rank = static_cast<std::int64_t>(numbers->dims().rank());
      if (rank > state.rank) {
        state.axis += rank - state.rank;
        state.rank = rank;
      }
      resize_operand(node, i, state, change);
      continue;
    }
    const auto rank = change.rank_of(value);
    if (!rank || !is_shared_by_classes(value, state, change)) {
      return change.refuse_operand(node, value);
    }
    if (*rank > state.rank) {
      state.axis += *rank - state.rank;
      state.rank = *rank;
    }
  }
  if (is_op(node, {"Add", "Sub"}) && !state.is_squashed && state.scores == nullptr) {
    state.scores = node.output(0);  // a further constant is no bias
  }
  change.carry(node.output(0), state);
  return "";
}

// Scale and shift of each channel.
std::string pass_batch_norm(Node& node, WidthChange& change) {
  const Carried& state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change);
  if (state.axis != 1) return refuse(node, "normalises another axis");
  constexpr std::array kFills{Fill::kOnes, Fill::kZeros, Fill::kZeros, Fill::kOnes};
  for (std::size_t i = 1; i < node.inputs.size() && i <= kFills.size(); ++i) {
    if (WidthChange::constant(node.inputs[i]) == nullptr) return refuse(node, "is not constant");
    change.resize(node, i, 0, kFills[i - 1]);
  }
  change.carry(node.output(0), state);
  return "";
}

std::string pass_arg_max(Node& node, WidthChange& change) {
  const Carried& state = carried_of(node, change);
  if (state.has_classes && positive(node.int_attribute("axis", 0), state.rank) != state.axis) {
    return refuse(node, "goes over another axis");
  }
  return carry_rest(node, change);
}

std::string pass_top_k(Node& node, WidthChange& change) {
  const Carried& state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change);
  if (positive(node.int_attribute("axis", -1), state.rank) != state.axis) {
    return refuse(node, "goes over another axis");
  }
  const Integers count = integers_of(node.input(1));
  if (count.size() == 1 && count[0] > change.new_width()) {
    change.replace_input(node, 1, Tensor::from(Integers{change.new_width()}, Dims{1}));
  }
  return carry_rest(node, change);
}

// [1 - p, p] or [-s, s] of one score.
std::string pass_two_columns(Node& node, WidthChange& change) {
  if (change.classes() == 2) {
    change.use_one_score();
    return carry_rest(node, change);
  }
  const Carried* best = nullptr;
  for (const Value* input : node.inputs) {
    const Carried* state = change.find(input);
    if (state != nullptr && state->scores != nullptr) best = state;
  }
  if (best == nullptr) return refuse(node, "makes two classes of one score");
  Carried state = *best;
  change.edit([&node, state] {
    node.inputs = {state.scores};
    node.op_type = state.is_squashed ? "Softmax" : "Identity";
    node.attributes.clear();
    if (state.is_squashed) node.set_attribute("axis", std::int64_t{-1});
  });
  change.carry(node.output(0), state);
  return "";
}

std::string pass_concat(Node& node, WidthChange& change) {
  Carried state;
  for (const Value* input : node.inputs) {
    const Carried* given = change.find(input);
    if (given != nullptr && given->has_classes) state = *given;
  }
  if (!state.has_classes) return carry_rest(node, change);
  const std::int64_t axis = positive(node.int_attribute("axis", 1), state.rank);
  for (const Value* input : node.inputs) {
    if (change.find(input) == nullptr) return change.refuse_operand(node, input);
  }
  if (axis == state.axis) {
    if (node.inputs.size() == 1) return width_rules::pass_same(node, change);
    if (node.inputs.size() == 2 && change.old_width() == 1) return pass_two_columns(node, change);
    if (node.inputs.size() == 2 && state.is_second) {  // [1 - p, p]
      change.edit([&node] {
        node.inputs.erase(node.inputs.begin());
        node.op_type = "Identity";
        node.attributes.clear();
      });
      change.carry(node.output(0), state);
      return "";
    }
    return refuse(node, "puts it beside other columns");
  }
  change.carry(node.output(0), state);
  return "";
}

std::string pass_slice(Node& node, WidthChange& change) {
  if (change.find(node.input(0)) == nullptr) return refuse(node, "takes positions from it");
  Carried state = *change.find(node.input(0));
  if (!state.has_classes) return carry_rest(node, change, state.is_label);
  Integers axes =
      node.input(3) != nullptr ? integers_of(node.input(3)) : node.ints_attribute("axes");
  if (axes.empty() && node.input(3) == nullptr) axes = {0};
  if (axes.empty()) return refuse(node, "has axes that are computed");
  const bool is_of_classes = std::ranges::any_of(
      axes, [&](std::int64_t axis) { return positive(axis, state.rank) == state.axis; });
  if (!is_of_classes) return width_rules::pass_same(node, change);
  if (change.keeps_width()) return carry_rest(node, change);
  // The probability of the second of two classes: those of all classes take its place.
  const bool is_second = change.old_width() == 2 && change.classes() > 2 && axes.size() == 1 &&
                         integers_of(node.input(1)) == Integers{1} &&
                         integers_of(node.input(2)) == Integers{2};
  if (!is_second) return refuse(node, "takes some of its columns");
  change.edit([&node, &change] {
    for (std::size_t i = 1; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != nullptr) change.drop(node.inputs[i]);
    }
    node.op_type = "Identity";
    node.inputs.resize(1);
  });
  state.is_second = true;
  change.carry(node.output(0), state);
  return "";
}

// Constant list of labels at the number of a class.
std::string pass_labels(Node& node, WidthChange& change) {
  const Tensor& list = *WidthChange::constant(node.inputs[0]);
  const bool is_vector = list.num_elements() == list.dims()[list.dims().rank() - 1];
  if (!is_vector) return refuse(node, "looks up rows of a table");
  change.note_labels();
  Tensor labels = change.labels(list.dtype());
  Integers dims(list.dims().rank(), 1);
  dims.back() = change.classes();
  change.replace_input(node, 0, labels.reshaped(Dims(dims)));
  return carry_rest(node, change, true);
}

std::string pass_gather(Node& node, WidthChange& change) {
  if (change.find(node.input(0)) == nullptr) {
    const Tensor* list = WidthChange::constant(node.input(0));
    const bool is_list = list != nullptr && list->dims().rank() > 0;
    return is_list ? pass_labels(node, change) : refuse(node, "takes positions from it");
  }
  Carried state = *change.find(node.input(0));
  if (!state.has_classes) return carry_rest(node, change, state.is_label);
  const bool is_extractor = node.op_type == "ArrayFeatureExtractor";
  const std::int64_t axis =
      is_extractor ? state.rank - 1 : positive(node.int_attribute("axis", 0), state.rank);
  if (axis == state.axis) {
    // The decision between two classes: all scores take its place.
    const bool is_second = change.old_width() == 2 && change.classes() > 2 &&
                           integers_of(node.input(1)) == Integers{1};
    if (change.keeps_width()) return carry_rest(node, change);
    if (!is_second || !is_extractor) return refuse(node, "takes some of its columns");
    change.edit([&node, &change] {
      change.drop(node.inputs[1]);
      node.op_type = "Identity";
      node.domain.clear();
      node.inputs.resize(1);
    });
    change.carry(node.output(0), state);
    return "";
  }
  const auto rank = change.rank_of(node.input(1));
  if (!rank) return refuse(node, "has positions of unknown rank");
  if (axis < state.axis) state.axis += *rank - 1;
  state.rank += *rank - 1;
  change.carry(node.output(0), state);
  return "";
}

void set_label_attributes(Node& node, std::string_view ints, std::string_view strings,
                          WidthChange& change) {
  change.note_labels();
  const bool was_text = node.find_attribute(strings) != nullptr &&
                        !std::get<std::vector<std::string>>(*node.find_attribute(strings)).empty();
  const Tensor labels = change.labels(was_text ? DataType::kString : DataType::kInt64);
  change.edit([&node, labels, ints = std::string(ints), strings = std::string(strings)] {
    node.remove_attribute(ints);
    node.remove_attribute(strings);
    if (labels.dtype() == DataType::kString) {
      const auto texts = labels.strings();
      node.set_attribute(strings, std::vector<std::string>(texts.begin(), texts.end()));
    } else {
      node.set_attribute(ints, labels.to_int64s());
    }
  });
}

std::string pass_zip_map(Node& node, WidthChange& change) {
  set_label_attributes(node, "classlabels_int64s", "classlabels_strings", change);
  return carry_rest(node, change, true);
}

std::string pass_label_encoder(Node& node, WidthChange& change) {
  const Carried& state = carried_of(node, change);
  if (state.is_label) return refuse(node, "translates labels");
  if (node.ints_attribute("keys_int64s").empty()) return refuse(node, "translates other numbers");
  set_label_attributes(node, "values_int64s", "values_strings", change);
  Integers keys;
  for (std::int64_t i = 0; i < change.classes(); ++i) keys.push_back(i);
  change.edit([&node, keys] { node.set_attribute("keys_int64s", keys); });
  return carry_rest(node, change, true);
}

// Depth of one-hot rows of class numbers.
std::string pass_one_hot(Node& node, WidthChange& change) {
  const Integers depth = integers_of(node.input(1));
  if (change.find(node.input(0)) == nullptr || depth.size() != 1) {
    return refuse(node, "makes rows of computed length");
  }
  const auto rank = change.rank_of(node.output(0));
  if (depth[0] != change.old_width() || !rank) return refuse(node, "makes rows of another length");
  const Tensor& old = *WidthChange::constant(node.input(1));
  change.replace_input(
      node, 1,
      Tensor::from(Integers{change.classes()}, Dims{1}).reshaped(old.dims()).cast(old.dtype()));
  change.carry(node.output(0), {.has_classes = true,
                                .axis = positive(node.int_attribute("axis", -1), *rank),
                                .rank = *rank});
  return "";
}

// Scores that are rounded to a range of the former ones would be cut off.
std::string pass_dequantize(Node& node, WidthChange& change) {
  Node* const quantize = node.inputs[0]->producer;
  if (!is_op(quantize, "QuantizeLinear") || change.find(quantize->inputs[0]) == nullptr) {
    return refuse(node, "reads quantized scores");
  }
  change.edit([&node, &change, quantize] {
    Value* const plain = quantize->inputs[0];
    for (const Value* input : node.inputs) {
      if (input != nullptr) change.drop(input);
    }
    node.op_type = "Identity";
    node.inputs = {plain};
    node.attributes.clear();
  });
  change.carry(node.output(0), *change.find(quantize->inputs[0]));
  return "";
}

std::string pass_loss(Node& node, WidthChange& change) {
  if (change.find(node.input(0)) == nullptr) return refuse(node, "reads it as a target");
  if (node.input(2) != nullptr) {
    if (WidthChange::constant(node.input(2)) == nullptr) {
      return refuse(node, "has computed weights");
    }
    change.resize(node, 2, 0, Fill::kOnes);
  }
  return carry_rest(node, change);
}

std::string pass_shape(Node& node, WidthChange& change) { return carry_rest(node, change); }

struct RuleRow {
  Rule rule;
  std::vector<std::string_view> op_types;
};

const std::vector<RuleRow>& rows() {
  static const std::vector<RuleRow> kRows{
      {width_rules::pass_same,
       {"Identity", "Dropout",    "Relu",      "LeakyRelu",   "Elu",       "Selu",
        "Softplus", "Softsign",   "Tanh",      "HardSigmoid", "HardSwish", "Gelu",
        "Clip",     "Exp",        "Log",       "Neg",         "Abs",       "Sqrt",
        "Erf",      "Reciprocal", "Floor",     "Ceil",        "Round",     "Sign",
        "Not",      "IsNaN",      "Softmax",   "LogSoftmax",  "Hardmax",   "QuantizeLinear",
        "CumSum",   "Normalizer", "Binarizer", "Swish",       "Mish"}},
      {pass_cast, {"Cast", "CastLike"}},
      {pass_sigmoid, {"Sigmoid"}},
      {pass_channels, {"GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "LpPool"}},
      {pass_resize, {"Resize", "Upsample"}},
      {pass_elementwise,
       {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu", "Greater",
        "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Where", "Xor"}},
      {pass_batch_norm, {"BatchNormalization"}},
      {width_rules::pass_transpose, {"Transpose"}},
      {width_rules::pass_squeeze, {"Squeeze"}},
      {width_rules::pass_unsqueeze, {"Unsqueeze"}},
      {width_rules::pass_reduction,
       {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ReduceL1",
        "ReduceL2", "ReduceProd", "ReduceSumSquare"}},
      {pass_arg_max, {"ArgMax", "ArgMin"}},
      {pass_top_k, {"TopK"}},
      {width_rules::pass_flatten, {"Flatten"}},
      {width_rules::pass_reshape, {"Reshape"}},
      {pass_concat, {"Concat"}},
      {pass_slice, {"Slice"}},
      {pass_gather, {"Gather", "ArrayFeatureExtractor"}},
      {pass_zip_map, {"ZipMap"}},
      {pass_label_encoder, {"LabelEncoder"}},
      {pass_one_hot, {"OneHot"}},
      {pass_dequantize, {"DequantizeLinear"}},
      {pass_loss, {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}},
      {pass_shape, {"Shape", "Size"}},
  };
  return kRows;
}

}  // namespace

std::string pass_node(Node& node, WidthChange& change) {
  if (node.domain.empty() || node.domain == "ai.onnx.ml") {
    for (const RuleRow& row : rows()) {
      if (std::ranges::find(row.op_types, node.op_type) != row.op_types.end()) {
        return row.rule(node, change);
      }
    }
  }
  return refuse(node, "reads its results");
}

}  // namespace onnxgrad::train

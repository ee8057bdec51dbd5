#include "train/weights/weight_roles.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ir/graph.h"
#include "ir/pattern.h"
#include "opdef/quantized_weight.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Use;
using ir::Value;
using opdef::Passage;

// Normalisations written out as several nodes: layer normalisation before opset 17, RMS
// normalisation, group normalisation of exporters. Their scale and shift are operands of Mul and
// Add; only the nodes before these distinguish them from constants.

using ir::anything;
using ir::in_any_order;
using ir::number;
using ir::one_of;
using ir::op;
using ir::Pattern;

Pattern normalized() {
  const Pattern average = op("ReduceMean", {});
  // mean, mean + epsilon, max(mean, epsilon)
  const Pattern mean = one_of({in_any_order("Add", average, anything()),
                               in_any_order("Max", average, anything()), average});
  const Pattern root = one_of({op("Sqrt", {mean}), op("Pow", {mean, number(0.5)})});
  // sqrt(mean + epsilon), possibly with the epsilon outside the root.
  const Pattern deviation = one_of({in_any_order("Add", root, anything()), root});
  const Pattern inverse = one_of({op("Reciprocal", {deviation}), op("Div", {number(1), deviation}),
                                  op("Pow", {mean, number(-0.5)})});
  return one_of({op("InstanceNormalization", {}), op("Div", {anything(), deviation}),
                 in_any_order("Mul", inverse, anything())});
}

// True if `value` is x / sqrt(mean + epsilon) with a mean computed from data, in any
// form: Sqrt or Pow, Div or a product with the reciprocal; or the result of an
// InstanceNormalization. Looks through operators that keep values (Cast, Reshape, ...).
bool is_normalized(const ir::Value* value) {
  static const Pattern kNormalized = normalized();
  static const ir::NodeTest kPasses = builtin_ops().passing(opdef::Passage::kPermuted);
  return ir::match(kNormalized, value, kPasses) != nullptr;
}

// True for functions that programs apply to a parameter to keep it positive or small.
bool is_reparametrisation(const Node& node) {
  return is_op(node, {"Exp", "Sigmoid", "Softplus", "Tanh"});
}

bool is_quantization(const Node& node) {
  const std::string_view name = opdef::base_name(node.domain, node.op_type);
  return is_op(node, {"QuantizeLinear", "DequantizeLinear"}) || name == "FakeQuantize" ||
         name == "QuantizedNumber" || name == "RoundedBias";
}

// The numbers that are quantized in `value`; the value itself if none are.
const Value* before_rounding(const Value* value) {
  while (value != nullptr && value->producer != nullptr && is_quantization(*value->producer)) {
    value = value->producer->input(0);
  }
  return value;
}

bool is_floating_value(const Value* value) {
  return value != nullptr && value->type.is_tensor() && is_floating(value->type.dtype);
}

bool contains(const std::vector<int>& inputs, int input) {
  if (std::ranges::find(inputs, input) != inputs.end()) return true;
  return inputs.size() > 1 && inputs.back() == -1 && input > inputs[inputs.size() - 2];
}

// A bias has an element per column or channel of what it is added to. One number added to many is
// considered a constant such as an epsilon.
bool can_be_bias(const Value& bias, const Value& sum) {
  const bool is_number =
      bias.type.has_rank() && std::ranges::all_of(*bias.type.shape, [](const ir::Dim& dim) {
        return dim.is_static() && dim.value() == 1;
      });
  if (!is_number) return true;
  return sum.type.has_rank() && sum.type.rank() > 0 && sum.type.shape->back().is_static() &&
         sum.type.shape->back().value() == 1;
}

// True if `operand` broadcasts `other` to more elements: a table of centres, not one per column.
bool enlarges(const Value& operand, const Value& other) {
  if (!operand.type.has_rank() || !other.type.has_rank()) return false;
  const ir::SymbolicShape& small = *other.type.shape;
  const ir::SymbolicShape& large = *operand.type.shape;
  if (large.size() > small.size()) return true;
  for (std::size_t i = 1; i <= large.size(); ++i) {
    const ir::Dim& own = large[large.size() - i];
    const ir::Dim& theirs = small[small.size() - i];
    if (own != theirs && theirs.is_static() && theirs.value() == 1) return true;
  }
  return false;
}

std::string input_of(const Node& node, int input) {
  return "input " + std::to_string(input) + " of " + node.op_type;
}

}  // namespace

RoleFinder::RoleFinder(const ir::Model& model, const opdef::OpRegistry& registry)
    : registry_(registry), main_(*model.graph), uses_(main_) {
  collect(main_);
}

void RoleFinder::collect(const ir::Graph& graph) {
  for (const Value* value : graph.initializers) constants_.insert(value);
  for (const Node* node : graph.nodes) {
    if (is_computed_from_constants(*node)) {
      constants_.insert(node->outputs.begin(), node->outputs.end());
    }
    collect_quantized(*node);
    for (const ir::Graph* subgraph : node->subgraphs()) collect(*subgraph);
  }
  constants_.erase(nullptr);
}

void RoleFinder::collect_quantized(const Node& reader) {
  const opdef::OpDef* def = registry_.find(reader);
  if (def == nullptr) return;
  for (const int input : def->weight_inputs) {
    const Value* matrix = input < 0 ? nullptr : reader.input(static_cast<std::size_t>(input));
    const auto weight = matrix == nullptr || matrix->producer == nullptr
                            ? std::nullopt
                            : opdef::find_quantized_weight(matrix);
    if (!weight) continue;
    std::vector<const Value*> open{matrix};
    while (!open.empty()) {
      const Value* value = open.back();
      open.pop_back();
      if (value == nullptr) continue;
      if (value->producer != nullptr) {
        open.insert(open.end(), value->producer->inputs.begin(), value->producer->inputs.end());
      } else if (value != weight->zeros && is_floating_value(value)) {
        quantized_[value] = value == weight->scales ? kQuantizationScale : kQuantizationTable;
      }
    }
  }
}

bool RoleFinder::is_computed_from_constants(const Node& node) const {
  const opdef::OpDef* def = registry_.find(node);
  if (def == nullptr || def->is_random) return false;
  if (node.inputs.empty() || !node.subgraphs().empty() || is_quantization(node)) return false;
  return std::ranges::all_of(
      node.inputs, [this](const Value* input) { return input == nullptr || is_constant(input); });
}

bool RoleFinder::passes(const Node& node, Passage least) const {
  const opdef::OpDef* def = registry_.find(node);
  return def != nullptr && def->passage >= least;
}

// True if elements of the input, or some of them, pass through to an output.
bool RoleFinder::moves(const Node& node, int input) const {
  return (input == 0 && passes(node, Passage::kRepeated)) || is_op(&node, "Concat");
}

std::vector<Reading> RoleFinder::readings(const Value* initializer) const {
  struct Open {
    const Value* value = nullptr;
    bool keeps_numbers = true;
    bool is_operand_alone = false;
  };
  std::vector<Reading> found;
  std::vector<Open> open{{.value = initializer}};
  std::unordered_set<const Value*> seen{initializer};
  for (std::size_t next = 0; next < open.size(); ++next) {
    const Open current = open[next];
    for (const Use& use : uses_.of(current.value)) {
      if (use.node == nullptr) continue;
      const Node& node = *use.node;
      const bool is_expression = is_constant(node.output(0));
      // Rounded numbers are those of the parameter that the layer behind reads.
      const bool is_rounded = use.input == 0 && is_quantization(node);
      const bool is_moved = is_rounded || moves(node, use.input);
      if (!is_expression && (!is_moved || is_op(&node, "Concat"))) {
        found.push_back(read(use, current.value, current.keeps_numbers));
        found.back().is_operand_alone = current.is_operand_alone;
        continue;
      }
      const bool is_repeated = passes(node, Passage::kRepeated) && !passes(node, Passage::kPartial);
      for (const Value* output : node.outputs) {
        if (!is_floating_value(output) || !seen.insert(output).second) continue;
        open.push_back(
            {.value = output,
             // No layer reads repeated parameters; exporters write zeros this way instead.
             .keeps_numbers = current.keeps_numbers && is_moved && !is_repeated,
             .is_operand_alone = current.is_operand_alone ||
                                 (current.keeps_numbers && is_reparametrisation(node))});
      }
    }
  }
  return found;
}

Reading RoleFinder::read(const Use& use, const Value* value, bool keeps_numbers) const {
  const Node& node = *use.node;
  Reading reading{.node = &node, .input = use.input};
  const opdef::OpDef* def = registry_.find(node);
  if ((is_quantization(node) && use.input > 0) || scales_integers(use)) {
    reading.reason = kQuantizationScale;
    return reading;
  }
  if (def == nullptr) {
    // A matrix that an unknown operator reads counts as a weight: the gradient then reports that
    // there is none, whereas ignoring it would silently train less than the whole model.
    const bool is_matrix = value->type.has_rank() && value->type.rank() >= 2;
    if (!node.subgraphs().empty()) {
      reading.role = Role::kFormula;
    } else if (is_matrix) {
      reading.role = Role::kTable;
    } else {
      reading.reason = input_of(node, use.input);
    }
    return reading;
  }
  if (contains(def->weight_inputs, use.input)) {
    const bool is_left = use.input == 0;  // first input of Gather, MatMul or Gemm
    reading.role = is_left ? Role::kTable : Role::kLayer;
    if (!keeps_numbers) reading.role = Role::kFormula;
    return reading;
  }
  if (is_bias_or_scale(use, value, reading)) {
    reading.role = keeps_numbers ? Role::kLayer : Role::kFormula;
  } else if (is_op(&node, "BatchNormalization") && use.input > 2) {
    reading.role = Role::kStatistic;
  } else if (!contains(def->differentiable_inputs, use.input) || def->zero_gradient) {
    reading.reason = "no gradient flows to " + input_of(node, use.input);
  } else {
    reading.role = Role::kFormula;
    if (scales_inputs(use, value)) reading.reason = "scales an input of the model";
  }
  return reading;
}

// Integers as floating-point numbers, less their zero point.
bool RoleFinder::is_from_integers(const Value* value) const {
  while (value != nullptr) {
    if (value->type.is_tensor() && is_integer(value->type.dtype)) return true;
    const Node* node = value->producer;
    if (node == nullptr) return false;
    if (opdef::base_name(node->domain, node->op_type) == "QuantizedNumber") return true;
    const bool keeps = passes(*node, Passage::kRepeated) || is_op(node, "Sub");
    value = keeps && !is_quantization(*node) ? node->input(0) : nullptr;
  }
  return false;
}

bool RoleFinder::is_matmul_of_integers(const Value* value) const {
  while (value != nullptr && value->producer != nullptr) {
    const Node& node = *value->producer;
    if (is_op(node, {"MatMulInteger", "ConvInteger"})) return true;
    if (is_op(node, {"MatMul", "Conv", "Gemm"})) {
      return is_from_integers(node.input(0)) && is_from_integers(node.input(1));
    }
    if (!passes(node, Passage::kRepeated)) return false;
    value = node.input(0);
  }
  return false;
}

// A factor of a product of integers, or of another such factor (that of the other operand).
bool RoleFinder::scales_integers(const Use& use) const {
  const auto other_of = [](const Node& node, const Value* operand) {
    return node.input(node.input(0) == operand ? 1 : 0);
  };
  const Node& node = *use.node;
  if (!is_op(&node, "Mul")) return false;
  if (is_matmul_of_integers(node.input(use.input == 0 ? 1 : 0))) return true;
  const Value* factor = node.output(0);
  return std::ranges::any_of(uses_.of(factor), [&](const Use& next) {
    return next.node != nullptr && is_op(next.node, "Mul") &&
           is_matmul_of_integers(other_of(*next.node, factor));
  });
}

bool RoleFinder::is_bias_or_scale(const Use& use, const Value* value, Reading& reading) const {
  const Node& node = *use.node;
  if (node.output(0) == nullptr || !can_be_bias(*value, *node.output(0))) return false;
  if (is_op(&node, "Mul")) {
    return is_scale_of_normalization(node, static_cast<std::size_t>(use.input));
  }
  if (!is_op(&node, "Add")) return false;
  reading.layer = layer_before(node.input(use.input == 0 ? 1 : 0));
  return reading.layer != nullptr;
}

// True for the Mul of a written-out normalisation, with its scale as operand `input`.
bool RoleFinder::is_scale_of_normalization(const Node& node, std::size_t input) const {
  return is_op(&node, "Mul") && is_constant(node.input(input)) &&
         is_normalized(node.input(1 - input));
}

// The node with a weight that computes `value`, looking through operators that keep values.
const Node* RoleFinder::layer_before(const Value* value) const {
  while (value != nullptr && value->producer != nullptr) {
    const Node* node = value->producer;
    if (!passes(*node, Passage::kPermuted)) {
      if (is_scale_of_normalization(*node, 0) || is_scale_of_normalization(*node, 1)) return node;
      const opdef::OpDef* def = registry_.find(*node);
      if (def == nullptr) return nullptr;
      const bool has_weight = std::ranges::any_of(def->weight_inputs, [&](int input) {
        const Value* weight = node->input(static_cast<std::size_t>(input));
        return is_constant(before_rounding(weight)) ||
               (weight != nullptr && opdef::find_quantized_weight(weight).has_value());
      });
      return has_weight ? node : nullptr;
    }
    value = node->input(0);
  }
  return nullptr;
}

// True for an operand of a scaler: subtracted from an input or dividing it, then multiplied or
// added; or a factor of counts of words (idf).
bool RoleFinder::scales_inputs(const Use& use, const Value* value) const {
  const Node& node = *use.node;
  if (node.inputs.size() != 2) return false;
  const Value* other = node.input(use.input == 0 ? 1 : 0);
  if (other == nullptr || enlarges(*value, *other)) return false;
  const Distance distance = distance_to_inputs(other);
  if (is_op(&node, "Sub") || is_op(&node, "Div")) {
    return use.input == 1 && distance != Distance::kFar;
  }
  return (is_op(&node, "Mul") || is_op(&node, "Add")) && distance == Distance::kShifted;
}

RoleFinder::Distance RoleFinder::distance_to_inputs(const Value* value) const {
  constexpr int kMostSteps = 16;
  bool is_shifted = false;
  bool is_scaled = false;  // by a factor or a sum that counts only after a shift
  for (int i = 0; value != nullptr && i < kMostSteps; ++i) {
    if (value->producer == nullptr) {
      const bool is_fed = value->is_input && !value->is_initializer() && value->graph == &main_;
      if (!is_fed || is_scaled) return Distance::kFar;
      return is_shifted ? Distance::kShifted : Distance::kInput;
    }
    const Node& node = *value->producer;
    if (is_op(&node, "TfIdfVectorizer")) return is_scaled ? Distance::kFar : Distance::kShifted;
    const bool is_left = !is_constant(node.input(0));
    const bool has_constant = node.inputs.size() == 2 && is_left == is_constant(node.input(1));
    if (moves(node, 0)) {
      value = node.input(0);
    } else if (has_constant && is_left && (is_op(&node, "Sub") || is_op(&node, "Div"))) {
      is_shifted = true;
      is_scaled = false;
      value = node.input(0);
    } else if (has_constant && (is_op(&node, "Mul") || is_op(&node, "Add"))) {
      is_scaled = true;
      value = node.input(is_left ? 0 : 1);
    } else {
      return Distance::kFar;
    }
  }
  return Distance::kFar;
}

}  // namespace onnxgrad::train

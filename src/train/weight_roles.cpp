#include "train/weight_roles.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "train/normalizations.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

template <std::size_t N>
bool is_any(const Node& node, const std::array<std::string_view, N>& names) {
  return node.domain.empty() && std::ranges::find(names, node.op_type) != names.end();
}

bool is_standard(const Node& node, std::string_view op_type) {
  return node.domain.empty() && node.op_type == op_type;
}

// A parameter behind such a node is still that parameter.
bool keeps_parameters(const Node& node, int input) {
  static constexpr std::array<std::string_view, 7> kOps{"Identity", "Transpose", "Reshape",  "Cast",
                                                        "CastLike", "Squeeze",   "Unsqueeze"};
  return input == 0 && is_any(node, kOps);
}

// Its numbers, or some of them, come out elsewhere.
bool moves_parameters(const Node& node, int input) {
  static constexpr std::array<std::string_view, 5> kOps{"Expand", "Slice", "Split", "Tile",
                                                        "Flatten"};
  return keeps_parameters(node, input) || (input == 0 && is_any(node, kOps)) ||
         is_standard(node, "Concat");
}

// Each of its numbers comes out several times: no layer reads its parameters so, but where it has
// none, exporters write zeros so.
bool repeats_parameters(const Node& node) {
  static constexpr std::array<std::string_view, 2> kOps{"Expand", "Tile"};
  return is_any(node, kOps);
}

// What programs write around a parameter that must stay positive or small.
bool is_reparametrisation(const Node& node) {
  static constexpr std::array<std::string_view, 4> kOps{"Exp", "Sigmoid", "Softplus", "Tanh"};
  return is_any(node, kOps);
}

bool is_quantization(const Node& node) {
  static constexpr std::array<std::string_view, 2> kOps{"QuantizeLinear", "DequantizeLinear"};
  return is_any(node, kOps);
}

bool is_floating_value(const Value* value) {
  return value != nullptr && value->type.is_tensor() && is_floating(value->type.dtype);
}

bool contains(const std::vector<int>& inputs, int input) {
  if (std::ranges::find(inputs, input) != inputs.end()) return true;
  return inputs.size() > 1 && inputs.back() == -1 && input > inputs[inputs.size() - 2];
}

// A bias has an element per column or channel of what it is added to. One number added to many is
// taken for a constant such as an epsilon.
bool can_be_bias(const Value& bias, const Value& sum) {
  const bool is_number =
      bias.type.has_rank() && std::ranges::all_of(*bias.type.shape, [](const ir::Dim& dim) {
        return dim.is_static() && dim.value() == 1;
      });
  if (!is_number) return true;
  return sum.type.has_rank() && sum.type.rank() > 0 && sum.type.shape->back().is_static() &&
         sum.type.shape->back().value() == 1;
}

// True if `operand` makes more elements of `other`: a table of centres, not numbers for columns.
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
    : registry_(registry), main_(*model.graph) {
  collect(main_);
}

void RoleFinder::collect(const ir::Graph& graph) {
  for (const Value* value : graph.initializers) constants_.insert(value);
  for (const Node* node : graph.nodes) {
    for (std::size_t i = 0; i < node->inputs.size(); ++i) {
      if (node->inputs[i] != nullptr) {
        uses_[node->inputs[i]].push_back({.node = node, .input = static_cast<int>(i)});
      }
    }
    if (is_computed_from_constants(*node)) {
      constants_.insert(node->outputs.begin(), node->outputs.end());
    }
    for (const ir::Graph* subgraph : node->subgraphs()) collect(*subgraph);
  }
  constants_.erase(nullptr);
}

bool RoleFinder::is_computed_from_constants(const Node& node) const {
  const opdef::OpDef* def = registry_.find(node);
  if (def == nullptr || def->is_random) return false;
  if (node.inputs.empty() || !node.subgraphs().empty() || is_quantization(node)) return false;
  return std::ranges::all_of(
      node.inputs, [this](const Value* input) { return input == nullptr || is_constant(input); });
}

const std::vector<RoleFinder::Use>& RoleFinder::uses_of(const Value* value) const {
  static const std::vector<Use> kNone;
  const auto found = uses_.find(value);
  return found == uses_.end() ? kNone : found->second;
}

const Node* RoleFinder::first_reader(const Value* initializer) const {
  const auto& uses = uses_of(initializer);
  return uses.empty() ? nullptr : uses.front().node;
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
    for (const Use& use : uses_of(current.value)) {
      const Node& node = *use.node;
      const bool is_expression = is_constant(node.output(0));
      const bool moves = moves_parameters(node, use.input);
      if (!is_expression && (!moves || is_standard(node, "Concat"))) {
        found.push_back(read(use, current.value, current.keeps_numbers));
        found.back().is_operand_alone = current.is_operand_alone;
        continue;
      }
      for (const Value* output : node.outputs) {
        if (!is_floating_value(output) || !seen.insert(output).second) continue;
        open.push_back(
            {.value = output,
             .keeps_numbers = current.keeps_numbers && moves && !repeats_parameters(node),
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
  if (is_quantization(node) && use.input > 0) {
    reading.reason = "a scale of quantized numbers";
    return reading;
  }
  if (def == nullptr) {
    // A matrix that an unknown operator reads is taken for a weight: the gradient then says that
    // there is none, where leaving it out would train less than the model has without a word.
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
    const bool is_left = use.input == 0;  // of Gather, MatMul and Gemm
    reading.role = is_left ? Role::kTable : Role::kLayer;
    if (!keeps_numbers) reading.role = Role::kFormula;
    return reading;
  }
  if (is_bias_or_scale(use, value, reading)) {
    reading.role = keeps_numbers ? Role::kLayer : Role::kFormula;
  } else if (is_standard(node, "BatchNormalization") && use.input > 2) {
    reading.role = Role::kStatistic;
  } else if (!contains(def->differentiable_inputs, use.input) || def->zero_gradient) {
    reading.reason = "no gradient flows to " + input_of(node, use.input);
  } else {
    reading.role = Role::kFormula;
    if (scales_inputs(use, value)) reading.reason = "scales an input of the model";
  }
  return reading;
}

bool RoleFinder::is_bias_or_scale(const Use& use, const Value* value, Reading& reading) const {
  const Node& node = *use.node;
  if (node.output(0) == nullptr || !can_be_bias(*value, *node.output(0))) return false;
  if (is_standard(node, "Mul")) {
    return is_scale_of_normalization(node, static_cast<std::size_t>(use.input));
  }
  if (!is_standard(node, "Add")) return false;
  reading.layer = layer_before(node.input(use.input == 0 ? 1 : 0));
  return reading.layer != nullptr;
}

// True for the Mul of a normalisation that is written out, with its scale as operand `input`.
bool RoleFinder::is_scale_of_normalization(const Node& node, std::size_t input) const {
  return is_standard(node, "Mul") && is_constant(node.input(input)) &&
         is_normalized(node.input(1 - input));
}

// The node with a weight that computes `value`, seen through operators that keep values.
const Node* RoleFinder::layer_before(const Value* value) const {
  while (value != nullptr && value->producer != nullptr) {
    const Node* node = value->producer;
    if (!keeps_parameters(*node, 0)) {
      if (is_scale_of_normalization(*node, 0) || is_scale_of_normalization(*node, 1)) return node;
      const opdef::OpDef* def = registry_.find(*node);
      if (def == nullptr) return nullptr;
      const bool has_weight = std::ranges::any_of(def->weight_inputs, [&](int input) {
        return is_constant(node->input(static_cast<std::size_t>(input)));
      });
      return has_weight ? node : nullptr;
    }
    value = node->input(0);
  }
  return nullptr;
}

// What is taken from an input or divides it, and what then multiplies or is added: a scaler.
bool RoleFinder::scales_inputs(const Use& use, const Value* value) const {
  const Node& node = *use.node;
  if (node.inputs.size() != 2) return false;
  const Value* other = node.input(use.input == 0 ? 1 : 0);
  if (other == nullptr || enlarges(*value, *other)) return false;
  const Distance distance = distance_to_inputs(other);
  if (is_standard(node, "Sub") || is_standard(node, "Div")) {
    return use.input == 1 && distance != Distance::kFar;
  }
  return (is_standard(node, "Mul") || is_standard(node, "Add")) && distance == Distance::kShifted;
}

RoleFinder::Distance RoleFinder::distance_to_inputs(const Value* value) const {
  constexpr int kMostSteps = 16;
  bool is_shifted = false;
  bool is_scaled = false;  // by a factor or a sum that counts only behind a shift
  for (int i = 0; value != nullptr && i < kMostSteps; ++i) {
    if (value->producer == nullptr) {
      const bool is_fed = value->is_input && !value->is_initializer() && value->graph == &main_;
      if (!is_fed || is_scaled) return Distance::kFar;
      return is_shifted ? Distance::kShifted : Distance::kInput;
    }
    const Node& node = *value->producer;
    const bool is_left = !is_constant(node.input(0));
    const bool has_constant = node.inputs.size() == 2 && is_left == is_constant(node.input(1));
    if (moves_parameters(node, 0)) {
      value = node.input(0);
    } else if (has_constant && is_left && (is_standard(node, "Sub") || is_standard(node, "Div"))) {
      is_shifted = true;
      is_scaled = false;
      value = node.input(0);
    } else if (has_constant && (is_standard(node, "Mul") || is_standard(node, "Add"))) {
      is_scaled = true;
      value = node.input(is_left ? 0 : 1);
    } else {
      return Distance::kFar;
    }
  }
  return Distance::kFar;
}

}  // namespace onnxgrad::train

#include "train/weights.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "train/normalizations.h"
#include "train/patterns.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

struct Use {
  const Node* node = nullptr;
  int input = 0;
};
using Uses = std::unordered_map<const Value*, std::vector<Use>>;

void collect_uses(const ir::Graph& graph, Uses& uses) {
  for (const Node* node : graph.nodes) {
    for (std::size_t i = 0; i < node->inputs.size(); ++i) {
      if (node->inputs[i] != nullptr) {
        uses[node->inputs[i]].push_back({.node = node, .input = static_cast<int>(i)});
      }
    }
    for (const ir::Graph* subgraph : node->subgraphs()) collect_uses(*subgraph, uses);
  }
}

// A parameter behind such a node is still that parameter.
bool keeps_parameters(const Node& node, int input) {
  static constexpr std::array<std::string_view, 6> kOps{"Identity", "Transpose", "Reshape",
                                                        "Cast",     "Squeeze",   "Unsqueeze"};
  return node.domain.empty() && input == 0 && std::ranges::find(kOps, node.op_type) != kOps.end();
}

// A matrix that an unknown operator reads is taken for a weight: the gradient then says that there
// is none, where leaving it out would train less than the model has without a word.
bool is_weight_input(const Use& use, const Value& value, const opdef::OpRegistry& registry) {
  const opdef::OpDef* def = registry.find(*use.node);
  if (def == nullptr) return use.node->subgraphs().empty() && value.initializer.dims().rank() >= 2;
  return std::ranges::find(def->weight_inputs, use.input) != def->weight_inputs.end();
}

// True for an initializer, also behind operators that keep parameters.
bool is_parameter(const Value* value) {
  while (value != nullptr && value->producer != nullptr && keeps_parameters(*value->producer, 0)) {
    value = value->producer->input(0);
  }
  return value != nullptr && value->is_initializer();
}

bool is_standard(const Node& node, std::string_view op_type) {
  return node.domain.empty() && node.op_type == op_type;
}

// True for the Mul of a normalisation that is written out, with its scale as operand `input`.
bool is_scale_of_normalization(const Node& node, std::size_t input) {
  return is_standard(node, "Mul") && is_parameter(node.input(input)) &&
         is_normalized(node.input(1 - input));
}

// The node with a weight that computes `value`, seen through operators that keep values.
const Node* layer_before(const Value* value, const opdef::OpRegistry& registry) {
  while (value != nullptr && value->producer != nullptr) {
    const Node* node = value->producer;
    if (!keeps_parameters(*node, 0)) {
      if (is_scale_of_normalization(*node, 0) || is_scale_of_normalization(*node, 1)) return node;
      const opdef::OpDef* def = registry.find(*node);
      if (def == nullptr) return nullptr;
      const bool has_weight = std::ranges::any_of(def->weight_inputs, [&](int input) {
        return is_parameter(node->input(static_cast<std::size_t>(input)));
      });
      return has_weight ? node : nullptr;
    }
    value = node->input(0);
  }
  return nullptr;
}

// A bias has an element per column or channel of what it is added to. One number added to many is
// taken for a constant such as an epsilon.
bool can_be_bias(const Value& bias, const Value& sum) {
  if (bias.initializer.num_elements() != 1) return true;
  return sum.type.has_rank() && sum.type.rank() > 0 && sum.type.shape->back().is_static() &&
         sum.type.shape->back().value() == 1;
}

class WeightFinder {
 public:
  WeightFinder(const ir::Model& model, const opdef::OpRegistry& registry) : registry_(registry) {
    collect_uses(*model.graph, uses_);
  }

  Weight describe(Value* value) const {
    Weight weight{.value = value};
    const bool floating = is_floating(value->initializer.dtype());
    // Depth is bounded by the chain of nodes that keep parameters; each value is seen once per use.
    std::vector<const Value*> open{value};
    while (!open.empty() && !weight.trainable) {
      const Value* current = open.back();
      open.pop_back();
      const auto uses = uses_.find(current);
      if (uses == uses_.end()) continue;
      for (const Use& use : uses->second) {
        if (weight.reader == nullptr || !keeps_parameters(*use.node, use.input)) {
          weight.reader = use.node;
          weight.input = use.input;
        }
        if (floating && settle(use, value, weight)) break;
        if (keeps_parameters(*use.node, use.input)) open.push_back(use.node->output(0));
      }
    }
    return weight;
  }

 private:
  // True if `use` makes `value` a trainable weight.
  bool settle(const Use& use, const Value* value, Weight& weight) const {
    const Node& node = *use.node;
    const bool is_like_bias = node.output(0) != nullptr && can_be_bias(*value, *node.output(0));
    if (is_weight_input(use, *value, registry_)) {
      weight.trainable = true;
    } else if (is_standard(node, "Mul") && is_like_bias) {
      weight.trainable = is_scale_of_normalization(node, static_cast<std::size_t>(use.input));
    } else if (is_standard(node, "Add") && is_like_bias) {
      weight.layer = layer_before(node.input(use.input == 0 ? 1 : 0), registry_);
      weight.trainable = weight.layer != nullptr;
    }
    if (!weight.trainable) return false;
    weight.reader = &node;
    weight.input = use.input;
    return true;
  }

  const opdef::OpRegistry& registry_;
  Uses uses_;
};

}  // namespace

std::vector<Weight> find_weights(const ir::Model& model, const opdef::OpRegistry& registry) {
  const WeightFinder finder(model, registry);
  std::vector<Weight> weights;
  for (Value* value : model.graph->initializers) weights.push_back(finder.describe(value));
  return weights;
}

WeightInfo weight_info(const Weight& weight) {
  WeightInfo info{.name = weight.value->name,
                  .dtype = weight.value->initializer.dtype(),
                  .dims = weight.value->initializer.dims(),
                  .trainable = weight.trainable};
  if (weight.value->origin != nullptr) {
    switch (weight.value->origin->kind) {
      case ir::WeightOrigin::Kind::kInitializer:
        break;
      case ir::WeightOrigin::Kind::kConstantNode:
        info.storage = WeightInfo::Storage::kConstantNode;
        break;
      case ir::WeightOrigin::Kind::kAttribute:
        info.storage = WeightInfo::Storage::kAttribute;
        break;
    }
  }
  if (weight.reader != nullptr) {
    info.op_type = weight.reader->op_type;
    info.node = weight.reader->name;
  }
  return info;
}

namespace {

// Nothing is left of the floating-point weights `names`.
[[noreturn]] void refuse_no_weight(const std::vector<std::string>& names,
                                   const std::vector<std::string>& trainable,
                                   const std::vector<std::string>& frozen) {
  if (names.empty()) {
    throw ModelError({.what = "the model has no weight to train: none of its initializers and "
                              "constants is floating-point",
                      .mend = "Export the model with its weights as initializers; weights that are "
                              "inputs cannot be trained."});
  }
  const std::string list = "Floating-point weights: " + base::quote_list(names) + ".";
  if (!frozen.empty()) {
    throw ModelError({.what = "there is no weight to train: all that could be are frozen by " +
                              base::quote_list(frozen),
                      .detail = list,
                      .mend = trainable.empty()
                                  ? "Give frozen= fewer weights, or a narrower pattern."
                                  : "Give frozen= weights that trainable= does not name."});
  }
  throw ModelError({.what = "there is no weight to train: none is read by an operator that scales "
                            "or shifts with weights",
                    .detail = list,
                    .mend = "Name weights with trainable=; `report` lists them with the operators "
                            "that read them."});
}

}  // namespace

std::vector<Weight> select_weights(const std::vector<Weight>& weights,
                                   const std::vector<std::string>& trainable,
                                   const std::vector<std::string>& frozen) {
  std::vector<std::string> names;
  std::vector<const Weight*> floating;
  for (const Weight& weight : weights) {
    if (!is_floating(weight.value->initializer.dtype())) continue;
    names.push_back(weight.value->name);
    floating.push_back(&weight);
  }
  const auto wanted = match_patterns(trainable, names, "floating-point weight");
  const auto excluded = match_patterns(frozen, names, "floating-point weight");
  std::vector<Weight> selected;
  for (std::size_t i = 0; i < floating.size(); ++i) {
    if ((trainable.empty() ? floating[i]->trainable : wanted[i]) && !excluded[i]) {
      selected.push_back(*floating[i]);
    }
  }
  if (selected.empty()) refuse_no_weight(names, trainable, frozen);
  return selected;
}

}  // namespace onnxgrad::train

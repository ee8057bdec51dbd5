#include "train/weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "train/tools/patterns.h"
#include "train/weights/adapter_record.h"
#include "train/weights/constant_evidence.h"
#include "train/weights/layer_levels.h"
#include "train/weights/program_names.h"
#include "train/weights/quantization_record.h"
#include "train/weights/weight_roles.h"

namespace onnxgrad::train {
namespace {

using Kind = ir::WeightOrigin::Kind;

Kind kind_of(const ir::Value& value) {
  return value.origin == nullptr ? Kind::kInitializer : value.origin->kind;
}

bool is_of_definition(const ir::Value& value) { return kind_of(value) == Kind::kDefinition; }

// torch's exporters name parameters and buffers as in the program, and constants by what they
// are: there, a single number with a name from the program is a parameter.
bool is_named_by_program(const ir::Value& value, bool is_from_torch) {
  return is_from_torch && !is_operator_name(value.name);
}

// Reason for which numbers in the attributes of an operator are not trained.
std::string reason_of_attribute(const ir::Value& value) {
  static constexpr std::array<std::string_view, 3> kLeaves{"target_weights", "class_weights",
                                                           "leaf_weights"};
  std::string_view attribute = value.origin->attribute;
  constexpr std::string_view kTensor = "_as_tensor";
  if (attribute.ends_with(kTensor)) attribute.remove_suffix(kTensor.size());
  if (std::ranges::find(kLeaves, attribute) != kLeaves.end()) {
    return "leaves of trees; splits of trees are not trained";
  }
  return "an attribute of an operator in the file";
}

// True for a parameter, or what TorchScript computes from one, which is named after its reader,
// "onnx::Mul_421", as are those of buffers; constants of formulas are in nodes there. Elements of a
// parameter are as in trained layers, or all equal as in new ones: a formula would have one number.
bool is_folded_parameter(const ir::Value& value, const Reading& reading) {
  if (kind_of(value) != Kind::kInitializer || !value.name.starts_with("onnx::")) return false;
  const Tensor& numbers = value.initializer;
  if (!reading.reason.empty()) return false;
  if (reading.is_operand_alone) return true;
  if (has_own_values(numbers)) return formula_behind(numbers).empty();
  return numbers.dims().rank() > 0 && are_all_equal(numbers) &&
         ir::is_op(*reading.node, {"Add", "Mul"});
}

// TorchScript keeps constants in nodes, and parameters never.
bool is_constant_of_torch(const ir::Value& value) {
  return kind_of(value) == Kind::kConstantNode ||
         (value.name.starts_with('/') && value.name.find("/Constant_") != std::string::npos);
}

// Reason to treat an operand of a formula as a constant; empty: it is a parameter.
std::string reason_of_constant(const ir::Value& value, const Reading& reading, bool is_from_torch) {
  const Tensor& numbers = value.initializer;
  const bool is_number = numbers.num_elements() == 1;
  if (is_of_definition(value)) return "belongs to the definition of an operator";
  if (kind_of(value) == Kind::kAttribute) return reason_of_attribute(value);
  if (const auto role = role_in_name(value.name); !role.empty()) return std::string(role);
  if (kind_of(value) == Kind::kConstantNode || has_constant_name(value.name)) {
    if (is_from_torch && is_folded_parameter(value, reading)) return "";
    return is_number ? "one number of a formula" : "a constant by its name";
  }
  if (!reading.reason.empty()) return reading.reason;
  if (is_number) {
    const double number = numbers.to_doubles().front();
    const bool is_named =
        is_named_by_program(value, is_from_torch) && !is_epsilon(value.name, number);
    const bool is_parameter = reading.is_operand_alone || is_named || !is_formula_number(number);
    return is_parameter ? "" : "one number of a formula";
  }
  return std::string(formula_behind(numbers));
}

// Reason to treat a table, such as one of sines and cosines, as a constant; empty: a parameter.
std::string reason_of_table(const ir::Value& value, bool is_known_layer) {
  if (is_of_definition(value)) return "belongs to the definition of an operator";
  if (const auto role = role_in_name(value.name); !role.empty()) return std::string(role);
  const bool is_named_constant = has_constant_name(value.name) && !is_known_layer;
  if (is_named_constant && !has_own_values(value.initializer)) return "a constant by its name";
  return std::string(formula_behind(value.initializer));
}

bool is_group_norm(const ir::Node& node) {
  return program_call(node).target.find("group_norm") != std::string::npos;
}

// Exporters write a normalisation without scale and shift, and a group normalisation, with ones and
// zeros in their place.
std::string reason_of_layer(const ir::Value& value, const Reading& reading) {
  const bool is_normalization =
      ir::is_op(*reading.node, {"BatchNormalization", "LayerNormalization", "InstanceNormalization",
                                "GroupNormalization", "RMSNormalization"});
  const bool is_named_constant =
      kind_of(value) == Kind::kConstantNode || has_constant_name(value.name);
  if (!is_normalization || !is_named_constant) return "";
  return is_all(value.initializer, reading.input == 1 ? 1 : 0) ? "a normalisation without scale"
                                                               : "";
}

constexpr std::string_view kQuantized = "quantized: integers carry no gradient";
constexpr std::string_view kRounded = "quantized: trained as rounded numbers";

bool is_quantized(const Tensor& numbers) {
  const int bits = size_bits(numbers.dtype());
  return bits > 0 && bits <= 8 && numbers.dtype() != DataType::kBool && numbers.dims().rank() >= 2;
}

bool is_zero_point(const ir::Value* value, const ir::Node* reader) {
  return reader != nullptr && reader->inputs.size() == 3 && reader->inputs[2] == value &&
         (ir::is_op(*reader, {"DequantizeLinear", "QuantizeLinear"}) ||
          opdef::base_name(reader->domain, reader->op_type) == "FakeQuantize");
}

// skl2onnx numbers what is passed from one step of a pipeline to the next: "variable2",
// "transformed_column".
bool is_passed_between_steps(std::string_view name) {
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return name == "variable" || name == "transformed_column";
}

// Whether skl2onnx writes such numbers for an estimator: an attribute of an operator of ai.onnx.ml,
// or the layers of a network.
bool is_of_estimator(const ir::Value* value) {
  if (value == nullptr || !value->is_initializer()) return false;
  return kind_of(*value) == Kind::kAttribute || value->name.starts_with("coefficient") ||
         value->name.starts_with("intercept");
}

bool has_coefficients(const ir::Node& node) {
  return std::ranges::any_of(node.inputs, [](const ir::Value* value) {
    if (!is_of_estimator(value)) return false;
    const bool is_attribute = kind_of(*value) == Kind::kAttribute;
    return (is_attribute ? value->origin->attribute : value->name).starts_with("coefficient");
  });
}

// The nodes before the last such values, and before the coefficients of an estimator: transformers
// of a pipeline. Estimators among them, as in a stack, are none.
std::unordered_set<const ir::Node*> find_transformers(const ir::Model& model) {
  std::unordered_set<const ir::Node*> found;
  if (model.producer_name != "skl2onnx") return found;
  const ir::Graph& graph = *model.graph;
  std::vector<const ir::Node*> open;
  const auto open_inputs = [&open](const ir::Node& node) {
    for (const ir::Value* input : node.inputs) {
      if (input != nullptr && input->producer != nullptr) open.push_back(input->producer);
    }
  };
  for (const ir::Node* node : graph.nodes) {
    for (const ir::Value* output : node->outputs) {
      const bool is_passed = output != nullptr && is_passed_between_steps(output->name) &&
                             std::ranges::find(graph.outputs, output) == graph.outputs.end();
      if (is_passed) open.push_back(node);
    }
    if (has_coefficients(*node)) open_inputs(*node);
  }
  std::unordered_set<const ir::Node*> seen;
  while (!open.empty()) {
    const ir::Node* node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    if (std::ranges::none_of(node->inputs, is_of_estimator)) found.insert(node);
    open_inputs(*node);
  }
  return found;
}

class WeightFinder {
 public:
  WeightFinder(const ir::Model& model, const opdef::OpRegistry& registry)
      : registry_(registry),
        roles_(model, registry),
        is_from_torch_(model.producer_name == "pytorch"),
        transformers_(find_transformers(model)) {}

  std::vector<Weight> describe_all(const ir::Graph& graph) {
    std::vector<Weight> weights;
    for (ir::Value* value : graph.initializers) weights.push_back(describe(value));
    if (transformers_.empty() || std::ranges::any_of(weights, &Weight::trainable)) return weights;
    transformers_.clear();  // the estimator has been cut away
    return describe_all(graph);
  }

 private:
  Weight describe(ir::Value* value) const {
    Weight weight{.value = value, .reader = roles_.first_reader(value)};
    if (is_zero_point(value, weight.reader)) {
      weight.reason = "a zero point of quantized numbers";
    } else if (is_quantized(value->initializer) && weight.reader != nullptr) {
      weight.reason = std::string(kQuantized);
    } else if (!is_floating(value->initializer.dtype())) {
      weight.reason = "no floating-point numbers";
    } else if (value->initializer.num_elements() == 0) {
      weight.reason = "no numbers";
    } else if (weight.reader == nullptr) {
      weight.reason = "no node reads it";
    } else if (const auto reason = roles_.reason_in_quantized(value); !reason.empty()) {
      weight.reason = std::string(reason);
    } else {
      settle(weight);
    }
    return weight;
  }

  // The first place where it is a parameter; failing that, the first place and why it is not.
  void settle(Weight& weight) const {
    bool is_first = true;
    const std::vector<Reading> readings = roles_.readings(weight.value);
    const auto scale = std::ranges::find(readings, kQuantizationScale, &Reading::reason);
    if (scale != readings.end()) {
      weight.reason = scale->reason;
      weight.reader = scale->node;
      weight.input = scale->input;
      return;
    }
    for (const Reading& reading : readings) {
      std::string reason = reason_against(*weight.value, reading);
      if (reason.empty() && transformers_.contains(reading.node)) {
        reason = "of a transformer before the estimator";
      }
      const bool is_parameter = reason.empty();
      weight.is_learned_array =
          weight.is_learned_array ||
          (kind_of(*weight.value) == Kind::kAttribute && reading.role != Role::kNone &&
           reading.role != Role::kStatistic && weight.value->initializer.num_elements() > 1);
      if (!is_parameter && !is_first) continue;
      is_first = false;
      weight.reason = std::move(reason);
      weight.reader = reading.node;
      weight.input = reading.input;
      weight.is_statistic = reading.role == Role::kStatistic;
      if (!is_parameter) continue;
      weight.trainable = true;
      weight.layer = reading.layer;
      weight.is_of_layer = reading.role != Role::kFormula;
      return;
    }
    if (is_first) weight.reason = "nothing that depends on the model's inputs reads it";
  }

  std::string reason_against(const ir::Value& value, const Reading& reading) const {
    if (reading.role == Role::kNone) return reading.reason;
    if (reading.role == Role::kStatistic) return "running statistics";
    // The layer's own scale and shift are behind such a normalisation.
    if (ir::is_op(reading.node, "InstanceNormalization") && is_group_norm(*reading.node)) {
      return "ones and zeros of a group normalisation";
    }
    switch (kind_in_program(value)) {
      case ProgramKind::kParameter:
        return "";
      case ProgramKind::kBuffer:
        return "a buffer of the module";
      case ProgramKind::kConstant:
        return "computed by the exporter, from no parameter";
      case ProgramKind::kUnknown:
        break;
    }
    if (is_from_torch_ && is_constant_of_torch(value)) return "a constant by its name";
    // So torch's layers name their parameters, and nothing else.
    const std::string_view name = value.name;
    if (is_from_torch_ && (name.ends_with(".weight") || name.ends_with(".bias"))) return "";
    if (reading.role == Role::kFormula) return reason_of_constant(value, reading, is_from_torch_);
    if (reading.role == Role::kLayer) return reason_of_layer(value, reading);
    return reason_of_table(value, registry_.find(*reading.node) != nullptr);
  }

  const opdef::OpRegistry& registry_;
  RoleFinder roles_;
  bool is_from_torch_;
  std::unordered_set<const ir::Node*> transformers_;
};

}  // namespace

namespace {

// The weights of adapters are trained, and of the others those that the adapters name.
void train_adapters(const ir::Model& model, std::vector<Weight>& weights) {
  if (!has_adapters(model)) return;
  const std::vector<std::string> names = trained_names(read_adapters(model));
  const std::unordered_set<std::string_view> trained(names.begin(), names.end());
  const auto is_trained = [&trained](const ir::Value& value) {
    if (trained.contains(value.name)) return true;
    // A tied weight has the names of its copies.
    const std::vector<std::string> aliases = names_for_patterns(value).aliases;
    return std::ranges::any_of(aliases,
                               [&](const std::string& one) { return trained.contains(one); });
  };
  for (Weight& weight : weights) {
    if (is_trained(*weight.value)) {
      weight.trainable = is_floating(weight.value->initializer.dtype());
      if (weight.trainable) weight.reason.clear();
    } else if (weight.trainable) {
      weight.trainable = false;
      weight.is_under_adapter = true;
      weight.reason = "the model has adapters, which are trained instead";
    }
  }
}

void train_scales(const ir::Model& model, std::vector<Weight>& weights) {
  for (const LearnedScale& scale : read_learned_scales(model)) {
    const auto found = std::ranges::find(weights, scale.name,
                                         [](const Weight& weight) { return weight.value->name; });
    if (found == weights.end() || !is_floating(found->value->initializer.dtype())) continue;
    found->trainable = true;
    found->reason.clear();
  }
}

}  // namespace

std::vector<Weight> find_weights(const ir::Model& model, const opdef::OpRegistry& registry) {
  std::vector<Weight> weights = WeightFinder(model, registry).describe_all(*model.graph);
  train_scales(model, weights);
  train_adapters(model, weights);
  const std::vector<std::int64_t> levels = layer_levels(weights);
  for (std::size_t i = 0; i < levels.size(); ++i) weights[i].level = levels[i];
  return weights;
}

bool is_quantized(const WeightInfo& weight) {
  return weight.reason == kQuantized || weight.reason == kRounded;
}

void mark_as_rounded(WeightInfo& weight) {
  weight.trainable = true;
  weight.reason = kRounded;
}

bool is_plain_number(const WeightInfo& weight) {
  return !weight.trainable && weight.dims.num_elements() == 1;
}

bool is_of_definition(const Weight& weight) { return is_of_definition(*weight.value); }

WeightInfo weight_info(const Weight& weight) {
  WeightInfo info{.name = weight.value->name,
                  .dtype = weight.value->initializer.dtype(),
                  .dims = weight.value->initializer.dims(),
                  .trainable = weight.trainable,
                  .reason = weight.reason,
                  .level = weight.level};
  info.aliases = names_for_patterns(*weight.value).aliases;
  switch (kind_of(*weight.value)) {
    case Kind::kInitializer:
      break;
    case Kind::kConstantNode:
    case Kind::kDefinition:
      info.storage = WeightInfo::Storage::kConstantNode;
      break;
    case Kind::kAttribute:
      info.storage = WeightInfo::Storage::kAttribute;
      break;
  }
  if (weight.reader != nullptr) {
    info.op_type = opdef::base_name(weight.reader->domain, weight.reader->op_type);
    info.node = weight.reader->name;
  }
  return info;
}

std::vector<PackedIntegers> find_packed_integers(std::span<const Weight> weights) {
  std::unordered_map<const std::byte*, std::size_t> unread;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const ir::Value& value = *weights[i].value;
    if (weights[i].reader == nullptr && !is_of_definition(value) &&
        is_quantized(value.initializer)) {
      unread.emplace(value.initializer.raw(), i);
    }
  }
  std::vector<PackedIntegers> found;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const ir::Value& value = *weights[i].value;
    if (weights[i].reason != kQuantized || !is_of_definition(value)) continue;
    const auto bytes = unread.find(value.initializer.raw());
    if (bytes != unread.end()) found.push_back({.bytes = bytes->second, .integers = i});
  }
  return found;
}

std::vector<WeightInfo> weight_infos(std::span<const Weight> weights) {
  std::vector<WeightInfo> infos;
  infos.reserve(weights.size());
  for (const Weight& weight : weights) infos.push_back(weight_info(weight));
  for (const auto& [bytes, integers] : find_packed_integers(weights)) {
    std::swap(infos[bytes], infos[integers]);
    std::swap(infos[bytes].name, infos[integers].name);
    std::swap(infos[bytes].storage, infos[integers].storage);
  }
  return infos;
}

namespace {

// "'a', 'b' (a mask); 'c' (running statistics)"
std::string names_with_reasons(const std::vector<Weight>& weights) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const Weight& weight : weights) {
    auto known = std::ranges::find(reasons, weight.reason, &decltype(reasons)::value_type::first);
    if (known == reasons.end()) known = reasons.insert(known, {weight.reason, {}});
    known->second.push_back(weight.value->name);
  }
  std::string text;
  for (const auto& [reason, names] : reasons) {
    text += (text.empty() ? "" : "; ") + base::quote_list(names) + " (" + reason + ")";
  }
  return text;
}

// None of the floating-point weights is left.
[[noreturn]] void refuse_no_weight(const std::vector<Weight>& weights,
                                   const std::vector<std::string>& names,
                                   const std::vector<std::string>& trainable,
                                   const std::vector<std::string>& frozen) {
  if (names.empty()) {
    throw ModelError({.what = "the model has no weight to train: none of its initializers and "
                              "constants is floating-point",
                      .hint = "Export the model with its weights as initializers; weights that are "
                              "inputs cannot be trained."});
  }
  const std::string list = "Floating-point weights: " + base::quote_list(names) + ".";
  if (!frozen.empty()) {
    throw ModelError({.what = "there is no weight to train: all candidates are frozen by " +
                              base::quote_list(frozen),
                      .detail = list,
                      .hint = trainable.empty()
                                  ? "Give frozen= fewer weights, or a narrower pattern."
                                  : "Give frozen= weights that trainable= does not name."});
  }
  throw ModelError(
      {.what = "there is no weight to train: none looks like a parameter",
       .detail = "Floating-point weights: " + names_with_reasons(weights) + ".",
       .hint = "Name weights with trainable=; `report` gives the reason for each that is not "
               "trained by default."});
}

}  // namespace

std::vector<bool> match_weights(std::span<const std::string> patterns,
                                std::span<const Weight> weights, std::string_view what,
                                const std::function<bool(const Weight&)>& is_parameter) {
  std::vector<WeightNames> names;
  for (const Weight& weight : weights) names.push_back(names_for_patterns(*weight.value));
  std::vector<bool> selected(weights.size(), false);
  for (const std::string& pattern : patterns) {
    const auto matched = match_patterns(std::span(&pattern, 1), names, what);
    const auto select = [&](const auto& is_wanted) {
      bool any = false;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        if (!matched[i] || !is_wanted(i)) continue;
        selected[i] = any = true;
      }
      return any;
    };
    if (select([&](std::size_t i) {
          return names[i].name == pattern ||
                 std::ranges::find(names[i].aliases, pattern) != names[i].aliases.end();
        })) {
      continue;
    }
    if (select([&](std::size_t i) { return is_parameter(weights[i]); })) continue;
    if (select([&](std::size_t i) { return weights[i].is_learned_array; })) continue;
    const auto first = static_cast<std::size_t>(std::ranges::find(matched, true) - matched.begin());
    throw ModelError({.what = fmt::format("'{}' matches no parameter", pattern),
                      .where = {.value = names[first].name},
                      .detail = fmt::format("'{}' is not trained by default: {}.",
                                            names[first].name, weights[first].reason),
                      .hint = "Give its full name to train it all the same."});
  }
  return selected;
}

std::vector<Weight> select_weights(const std::vector<Weight>& weights,
                                   const std::vector<std::string>& trainable,
                                   const std::vector<std::string>& frozen) {
  constexpr std::string_view kWhat = "floating-point weight";
  std::vector<WeightNames> names;
  std::vector<Weight> floating;
  for (const Weight& weight : weights) {
    if (!is_floating(weight.value->initializer.dtype())) continue;
    names.push_back(names_for_patterns(*weight.value));
    floating.push_back(weight);
  }
  const auto wanted =
      match_weights(expand_layer_groups(trainable, weights), floating, kWhat, &Weight::trainable);
  const auto excluded = match_patterns(expand_layer_groups(frozen, weights), names, kWhat);
  std::vector<Weight> selected;
  for (std::size_t i = 0; i < floating.size(); ++i) {
    const bool is_wanted = trainable.empty() ? floating[i].trainable : wanted[i];
    if (is_wanted && !excluded[i]) selected.push_back(floating[i]);
  }
  if (selected.empty()) refuse_no_weight(floating, all_names(names), trainable, frozen);
  return selected;
}

namespace {

using ir::Value;

void store_in_float32(Value* weight) {
  weight->type.dtype = DataType::kFloat32;
  if (weight->is_initializer()) weight->initializer = weight->initializer.cast(DataType::kFloat32);
}

}  // namespace

void widen_weight(ir::Graph& graph, Value* weight) {
  const DataType stored = weight->dtype();
  if (!is_f16(stored)) return;
  Value* half = graph.add_value(graph.names().unique(weight->name + "_f16"), weight->type);
  ir::replace_uses(graph, {{weight, half}});
  store_in_float32(weight);
  ir::Node* cast = graph.make_node("Cast", {weight}, {half}, weight->name + "_f16",
                                   {{"to", static_cast<std::int64_t>(stored)}});
  graph.nodes.insert(graph.nodes.begin(), cast);
}

void widen_statistics(ir::GraphBuilder& g, std::vector<ir::StateBinding>& statistics) {
  const ir::Uses uses(g.graph());
  std::vector<ir::Node*> keepers;
  for (ir::StateBinding& statistic : statistics) {
    if (!is_f16(statistic.input->dtype())) continue;
    ir::Node* keeper = statistic.output->producer;
    if (keeper != nullptr && keeper == uses.only_reader(statistic.input)) {
      store_in_float32(statistic.input);
      statistic.output->type.dtype = DataType::kFloat32;
      keepers.push_back(keeper);
    } else {
      widen_weight(g.graph(), statistic.input);
      statistic.output = g.cast(statistic.output, DataType::kFloat32);
    }
  }
  for (ir::Node* keeper : keepers) g.inferer().infer(*keeper);
}

}  // namespace onnxgrad::train

#include "train/weights/aliases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "ir/weight_alias.h"
#include "train/weights/constant_evidence.h"
#include "train/weights/program_names.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

// skl2onnx numbers the constants of its nodes; its layers have names.
bool is_given_by_exporter(std::string_view name, bool is_from_torch) {
  if (name.find("cst") != std::string_view::npos) return false;
  return has_constant_name(name) ||
         (is_from_torch && (is_name_of_movement(name) || is_operator_name(name)));
}

class AliasFinder {
 public:
  AliasFinder(ir::Model& working, const opdef::OpRegistry& registry,
              std::span<const SeparatedWeight> separated)
      : graph_(*working.graph),
        registry_(registry),
        uses_(graph_),
        parameters_(graph_),
        is_from_torch_(working.producer_name == "pytorch") {
    for (const SeparatedWeight& weight : separated) {
      for (std::size_t i = 1; i < weight.parts.size(); ++i) separated_.insert(weight.parts[i]);
    }
    number_cells();
  }

  void give(const Weight& weight) {
    Value& value = *weight.value;
    const bool is_parameter = weight.trainable || weight.is_under_adapter || weight.is_statistic;
    if (!is_parameter || weight.reader == nullptr) return;
    if (!has_foreign_name(value.name)) return;
    const Site site = site_of(weight);
    ir::WeightAlias alias = alias_of(value, site);
    if (alias.names.empty()) return;
    alias.parameter = alias.names.front();
    for (std::string& name : alias.names) name = unique(name);
    ir::set_alias(value, alias);
  }

 private:
  bool has_foreign_name(const std::string& name) const {
    return separated_.contains(name) || is_given_by_exporter(name, is_from_torch_);
  }

  bool is_cell(const Node& node) const { return is_op(node, {"LSTM", "GRU", "RNN"}); }

  // Layers of one module are several nodes, in their order.
  void number_cells() {
    std::map<std::string, int> counts;
    std::map<const Value*, int> by_weight;
    for (const Node* node : graph_.nodes) {
      if (!is_cell(*node)) continue;
      const std::string module = node->op_type + module_around(*node).path;
      const auto [known, is_new] = by_weight.try_emplace(node->input(1), counts[module]);
      if (is_new) ++counts[module];
      layers_.emplace(node, known->second);
    }
  }

  ir::WeightAlias alias_of(const Value& value, const Site& site) const {
    if (is_cell(*site.reader)) return alias_in_cell(site);
    const bool is_right_of_matmul =
        value.initializer.dims().rank() == 2 && site.input == 1 &&
        (is_op(*site.reader, {"MatMul"}) ||
         (is_op(*site.reader, {"Gemm"}) && site.reader->int_attribute("transB", 0) == 0));
    const ProgramCall call = program_call(*site.reader);
    if (const auto name = parameter_of(call, value, site)) {
      if (*name == value.name) return {};
      const bool is_linear = call.target == "linear";
      return {
          .names = {*name}, .is_certain = true, .is_transposed = is_right_of_matmul && is_linear};
    }
    if (auto name = name_of_tied(call, site); !name.empty()) {
      return {.names = {std::move(name)},
              .is_transposed = is_right_of_matmul && call.target == "linear"};
    }
    // A matrix that was not transposed has kept its name.
    const bool is_transposed = is_right_of_matmul && !separated_.contains(value.name);
    if (auto name = name_beside(site); !name.empty()) {
      return {.names = {std::move(name)}, .is_transposed = is_transposed};
    }
    const ModuleOfNode module = module_around(*site.node);
    if (module.path.empty()) return {};
    return {.names = {module.path + module.separator + site.role}, .is_transposed = is_transposed};
  }

  // The one parameter of the call that can be this weight.
  std::optional<std::string> parameter_of(const ProgramCall& call, const Value& value,
                                          const Site& site) const {
    std::vector<std::string> candidates;
    for (const std::string& parameter : call.parameters) {
      std::string name = parameters_.in_program(parameter);
      const bool is_other = graph_.find(name) != nullptr && name != value.name;
      if (!is_other && fits_role(name, site.role) &&
          std::ranges::find(candidates, name) == candidates.end()) {
        candidates.push_back(std::move(name));
      }
    }
    if (candidates.size() != 1) return std::nullopt;
    return candidates.front();
  }

  // For a parameter that is also another initializer, the module that reads that one: a table of
  // embeddings has the name of the layer that it is tied to, or the other way round.
  std::string name_of_tied(const ProgramCall& call, const Site& site) const {
    if (call.parameters.size() != 1) return "";
    const Value* other = graph_.find(parameters_.in_program(call.parameters.front()));
    if (other == nullptr || !other->is_initializer()) return "";
    const Node* reader = uses_.first_reader(other);
    if (reader == nullptr) return "";
    const ModuleOfNode module = module_around(*reader);
    std::string name = module.path + module.separator + site.role;
    return module.path.empty() || graph_.names().is_used(name) ? "" : name;
  }

  // "fc.weight" if the bias of the layer is "fc.bias", and the other way round.
  std::string name_beside(const Site& site) const {
    const Node& layer = *site.node;
    const bool is_bias = site.role == "bias";
    const Value* other = nullptr;
    if (is_bias) {
      other = is_op(layer, {"MatMul", "Gemm", "Conv", "ConvTranspose"}) ? layer.input(1) : nullptr;
      if (other != nullptr && !other->is_initializer()) other = layer.input(0);
    } else if (site.role == "weight") {
      other = bias_of(layer);
    }
    if (other == nullptr || !other->is_initializer() || has_foreign_name(other->name)) return "";
    const std::string_view from = is_bias ? "weight" : "bias";
    const std::string_view to = is_bias ? "bias" : "weight";
    std::string name = other->name;
    const std::size_t at = name.rfind(from);
    if (at == std::string::npos) return "";
    return name.replace(at, from.size(), to);
  }

  // An input of the layer, or what is added to its result, also after it was moved.
  const Value* bias_of(const Node& layer) const {
    if (is_op(layer, {"Gemm", "Conv", "ConvTranspose", "LayerNormalization", "BatchNormalization",
                      "InstanceNormalization", "GroupNormalization"}) &&
        layer.input(2) != nullptr) {
      return layer.input(2);
    }
    const Value* result = layer.output(0);
    constexpr int kMostSteps = 4;
    for (int i = 0; i < kMostSteps && result != nullptr; ++i) {
      const Node* next = uses_.only_reader(result);
      if (next == nullptr) return nullptr;
      if (is_op(*next, {"Add"})) return next->input(next->input(0) == result ? 1 : 0);
      const opdef::OpDef* def = registry_.find(*next);
      if (def == nullptr || def->passage < opdef::Passage::kPermuted) return nullptr;
      result = next->output(0);
    }
    return nullptr;
  }

  // Parameters of torch.nn.LSTM, GRU and RNN: "cell.weight_ih_l0", "cell.bias_hh_l0_reverse".
  ir::WeightAlias alias_in_cell(const Site& site) const {
    const ModuleOfNode module = module_around(*site.reader);
    const auto layer = layers_.find(site.reader);
    if (module.path.empty() || layer == layers_.end()) return {};
    std::vector<std::string> kinds;
    if (site.input == 1) kinds = {"weight_ih"};
    if (site.input == 2) kinds = {"weight_hh"};
    if (site.input == 3) kinds = {"bias_ih", "bias_hh"};
    if (kinds.empty()) {  // peepholes, which torch does not have
      return {.names = {fmt::format("{}{}weight_{}_l{}", module.path, module.separator, site.input,
                                    layer->second)}};
    }
    const std::string direction = site.reader->string_attribute("direction", "forward");
    std::vector<std::string> ends;
    if (direction != "reverse") ends.emplace_back("");
    if (direction != "forward") ends.emplace_back("_reverse");
    ir::WeightAlias alias{.cell = site.reader->op_type};
    for (const std::string& end : ends) {
      for (const std::string& kind : kinds) {
        alias.names.push_back(
            fmt::format("{}{}{}_l{}{}", module.path, module.separator, kind, layer->second, end));
      }
    }
    return alias;
  }

  // Names of the graph count as used, also those of nodes.
  std::string unique(const std::string& name) { return graph_.names().unique(name); }

  ir::Graph& graph_;
  const opdef::OpRegistry& registry_;
  ir::Uses uses_;
  ParameterNames parameters_;
  bool is_from_torch_;
  std::unordered_set<std::string> separated_;
  std::unordered_map<const Node*, int> layers_;
};

}  // namespace

void give_aliases(ir::Model& working, std::span<const Weight> weights,
                  const opdef::OpRegistry& registry, std::span<const SeparatedWeight> separated) {
  for (const Weight& weight : weights) ir::remove_alias(*weight.value);  // a stranger's
  const bool is_from_torch = working.producer_name == "pytorch";
  const bool has_foreign = std::ranges::any_of(weights, [&](const Weight& weight) {
    return is_given_by_exporter(weight.value->name, is_from_torch);
  });
  if (!has_foreign && separated.empty()) return;
  AliasFinder finder(working, registry, separated);
  for (const Weight& weight : weights) finder.give(weight);
}

}  // namespace onnxgrad::train

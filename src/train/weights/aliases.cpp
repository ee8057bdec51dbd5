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

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

// Names in the nodes of an exported file that come from the program that it was written from.

/// The call of the program that torch's exporter wrote a node for.
struct ProgramCall {
  std::string target = {};                   ///< "linear" of torch.ops.aten.linear.default
  std::vector<std::string> parameters = {};  ///< names in the call: "enc_layers_0_fc_weight"
};

/// The module around a node: "enc.layers.0.linear1" from the metadata or from the name
/// "/enc/layers.0/linear1/MatMul"; "model/dense" of "model/dense/MatMul". At the top level, the
/// name of the node: "matmul_1". Empty if it has no name.
struct ModuleOfNode {
  std::string path = {};
  char separator = '.';
};
ModuleOfNode module_of_node(const ir::Node& node);

/// Turns names of parameters in a call into those in the program: the paths of modules that occur
/// in the file show which '_' was a '.'.
class ParameterNames {
 public:
  explicit ParameterNames(const ir::Graph& graph);

  /// The name in the program: "enc.layers.0.self_attn.in_proj_weight" of
  /// "enc_layers_0_self_attn_in_proj_weight".
  std::string in_program(std::string_view parameter) const;

 private:
  std::unordered_map<std::string, std::string> paths_;  // names by their form in a call
};

constexpr std::string_view kCall = "pkg.torch.onnx.fx_node";
constexpr std::string_view kScopes = "pkg.torch.onnx.name_scopes";
constexpr std::string_view kNamespace = "namespace";

std::string_view find_entry(const ir::Node& node, std::string_view key) {
  for (const auto& [name, text] : node.metadata) {
    if (name == key) return text;
  }
  return "";
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// `name` as torch's exporter writes it in calls.
std::string in_call(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = is_word(c) ? static_cast<char>(std::tolower(c)) : '_';
  return text;
}

// The strings of "['', 'enc', 'enc.layers.0', 'linear']".
std::vector<std::string> quoted_strings(std::string_view text) {
  std::vector<std::string> strings;
  for (std::size_t i = 0; i < text.size();) {
    const char quote = text[i++];
    if (quote != '\'' && quote != '"') continue;
    const std::size_t end = text.find(quote, i);
    if (end == std::string_view::npos) break;
    strings.emplace_back(text.substr(i, end - i));
    i = end + 1;
  }
  return strings;
}

// The names of ": Model/enc: torch.nn.Encoder/linear: aten.linear.default": "", "enc", "linear".
std::vector<std::string> names_in_namespace(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('/'), text.size());
    const std::string_view part = text.substr(0, end);
    names.emplace_back(part.substr(0, std::min(part.find(':'), part.size())));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

// The modules around a node, outermost first, and last the call.
std::vector<std::string> scopes_of(const ir::Node& node) {
  auto scopes = quoted_strings(find_entry(node, kScopes));
  if (scopes.empty()) scopes = names_in_namespace(find_entry(node, kNamespace));
  return scopes;
}

// Reads a call from the metadata; both fields are empty without.
ProgramCall program_call(const ir::Node& node) {
  ProgramCall call;
  const std::string_view text = find_entry(node, kCall);
  constexpr std::string_view kTarget = "target=torch.ops.aten.";
  if (const std::size_t at = text.find(kTarget); at != std::string_view::npos) {
    std::size_t end = at + kTarget.size();
    while (end < text.size() && is_word(text[end])) ++end;
    call.target = text.substr(at + kTarget.size(), end - at - kTarget.size());
  }
  const std::size_t args = std::min(text.find("(args = "), text.size());
  for (std::size_t at = text.find('%', args); at != std::string_view::npos;) {
    std::size_t end = at + 1;
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string_view name = text.substr(at + 1, end - at - 1);
    if (name.starts_with("p_") || name.starts_with("b_")) {
      call.parameters.emplace_back(name.substr(2));
    }
    at = text.find('%', end);
  }
  return call;
}

ModuleOfNode module_of_node(const ir::Node& node) {
  std::vector<std::string> scopes = scopes_of(node);
  if (scopes.size() >= 2) {
    const std::string& module = scopes[scopes.size() - 2];
    return {.path = module.empty() ? scopes.back() : module};
  }
  std::string name = node.name;
  const bool is_torch = name.starts_with('/');
  if (is_torch) name.erase(0, 1);
  const std::size_t end = name.rfind('/');
  if (end == std::string::npos) return {.path = name};
  name.resize(end);
  if (is_torch) std::ranges::replace(name, '/', '.');
  return {.path = name, .separator = is_torch ? '.' : '/'};
}

ParameterNames::ParameterNames(const ir::Graph& graph) {
  const auto add = [this](std::string_view path) {
    if (!path.empty()) paths_.try_emplace(in_call(path), path);
  };
  for (const ir::Node* node : graph.nodes) {
    std::vector<std::string> scopes = scopes_of(*node);
    if (!scopes.empty()) scopes.pop_back();
    for (const std::string& scope : scopes) add(scope);
  }
  for (const ir::Value* value : graph.initializers) {
    const std::string_view name = value->name;
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos;
         dot = name.find('.', dot + 1)) {
      add(name.substr(0, dot));
    }
  }
}

std::string ParameterNames::in_program(std::string_view parameter) const {
  const std::string text = in_call(parameter);
  for (std::size_t end = text.rfind('_'); end != std::string::npos && end > 0;
       end = text.rfind('_', end - 1)) {
    const auto path = paths_.find(text.substr(0, end));
    if (path == paths_.end()) continue;
    return path->second + "." + std::string(parameter.substr(end + 1));
  }
  return std::string(parameter);
}

// Names of calls that only move numbers: those of a transposed parameter, say.
bool is_name_of_movement(std::string_view name) {
  static constexpr std::array<std::string_view, 15> kMovements{
      "t",       "transpose", "permute", "view",   "reshape",    "slice",     "select",   "expand",
      "squeeze", "cat",       "stack",   "repeat", "contiguous", "unsqueeze", "embedding"};
  const std::size_t end = name.find_last_not_of("0123456789");
  if (end != std::string_view::npos && end > 0 && end + 1 < name.size() && name[end] == '_') {
    name = name.substr(0, end);
  }
  return std::ranges::find(kMovements, name) != kMovements.end();
}

// skl2onnx numbers the constants of its nodes; its layers have names.
bool is_given_by_exporter(std::string_view name, bool is_from_torch) {
  if (name.find("cst") != std::string_view::npos) return false;
  return has_constant_name(name) ||
         (is_from_torch && (is_name_of_movement(name) || is_operator_name(name)));
}

std::string after_last(std::string_view name, std::string_view characters) {
  const std::size_t end = name.find_last_of(characters);
  return std::string(end == std::string_view::npos ? name : name.substr(end + 1));
}

/// A weight's role for the node that reads it.
struct Site {
  const Node* node = nullptr;    ///< the layer, also for a bias that an Add adds
  const Node* reader = nullptr;  ///< the Add then
  int input = 0;                 ///< index among the inputs of `reader`
  std::string role = {};         ///< "weight", "bias", "running_mean", ...
};

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
      const std::string module = node->op_type + module_of_node(*node).path;
      const auto [known, is_new] = by_weight.try_emplace(node->input(1), counts[module]);
      if (is_new) ++counts[module];
      layers_.emplace(node, known->second);
    }
  }

  Site site_of(const Weight& weight) const {
    Site site{.node = weight.reader, .reader = weight.reader, .input = weight.input};
    const Node& node = *weight.reader;
    if (weight.layer != nullptr && is_op(node, {"Add"})) {
      site.node = weight.layer;
      site.role = "bias";
      return site;
    }
    const bool is_normalization = is_op(node, {"BatchNormalization", "LayerNormalization",
                                               "InstanceNormalization", "GroupNormalization"});
    const bool is_layer = is_op(node, {"Conv", "ConvTranspose", "Gemm", "DeformConv"});
    site.role = "weight";
    if ((is_normalization || is_layer) && weight.input == 2) site.role = "bias";
    if (is_op(node, {"DeformConv"})) site.role = weight.input == 3 ? "bias" : "weight";
    if (is_op(node, {"BatchNormalization"}) && weight.input > 2) {
      site.role = weight.input == 3 ? "running_mean" : "running_var";
    }
    return site;
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
    const ModuleOfNode module = module_of_node(*site.node);
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
      const std::string last = after_last(name, ".");
      const bool is_bias = last.find("bias") != std::string::npos;
      const bool is_statistic = last.find("running_") != std::string::npos;
      const bool fits = site.role == "bias"     ? is_bias
                        : site.role == "weight" ? !is_bias && !is_statistic
                                                : last == site.role;
      if (!is_other && fits && std::ranges::find(candidates, name) == candidates.end()) {
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
    const ModuleOfNode module = module_of_node(*reader);
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
    const ModuleOfNode module = module_of_node(*site.reader);
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

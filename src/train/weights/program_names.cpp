#include "train/weights/program_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "ir/pattern.h"
#include "train/weights/constant_evidence.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;

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

// A name without the number that a program appends to a repeated one: "view" of "view_2".
std::string_view without_number(std::string_view name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  const bool is_numbered =
      end != std::string_view::npos && end > 0 && end + 1 < name.size() && name[end] == '_';
  return is_numbered ? name.substr(0, end) : name;
}

// Names of values that a program computes, after its calls, and those of the exporter's own steps.
bool is_name_of_result(std::string_view name) {
  static constexpr std::array<std::string_view, 70> kCalls{"_unsafe_view",
                                                           "alias",
                                                           "arange",
                                                           "bitwise_and",
                                                           "bitwise_not",
                                                           "bitwise_or",
                                                           "ceil",
                                                           "clamp",
                                                           "clamp_min",
                                                           "clone",
                                                           "conv2d",
                                                           "copy",
                                                           "cos",
                                                           "cumsum",
                                                           "diff",
                                                           "dim",
                                                           "dot",
                                                           "embedding_bag",
                                                           "eq",
                                                           "expand_as",
                                                           "fill",
                                                           "floor",
                                                           "floor_divide",
                                                           "full",
                                                           "full_like",
                                                           "gather",
                                                           "ge",
                                                           "getitem",
                                                           "gt",
                                                           "index",
                                                           "index_select",
                                                           "index_tensor",
                                                           "indices_1d",
                                                           "indices_size",
                                                           "int64_1_1d",
                                                           "layer_norm",
                                                           "le",
                                                           "linalg_vector_norm",
                                                           "linear",
                                                           "logical_and",
                                                           "logical_not",
                                                           "logical_or",
                                                           "lt",
                                                           "masked_fill",
                                                           "matmul",
                                                           "maximum",
                                                           "minimum",
                                                           "mv",
                                                           "ne",
                                                           "new_ones",
                                                           "new_weight",
                                                           "new_zeros",
                                                           "num_bag",
                                                           "ones",
                                                           "ones_like",
                                                           "pad",
                                                           "remainder",
                                                           "result",
                                                           "select_scatter",
                                                           "shape",
                                                           "sign",
                                                           "sin",
                                                           "slice_scatter",
                                                           "tmp",
                                                           "tril",
                                                           "triu",
                                                           "type_as",
                                                           "where",
                                                           "zeros",
                                                           "zeros_like"};
  if (has_constant_name(name) || is_operator_name(name) || is_name_of_movement(name)) return true;
  name = without_number(without_number(name));
  for (const std::string_view end : {"_default", "_tensor", "_scalar"}) {
    if (name.ends_with(end)) return true;
  }
  return std::ranges::find(kCalls, name) != kCalls.end() || name == "convert_element_type";
}

// Names of what programs register beside their parameters.
bool is_name_of_buffer(std::string_view name) {
  const std::string last = after_last(name, ".");
  static constexpr std::array<std::string_view, 4> kBuffers{"position_ids", "token_type_ids",
                                                            "num_batches_tracked", "index"};
  return !role_in_name(name).empty() || std::ranges::find(kBuffers, last) != kBuffers.end() ||
         last.ends_with("_index") || last.starts_with("lifted_tensor");
}

}  // namespace

std::string after_last(std::string_view name, std::string_view characters) {
  const std::size_t end = name.find_last_of(characters);
  return std::string(end == std::string_view::npos ? name : name.substr(end + 1));
}

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
    call.arguments.emplace_back(name);
    at = text.find('%', end);
  }
  return call;
}

ModuleOfNode module_around(const ir::Node& node) {
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

Site site_of(const Weight& weight) {
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

bool fits_role(std::string_view parameter, std::string_view role) {
  const std::string last = after_last(parameter, ".");
  const bool is_bias = last.find("bias") != std::string::npos;
  if (role == "bias") return is_bias;
  if (role == "weight") return !is_bias && last.find("running_") == std::string::npos;
  return last == role;
}

ProgramKind kind_in_program(const ir::Value& value) {
  const auto entry = [&value](std::string_view key) -> std::string_view {
    const auto found = std::ranges::find(value.metadata, key, &ir::Metadata::value_type::first);
    return found == value.metadata.end() ? std::string_view() : found->second;
  };
  const std::string_view kind = entry("pkg.torch.export.graph_signature.InputSpec.kind");
  if (kind == "PARAMETER") return ProgramKind::kParameter;
  if (kind == "BUFFER" || kind == "CONSTANT_TENSOR") return ProgramKind::kBuffer;
  const std::vector<std::string> sources =
      quoted_strings(entry("pkg.onnxscript.optimizer.folded_from"));
  if (sources.empty()) return ProgramKind::kUnknown;
  bool has_buffer = false;
  for (const std::string& source : sources) {
    const bool is_buffer = is_name_of_buffer(source);
    has_buffer = has_buffer || is_buffer;
    if (!is_buffer && !is_name_of_result(source)) return ProgramKind::kParameter;
  }
  return has_buffer ? ProgramKind::kBuffer : ProgramKind::kConstant;
}

}  // namespace onnxgrad::train

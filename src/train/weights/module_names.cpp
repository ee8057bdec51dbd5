#include "train/weights/module_names.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace onnxgrad::train {
namespace {

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

}  // namespace

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

ModuleOfNode module_of(const ir::Node& node) {
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

}  // namespace onnxgrad::train

#include <fmt/format.h>

#include <string>

#include "ir/graph.h"

namespace onnxgrad::ir {
namespace {

constexpr std::size_t kMaxListed = 8;

std::string describe(const Tensor& tensor) {
  std::string text = fmt::format("{}{}", dtype_name(tensor.dtype()), tensor.dims().to_string());
  const bool is_number = is_integer(tensor.dtype()) || tensor.dtype() == DataType::kBool ||
                         tensor.dtype() == DataType::kFloat32 ||
                         tensor.dtype() == DataType::kFloat64;
  if (!is_number || tensor.num_elements() > static_cast<std::int64_t>(kMaxListed)) return text;
  return fmt::format("{} {{{}}}", text, fmt::join(tensor.to_doubles(), ", "));
}

template <class T>
std::string list(const std::vector<T>& values) {
  if (values.size() <= kMaxListed) return fmt::format("[{}]", fmt::join(values, ", "));
  const std::vector<T> head(values.begin(), values.begin() + kMaxListed);
  return fmt::format("[{}, ... {} in total]", fmt::join(head, ", "), values.size());
}

struct Printer {
  std::string text;

  void print(const AttributeValue& value, int indent) {
    if (const auto* i = std::get_if<std::int64_t>(&value)) text += fmt::format("{}", *i);
    if (const auto* f = std::get_if<float>(&value)) text += fmt::format("{}", *f);
    if (const auto* s = std::get_if<std::string>(&value)) text += fmt::format("\"{}\"", *s);
    if (const auto* t = std::get_if<Tensor>(&value)) text += describe(*t);
    if (const auto* v = std::get_if<std::vector<std::int64_t>>(&value)) text += list(*v);
    if (const auto* v = std::get_if<std::vector<float>>(&value)) text += list(*v);
    if (const auto* v = std::get_if<std::vector<std::string>>(&value)) text += list(*v);
    if (const auto* r = std::get_if<AttributeRef>(&value)) text += "@" + r->name;
    if (std::holds_alternative<OpaqueAttribute>(value)) text += "<opaque>";
    if (const auto* v = std::get_if<std::vector<Tensor>>(&value)) {
      text += fmt::format("<{} tensors>", v->size());
    }
    if (const auto* graph = std::get_if<GraphPtr>(&value)) print(**graph, indent + 2);
    if (const auto* graphs = std::get_if<std::vector<GraphPtr>>(&value)) {
      for (const GraphPtr& graph : *graphs) print(*graph, indent + 2);
    }
  }

  void print(const Node& node, int indent) {
    text += std::string(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (i > 0) text += ", ";
      const Value* output = node.outputs[i];
      text +=
          output == nullptr ? "_" : fmt::format("{} {}", output->type.to_string(), output->name);
    }
    text += fmt::format(" = {}{}{}", node.domain, node.domain.empty() ? "" : ".", node.op_type);
    if (!node.attributes.empty()) {
      text += " <";
      for (std::size_t i = 0; i < node.attributes.size(); ++i) {
        if (i > 0) text += ", ";
        text += node.attributes[i].name + " = ";
        print(node.attributes[i].value, indent);
      }
      text += '>';
    }
    text += " (";
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (i > 0) text += ", ";
      text += node.inputs[i] == nullptr ? "_" : node.inputs[i]->name;
    }
    text += ")\n";
  }

  void print(const Graph& graph, int indent) {
    const std::string pad(static_cast<std::size_t>(indent), ' ');
    text += fmt::format("{} (", graph.name.empty() ? "graph" : graph.name);
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      if (i > 0) text += ", ";
      text += graph.inputs[i]->type.to_string() + " " + graph.inputs[i]->name;
    }
    text += ") => (";
    for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
      if (i > 0) text += ", ";
      text += graph.outputs[i]->name;
    }
    text += ") {\n";
    for (const Value* value : graph.initializers) {
      text += fmt::format("{}  init {} = {}\n", pad, value->name, describe(value->initializer));
    }
    for (const Node* node : graph.nodes) print(*node, indent + 2);
    text += pad + "}\n";
  }
};

}  // namespace

std::string to_text(const Graph& graph) {
  Printer printer;
  printer.print(graph, 0);
  return std::move(printer.text);
}

std::string to_text(const Model& model) {
  Printer printer;
  printer.text = fmt::format("<ir_version: {}, opset_import: [", model.ir_version);
  for (std::size_t i = 0; i < model.opset_imports.size(); ++i) {
    const auto& [domain, version] = model.opset_imports[i];
    printer.text += fmt::format("{}\"{}\": {}", i > 0 ? ", " : "", domain, version);
  }
  printer.text += "]>\n";
  printer.print(*model.graph, 0);
  for (const StateBinding& binding : model.state) {
    printer.text += fmt::format("state {} <- {}\n", binding.input->name, binding.output->name);
  }
  for (const Function& function : model.functions) {
    printer.text += fmt::format("function {}.{} ", function.domain, function.name);
    printer.print(*function.body, 0);
  }
  return std::move(printer.text);
}

}  // namespace onnxgrad::ir

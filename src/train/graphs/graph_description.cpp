#include "train/graphs/graph_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/checksum.h"
#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

std::string describe_tensor(const Tensor& tensor) {
  std::string text = fmt::format("{}{} ", dtype_name(tensor.dtype()), tensor.dims().to_string());
  if (tensor.dtype() == DataType::kString) {
    base::Checksum checksum;
    for (const std::string& one : tensor.strings()) {
      checksum.update(one);
      checksum.update(std::string_view("\0", 1));
    }
    return text + checksum.hex();
  }
  return text +
         base::checksum_hex(std::span(tensor.raw(), static_cast<std::size_t>(tensor.size_bytes())));
}

/// Writes nodes; `name_of` returns the names of values.
template <class NameOf>
class Describer {
 public:
  explicit Describer(NameOf name_of) : name_of_(std::move(name_of)) {}

  void add(const ir::Node& node) {
    for (const ir::Value* output : node.outputs) text += value(output) + " ";
    text += fmt::format("= {}{}{}{}", node.domain, node.domain.empty() ? "" : ".", node.op_type,
                        node.overload.empty() ? "" : ":" + node.overload);
    std::vector<const ir::Attribute*> attributes;
    for (const ir::Attribute& attribute : node.attributes) attributes.push_back(&attribute);
    std::ranges::sort(attributes, {}, &ir::Attribute::name);
    for (const ir::Attribute* attribute : attributes) {
      text += " " + attribute->name + "=";
      std::visit([this](const auto& held) { this->add_value(held); }, attribute->value);
    }
    for (const ir::Value* input : node.inputs) text += " " + value(input);
    text += '\n';
  }

  void add(const ir::Graph& graph) {
    text += "{\n";
    for (const ir::Value* input : graph.inputs) text += "input " + value(input) + "\n";
    for (const ir::Value* constant : graph.initializers) {
      text +=
          fmt::format("constant {} {}\n", value(constant), describe_tensor(constant->initializer));
    }
    for (const ir::Node* node : graph.nodes) add(*node);
    for (const ir::Value* output : graph.outputs) text += "output " + value(output) + "\n";
    text += "}\n";
  }

  void add(const std::vector<ir::Function>& functions) {
    std::vector<const ir::Function*> sorted;
    for (const ir::Function& function : functions) sorted.push_back(&function);
    std::ranges::sort(sorted, {},
                      [](const ir::Function* f) { return std::pair(f->domain, f->name); });
    for (const ir::Function* function : sorted) {
      text += fmt::format("function {}.{} ", function->domain, function->name);
      add(*function->body);
    }
  }

  std::string text;

 private:
  std::string value(const ir::Value* value) { return value == nullptr ? "_" : name_of_(*value); }

  void add_value(std::int64_t number) { text += fmt::format("{}", number); }
  void add_value(float number) { text += fmt::format("{}", number); }
  void add_value(const std::string& one) { text += "'" + one + "'"; }
  void add_value(const Tensor& tensor) { text += describe_tensor(tensor); }
  void add_value(const ir::GraphPtr& graph) { add(*graph); }
  void add_value(const ir::AttributeRef& ref) { text += "@" + ref.name; }
  void add_value(const ir::OpaqueAttribute& opaque) { text += base::checksum_hex(opaque.bytes); }
  template <class T>
  void add_value(const std::vector<T>& values) {
    text += '[';
    for (const T& one : values) {
      add_value(one);
      text += ',';
    }
    text += ']';
  }

  NameOf name_of_;
};

}  // namespace

std::string describe_model(const ir::Model& model, const std::unordered_set<std::string>& weights) {
  Describer describer([](const ir::Value& value) { return value.name; });
  const ir::Graph& graph = *model.graph;
  for (const ir::Value* input : graph.inputs) {
    describer.text += fmt::format("input {} {}\n", input->name, input->type.to_string());
  }
  for (const ir::Value* value : graph.initializers) {
    const Tensor& tensor = value->initializer;
    describer.text += weights.contains(value->name)
                          ? fmt::format("weight {} {}{}\n", value->name, dtype_name(tensor.dtype()),
                                        tensor.dims().to_string())
                          : fmt::format("constant {} {}\n", value->name, describe_tensor(tensor));
  }
  for (const ir::Node* node : graph.nodes) describer.add(*node);
  for (const ir::Value* output : graph.outputs) describer.text += "output " + output->name + "\n";
  describer.add(model.functions);
  return std::move(describer.text);
}

std::string training_checksum(const StepGraph& step_graph) {
  const ir::Model& step = *step_graph.model;
  // Inputs (fed values and state) keep their names, everything else is numbered in order.
  std::unordered_map<const ir::Value*, std::size_t> numbers;
  std::vector<const ir::Value*> constants;
  std::unordered_set<const ir::Value*> is_noted;
  Describer describer([&](const ir::Value& value) {
    if (value.is_input && value.graph == step.graph.get()) return value.name;
    if (value.is_constant() && is_noted.insert(&value).second) constants.push_back(&value);
    return fmt::format("%{}", numbers.try_emplace(&value, numbers.size()).first->second);
  });
  std::vector<const ir::Value*> results{step.graph->outputs.at(step_graph.ports.loss)};
  for (const ir::StateBinding& binding : step.state) results.push_back(binding.output);
  for (const ir::Node* node : ir::nodes_for(*step.graph, results)) describer.add(*node);
  for (const ir::Value* constant : constants) {
    describer.text += describe_tensor(constant->initializer) + "\n";
  }
  for (const ir::StateBinding& binding : step.state) {
    const auto number = numbers.find(binding.output);
    describer.text += fmt::format("{} <- %{}\n", binding.input->name,
                                  number == numbers.end() ? 0 : number->second);
  }
  describer.add(step.functions);
  return base::checksum_hex(describer.text);
}

}  // namespace onnxgrad::train

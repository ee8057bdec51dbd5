#include "ir/graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "ir/naming.h"

namespace onnxgrad::ir {

AttributeValue::AttributeValue() = default;
AttributeValue::AttributeValue(const AttributeValue& other) = default;
AttributeValue::AttributeValue(AttributeValue&& other) noexcept = default;
AttributeValue& AttributeValue::operator=(const AttributeValue& other) = default;
AttributeValue& AttributeValue::operator=(AttributeValue&& other) noexcept = default;
AttributeValue::~AttributeValue() = default;

Graph::Graph() : Graph(std::make_shared<NameAuthority>()) {}
Graph::Graph(std::shared_ptr<NameAuthority> names, Graph* parent)
    : names_(std::move(names)), parent_(parent) {}
Graph::~Graph() = default;

Function::Function() = default;
Function::Function(const Function& other) = default;
Function::Function(Function&& other) noexcept = default;
Function& Function::operator=(const Function& other) = default;
Function& Function::operator=(Function&& other) noexcept = default;
Function::~Function() = default;

Model::Model() = default;
Model::Model(const Model& other) = default;
Model::Model(Model&& other) noexcept = default;
Model& Model::operator=(const Model& other) = default;
Model& Model::operator=(Model&& other) noexcept = default;
Model::~Model() = default;

bool holds_f16(const Value* value) {
  return value != nullptr && value->type.is_tensor() && is_f16(value->dtype());
}

std::string NameAuthority::unique(std::string_view hint) {
  std::string name(hint.empty() ? "value" : hint);
  if (used_.insert(hash_of(name))) return name;
  int& count = next_[name];
  std::string candidate;
  do {
    candidate = name + "_" + std::to_string(++count);
  } while (!used_.insert(hash_of(candidate)));
  return candidate;
}

const AttributeValue* Node::find_attribute(std::string_view attribute) const {
  for (const Attribute& candidate : attributes) {
    if (candidate.name == attribute) return &candidate.value;
  }
  return nullptr;
}

void Node::set_attribute(std::string attribute, AttributeValue value) {
  for (Attribute& candidate : attributes) {
    if (candidate.name == attribute) {
      candidate.value = std::move(value);
      return;
    }
  }
  attributes.push_back({.name = std::move(attribute), .value = std::move(value)});
}

void Node::remove_attribute(std::string_view attribute) {
  std::erase_if(attributes, [&](const Attribute& a) { return a.name == attribute; });
}

namespace {

template <class T>
const T* typed_attribute(const Node& node, std::string_view name) {
  const AttributeValue* value = node.find_attribute(name);
  return value == nullptr ? nullptr : std::get_if<T>(value);
}

template <class T>
T attribute_or(const Node& node, std::string_view name, const T& fallback) {
  const T* typed = typed_attribute<T>(node, name);
  return typed == nullptr ? fallback : *typed;
}

template <class T>
const T& complete_attribute(const Node& node, std::string_view name) {
  if (const T* typed = typed_attribute<T>(node, name)) return *typed;
  throw InternalError(
      fmt::format("{} is read before its attribute '{}' has a value", node.describe(), name));
}

}  // namespace

std::int64_t Node::int_attribute(std::string_view attribute) const {
  return complete_attribute<std::int64_t>(*this, attribute);
}

float Node::float_attribute(std::string_view attribute) const {
  return complete_attribute<float>(*this, attribute);
}

std::string Node::string_attribute(std::string_view attribute) const {
  return complete_attribute<std::string>(*this, attribute);
}

std::int64_t Node::int_attribute(std::string_view attribute, std::int64_t fallback) const {
  return attribute_or(*this, attribute, fallback);
}

float Node::float_attribute(std::string_view attribute, float fallback) const {
  return attribute_or(*this, attribute, fallback);
}

std::string Node::string_attribute(std::string_view attribute, std::string_view fallback) const {
  return attribute_or(*this, attribute, std::string(fallback));
}

std::vector<std::int64_t> Node::ints_attribute(std::string_view attribute,
                                               const std::vector<std::int64_t>& fallback) const {
  return attribute_or(*this, attribute, fallback);
}

std::vector<float> Node::floats_attribute(std::string_view attribute) const {
  return attribute_or(*this, attribute, std::vector<float>{});
}

std::vector<Graph*> Node::subgraphs() const {
  std::vector<Graph*> graphs;
  for (const Attribute& attribute : attributes) {
    if (const auto* graph = std::get_if<GraphPtr>(&attribute.value)) {
      graphs.push_back(graph->get());
    } else if (const auto* list = std::get_if<std::vector<GraphPtr>>(&attribute.value)) {
      for (const GraphPtr& graph_ptr : *list) graphs.push_back(graph_ptr.get());
    }
  }
  return graphs;
}

std::string Node::describe() const {
  return op_type + " node" + (name.empty() ? "" : " '" + name + "'");
}

Value* Graph::add_value(std::string value_name, Type type) {
  names_->reserve(value_name);
  Value& value = values_.emplace_back();
  value.name = std::move(value_name);
  const bool is_new = by_name_.emplace(value.name, &value).second;
  ONNXGRAD_ASSERT(is_new);
  value.type = std::move(type);
  value.graph = this;
  return &value;
}

Value* Graph::add_input(std::string_view hint, Type type) {
  Value* value = add_value(names_->unique(hint), std::move(type));
  value->is_input = true;
  inputs.push_back(value);
  if (parent_ == nullptr) give_name(*this, value, hint);
  return value;
}

Value* Graph::add_initializer(std::string_view hint, Tensor tensor) {
  Value* value = add_value(names_->unique(hint), Type::tensor(tensor.dtype(), tensor.dims()));
  value->initializer = std::move(tensor);
  initializers.push_back(value);
  return value;
}

Node* Graph::add_bare_node() {
  Node& node = node_store_.emplace_back();
  node.graph = this;
  nodes.push_back(&node);
  return &node;
}

Node* Graph::add_node(std::string_view op_type, std::vector<Value*> node_inputs,
                      std::size_t num_outputs, std::vector<Attribute> attributes,
                      std::string_view domain, std::string_view hint) {
  Node* node = add_bare_node();
  node->op_type = op_type;
  node->domain = domain;
  node->inputs = std::move(node_inputs);
  node->attributes = std::move(attributes);
  const std::string base(hint.empty() ? op_type : hint);
  node->name = names_->unique(base + "_node");
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const std::string suffix = i == 0 ? "" : "_out" + std::to_string(i);
    set_output(node, i, add_value(names_->unique(base + suffix)));
  }
  return node;
}

void Graph::set_output(Node* node, std::size_t index, Value* value) {
  if (node->outputs.size() <= index) node->outputs.resize(index + 1, nullptr);
  node->outputs[index] = value;
  if (value != nullptr) {
    value->producer = node;
    value->output_index = static_cast<int>(index);
  }
}

Node* Graph::make_node(std::string_view op_type, std::vector<Value*> node_inputs,
                       const std::vector<Value*>& node_outputs, std::string_view hint,
                       std::vector<Attribute> attributes, std::string_view domain) {
  Node* node = add_bare_node();
  nodes.pop_back();
  node->op_type = op_type;
  node->domain = domain;
  node->name = names_->unique(hint);
  node->inputs = std::move(node_inputs);
  node->attributes = std::move(attributes);
  for (std::size_t i = 0; i < node_outputs.size(); ++i) set_output(node, i, node_outputs[i]);
  return node;
}

Node* Graph::insert_after(const Node* place, std::string_view op_type,
                          std::vector<Value*> node_inputs, const std::vector<Value*>& node_outputs,
                          std::vector<Attribute> attributes, std::string_view domain) {
  Node* node = make_node(op_type, std::move(node_inputs), node_outputs,
                         place->name + "/" + std::string(op_type), std::move(attributes), domain);
  const auto at = std::ranges::find(nodes, place);
  ONNXGRAD_ASSERT(at != nodes.end());
  nodes.insert(at + 1, node);
  return node;
}

Value* Graph::add_output(Node* node, std::size_t index, Type type, std::string_view hint) {
  Value* output = add_value(names_->unique(hint), std::move(type));
  set_output(node, index, output);
  return output;
}

Value* Graph::find(std::string_view value_name) const {
  const auto found = by_name_.find(value_name);
  return found == by_name_.end() ? nullptr : found->second;
}

Value* Graph::find_visible(std::string_view value_name) const {
  for (const Graph* graph = this; graph != nullptr; graph = graph->parent_) {
    if (Value* value = graph->find(value_name)) return value;
  }
  return nullptr;
}

void Graph::rename(Value* value, std::string new_name) {
  if (value->name == new_name) return;
  ONNXGRAD_ASSERT(!by_name_.contains(new_name));
  by_name_.erase(value->name);
  names_->reserve(new_name);
  value->name = std::move(new_name);
  by_name_.emplace(value->name, value);
}

std::int64_t Model::opset(std::string_view opset_domain) const {
  const std::string_view wanted = opset_domain == "ai.onnx" ? "" : opset_domain;
  for (const auto& [name, version] : opset_imports) {
    if ((name == "ai.onnx" ? "" : std::string_view(name)) == wanted) return version;
  }
  return 0;
}

void Model::set_opset(std::string_view opset_domain, std::int64_t version) {
  for (auto& [name, imported] : opset_imports) {
    if (name == opset_domain || (opset_domain.empty() && name == "ai.onnx")) {
      imported = version;
      return;
    }
  }
  opset_imports.emplace_back(opset_domain, version);
}

const Function* Model::find_function(std::string_view function_domain,
                                     std::string_view function_name) const {
  for (const Function& function : functions) {
    if (function.domain == function_domain && function.name == function_name) return &function;
  }
  return nullptr;
}

Function* Model::find_function(std::string_view function_domain, std::string_view function_name) {
  return const_cast<Function*>(  // NOLINT(cppcoreguidelines-pro-type-const-cast): same object
      std::as_const(*this).find_function(function_domain, function_name));
}

}  // namespace onnxgrad::ir

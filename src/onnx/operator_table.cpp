#include "onnx/operator_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "base/checksum.h"
#include "ir/inline.h"
#include "onnx/functions.h"
#include "onnx/inference.h"
#include "onnx/model_io.h"
#include "onnx/model_rules.h"
#include "onnx/schemas.h"
#include "onnxgrad/error.h"

// Every expansion of a user's function is the import of a small model: the call with inputs of the
// types at hand. So its operators are checked, upgraded and lowered like those of a file.

namespace onnxgrad::onnx_io {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr std::string_view kMark = "__";  // between name and key of a specialised function
constexpr std::size_t kKeyDigits = 12;

struct State {
  std::mutex mutex;
  std::shared_ptr<const OperatorTable> table = std::make_shared<const OperatorTable>();
};

State& state() {
  static State the_state;
  return the_state;
}

const OperatorFunction* last_of(const OperatorTable::Functions& functions, const Node& node) {
  if (functions.empty()) return nullptr;
  const auto found = functions.find(operator_of(node));
  return found == functions.end() ? nullptr : &found->second.back();
}

std::string full_name(const OperatorTable::Key& key) {
  return key.first.empty() ? key.second : key.first + "::" + key.second;
}

// A model of nothing but a call: inputs of the types of `args`, absent ones left out.
class SmallModel {
 public:
  SmallModel(std::span<Value* const> args, std::int64_t opset, const ir::Function* function) {
    model_->opset_imports = {{"", opset}};
    if (function != nullptr) {
      for (const auto& [domain, version] : function->opset_imports) {
        if (!is_standard_domain(domain)) model_->set_opset(domain, version);
      }
    }
    Graph& graph = *model_->graph;
    graph.name = "call";
    // Names are equal in each call, so that equal bodies compare equal.
    for (Value* arg : args) {
      const std::string name = "input_" + std::to_string(formals_.size());
      formals_.push_back(arg == nullptr ? nullptr : graph.add_input(name, arg->type));
    }
  }

  ir::Model& model() { return *model_; }
  const std::vector<Value*>& formals() const { return formals_; }

  // A node that is in no list.
  Node* call(const Node& like, std::size_t num_outputs) {
    Node* const node =
        model_->graph->add_node(like.op_type, formals_, num_outputs, like.attributes, like.domain);
    node->overload = like.overload;
    model_->graph->nodes.clear();
    return node;
  }

  // In the internal opset, with the outputs of `call`, whose expansion are `nodes`.
  ir::Model import(std::vector<Node*> nodes, const Node& call, const opdef::OpRegistry& registry,
                   const opdef::Evaluator* evaluator, const RegisteredOperators& operators) {
    model_->graph->nodes = std::move(nodes);
    model_->graph->outputs = call.outputs;
    FileModel file;
    file.model = model_;
    return to_internal(file, registry, evaluator, operators);
  }

 private:
  std::shared_ptr<ir::Model> model_ = std::make_shared<ir::Model>();
  std::vector<Value*> formals_;
};

// Calls that are left, of functions of domain `onnxgrad`, become their bodies.
void inline_all(Graph& graph, const ir::Model& model, const ir::TypeInferer& inferer) {
  for (bool changed = true; changed;) {
    changed = false;
    for (Node* node : std::vector<Node*>(graph.nodes)) {
      for (Graph* body : node->subgraphs()) inline_all(*body, model, inferer);
      const ir::Function* function = called_function(model, *node);
      if (function == nullptr) continue;
      ir::inline_call(*node, *function, inferer);
      changed = true;
    }
  }
}

// Functions have no initializers, no types, and outputs that nodes of theirs compute, once each.
void make_body(Graph& graph) {
  std::vector<Node*> constants;
  for (Value* value : graph.initializers) {
    constants.push_back(graph.make_node("Constant", {}, {value}, value->name + "_node",
                                        {{.name = "value", .value = value->initializer}}));
    value->initializer = {};
  }
  graph.initializers.clear();
  graph.nodes.insert(graph.nodes.begin(), constants.begin(), constants.end());
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    Value*& output = graph.outputs[i];
    const auto here = graph.outputs.begin() + static_cast<std::ptrdiff_t>(i);
    const bool is_first = std::find(graph.outputs.begin(), here, output) == here;
    if (output->producer != nullptr && output->graph == &graph && is_first) continue;
    output = graph.add_node("Identity", {output}, 1, {}, "", output->name)->outputs[0];
  }
  for (Value* input : graph.inputs) input->type = {};
  for (const Node* node : graph.nodes) {
    for (Value* output : node->outputs) {
      if (output != nullptr) output->type = {};
    }
  }
}

void add_tensors(base::Checksum& checksum, const Graph& graph) {
  for (const Node* node : graph.nodes) {
    for (const ir::Attribute& attribute : node->attributes) {
      const auto* tensor = std::get_if<Tensor>(&attribute.value);
      if (tensor == nullptr || tensor->dtype() == DataType::kString) continue;
      checksum.update(std::span(tensor->raw(), static_cast<std::size_t>(tensor->size_bytes())));
    }
    for (const Graph* body : node->subgraphs()) add_tensors(checksum, *body);
  }
}

// Equal keys mean equal bodies.
std::string key_of(const Graph& body) {
  base::Checksum checksum;
  checksum.update(ir::to_text(body));
  add_tensors(checksum, body);
  return checksum.hex().substr(0, kKeyDigits);
}

void check_no_subgraphs(const Node& node) {
  if (node.subgraphs().empty()) return;
  throw ModelError(
      {.what = "a registered operator or gradient with subgraphs among its attributes",
       .where = {.node = node.name, .op_type = node.op_type},
       .detail =
           "A gradient is an ONNX function of a node's inputs, outputs and cotangents. What a "
           "subgraph reads of the graph around it is none of these, and ONNX has no operator "
           "that is the derivative of a subgraph.",
       .hint = "Register the body as an operator with a gradient, and call that in the subgraph."});
}

[[noreturn]] void throw_in_rule(const Node& node, const std::string& what, std::string hint) {
  throw GradientError({.what = fmt::format("the gradient registered for '{}' {}",
                                           full_name(operator_of(node)), what),
                       .where = {.node = node.name, .op_type = node.op_type},
                       .hint = std::move(hint)});
}

// Inputs, outputs if the rule reads them, cotangents; nullptr: absent.
std::vector<Value*> rule_arguments(opdef::VjpContext& ctx, ir::GraphBuilder& g,
                                   const ir::Function& rule) {
  const Node& node = ctx.node();
  std::size_t num_inputs = node.inputs.size();
  std::size_t num_outputs = node.outputs.size();
  if (const ir::Function* body = g.model().find_function(node.domain, node.op_type)) {
    num_inputs = body->body->inputs.size();
    num_outputs = body->body->outputs.size();
  } else if (const auto arity = arity_of(operator_of(node))) {
    std::tie(num_inputs, num_outputs) = *arity;
  }
  const std::size_t wanted = rule.body->inputs.size();
  const bool reads_outputs = wanted == num_inputs + 2 * num_outputs;
  if (wanted != num_inputs + num_outputs && !reads_outputs) {
    throw_in_rule(node,
                  fmt::format("has {} inputs, expected {} or {}", wanted, num_inputs + num_outputs,
                              num_inputs + 2 * num_outputs),
                  "Its inputs are those of the operator, its outputs if the rule reads them, then "
                  "a cotangent for each output.");
  }
  std::vector<Value*> args;
  for (std::size_t i = 0; i < num_inputs; ++i) args.push_back(node.input(i));
  for (std::size_t i = 0; reads_outputs && i < num_outputs; ++i) args.push_back(node.output(i));
  for (std::size_t i = 0; i < num_outputs; ++i) {
    Value* cotangent = ctx.cotangent(i);
    if (cotangent == nullptr && node.output(i) != nullptr) cotangent = g.zeros_like(node.output(i));
    args.push_back(cotangent);
  }
  return args;
}

// Throws unless the gradient that a user's rule returns has the type of its input.
void check_result(const Node& node, const Value& input, const Value& gradient) {
  const ir::Type& wanted = input.type;
  const ir::Type& given = gradient.type;
  const auto wanted_dims = wanted.static_dims();
  const auto given_dims = given.static_dims();
  const bool has_other_rank =
      wanted.has_rank() && given.has_rank() && wanted.rank() != given.rank();
  const bool has_other_dims = wanted_dims && given_dims && *wanted_dims != *given_dims;
  const bool has_other_dtype = wanted.dtype != DataType::kUndefined &&
                               given.dtype != DataType::kUndefined && wanted.dtype != given.dtype;
  if (!has_other_rank && !has_other_dims && !has_other_dtype) return;
  throw_in_rule(node,
                fmt::format("is {} for input '{}', which is {}", given.to_string(), input.name,
                            wanted.to_string()),
                "Return a gradient of the input's type; sum over the axes that were broadcast.");
}

}  // namespace

OperatorTable::Key operator_of(const Node& node) {
  std::string domain = is_standard_domain(node.domain) ? "" : node.domain;
  std::string name = node.op_type;
  const std::size_t mark = name.rfind(kMark);
  if (mark != std::string::npos && name.size() == mark + kMark.size() + kKeyDigits &&
      name.find_first_not_of("0123456789abcdef", mark + kMark.size()) == std::string::npos) {
    name.resize(mark);
    if (domain == kReplacedDomain) domain.clear();
  }
  return {std::move(domain), std::move(name)};
}

std::optional<std::pair<std::size_t, std::size_t>> arity_of(const OperatorTable::Key& key) {
  const auto& [domain, name] = key;
  const Schema* schema =
      find_schema(domain, name, domain.empty() ? ir::kInternalOpset : newest_opset(domain));
  if (schema == nullptr) return std::nullopt;
  const auto& inputs = schema->op().inputs();
  const auto& outputs = schema->op().outputs();
  const auto is_variadic = [](const onnx::OpSchema::FormalParameter& parameter) {
    return parameter.GetOption() == onnx::OpSchema::Variadic;
  };
  if (std::ranges::any_of(inputs, is_variadic) || std::ranges::any_of(outputs, is_variadic)) {
    return std::nullopt;
  }
  return std::pair(inputs.size(), outputs.size());
}

const ir::Function* OperatorTable::body_of(const Node& node) const {
  const OperatorFunction* found = last_of(bodies_, node);
  return found == nullptr ? nullptr : found->function.get();
}

const OperatorFunction* OperatorTable::gradient_of(const Node& node) const {
  return last_of(gradients_, node);
}

bool OperatorTable::covers(const Node& node, std::size_t i) const {
  const OperatorFunction* rule = gradient_of(node);
  return rule != nullptr &&
         std::ranges::find(rule->inputs, static_cast<int>(i)) != rule->inputs.end();
}

std::vector<Value*> OperatorTable::apply(opdef::VjpContext& ctx, ir::GraphBuilder& g,
                                         const opdef::OpRegistry& registry) const {
  const Node& node = ctx.node();
  check_no_subgraphs(node);
  const OperatorFunction& rule = *gradient_of(node);
  const std::vector<Value*> args = rule_arguments(ctx, g, *rule.function);
  SmallModel small(args, opset_of(*rule.function, ir::kInternalOpset), rule.function.get());
  Node* const call = small.call(node, rule.function->body->outputs.size());
  ir::Model result;
  try {
    result = small.import(ir::expand_call(*call, *rule.function), *call, registry, nullptr,
                          {.table = this});
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    throw_in_rule(node, "does not fit: " + error.problem().what, error.problem().hint.text());
  }
  for (const ir::Function& function : result.functions) {
    if (g.model().find_function(function.domain, function.name) != nullptr) continue;
    g.model().functions.push_back(function);
    if (g.model().opset(function.domain) == 0) g.model().set_opset(function.domain, 1);
  }
  std::unordered_map<const Value*, Value*> map;
  std::size_t next = 0;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (small.formals()[i] != nullptr) map.emplace(result.graph->inputs[next++], args[i]);
  }
  ir::append_nodes(*result.graph, g.graph(), map, g.scope().empty() ? "" : g.scope() + "/");
  std::vector<Value*> gradients(node.inputs.size(), nullptr);
  for (std::size_t i = 0; i < rule.inputs.size(); ++i) {
    const auto input = static_cast<std::size_t>(rule.inputs[i]);
    if (!ctx.needs(input)) continue;
    gradients[input] = map.at(result.graph->outputs[i]);
    check_result(node, *node.inputs[input], *gradients[input]);
  }
  return gradients;
}

std::shared_ptr<const OperatorTable> current_operators() {
  const std::scoped_lock lock(state().mutex);
  return state().table;
}

void change_operators(
    const std::function<void(OperatorTable::Functions&, OperatorTable::Functions&)>& change) {
  const std::scoped_lock lock(state().mutex);
  OperatorTable::Functions bodies = state().table->bodies();
  OperatorTable::Functions gradients = state().table->gradients();
  change(bodies, gradients);
  state().table = std::make_shared<const OperatorTable>(std::move(bodies), std::move(gradients));
}

void specialise_call(Node& node, const ir::Function* body, std::int64_t opset, ir::Model& model,
                     const opdef::OpRegistry& registry, const opdef::Evaluator* evaluator,
                     const OperatorTable& table) {
  check_no_subgraphs(node);
  const OperatorTable::Key key = operator_of(node);
  SmallModel small(node.inputs, body == nullptr ? opset : opset_of(*body, opset), body);
  for (const auto& [domain, version] : model.opset_imports) {
    if (!is_standard_domain(domain) && small.model().opset(domain) == 0) {
      small.model().set_opset(domain, version);
    }
  }
  small.model().functions = model.functions;
  std::size_t num_outputs = node.outputs.size();
  if (body != nullptr) num_outputs = body->body->outputs.size();
  Node* const call = small.call(node, num_outputs);
  const std::vector<Node*> nodes =
      body == nullptr ? std::vector<Node*>{call} : ir::expand_call(*call, *body);
  ir::Model inner =
      small.import(nodes, *call, registry, evaluator, {.table = &table, .keeps_calls = false});
  Graph& graph = *inner.graph;
  inline_all(graph, inner, *make_type_inferer(inner));
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != nullptr) node.outputs[i]->type = graph.outputs[i]->type;
  }
  // Absent inputs are formal ones too.
  std::vector<Value*> formals;
  std::size_t next = 0;
  for (const Value* input : small.formals()) {
    formals.push_back(input != nullptr ? graph.inputs[next++] : graph.add_input("absent", {}));
  }
  graph.inputs = std::move(formals);
  make_body(graph);
  ir::Function function;
  function.domain = key.first.empty() ? std::string(kReplacedDomain) : key.first;
  function.body = inner.graph;
  function.opset_imports = {{"", ir::kInternalOpset}};
  for (const ir::Attribute& attribute : node.attributes) {
    function.attribute_names.push_back(attribute.name);
  }
  function.name = key.second + std::string(kMark) + key_of(graph);
  graph.name = function.name;
  node.domain = function.domain;
  node.op_type = function.name;
  node.overload.clear();
  if (model.find_function(function.domain, function.name) != nullptr) return;
  if (model.opset(function.domain) == 0) model.set_opset(function.domain, 1);
  model.functions.push_back(std::move(function));
}

}  // namespace onnxgrad::onnx_io

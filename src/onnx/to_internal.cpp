#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "ir/inline.h"
#include "onnx/control_flow.h"
#include "onnx/declared_shapes.h"
#include "onnx/functions.h"
#include "onnx/gradient_nodes.h"
#include "onnx/inferer.h"
#include "onnx/known_branches.h"
#include "onnx/map_inputs.h"
#include "onnx/model_io.h"
#include "onnx/model_rules.h"
#include "onnx/node_rules.h"
#include "onnx/operator_table.h"
#include "onnx/resolved_sequences.h"
#include "onnx/rewriting.h"
#include "onnx/upgrade_rules.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// The place of each constant tensor in the file, by the address of its data: copies of a tensor
// share it, so it is recognised after functions are expanded and subgraphs copied.
class Origins {
 public:
  // Numbers that Constant nodes store outside tensors become tensors.
  explicit Origins(ir::Model& model) {
    collect(*model.graph);
    for (ir::Function& function : model.functions) {
      place_.function = function.domain + ":" + function.name + ":" + function.overload;
      collect(*function.body);
    }
  }

  std::shared_ptr<const ir::WeightOrigin> find(const Tensor& tensor) const {
    const auto found = by_data_.find(tensor.raw());
    return found == by_data_.end() ? nullptr : found->second;
  }

 private:
  void collect(Graph& graph) {
    for (const Value* value : graph.initializers) {
      add(value->initializer, ir::WeightOrigin::Kind::kInitializer, value->name, "");
    }
    for (Node* node : graph.nodes) {
      const std::string output = first_output(*node);
      for (ir::Attribute& attribute : node->attributes) {
        if (const auto* f = std::get_if<float>(&attribute.value)) {
          if (node->op_type == "Constant") attribute.value = Tensor::scalar(*f);
        } else if (const auto* fs = std::get_if<std::vector<float>>(&attribute.value)) {
          const Dims dims = {static_cast<std::int64_t>(fs->size())};
          if (node->op_type == "Constant") attribute.value = Tensor::from(*fs, dims);
        }
        if (const auto* tensor = std::get_if<Tensor>(&attribute.value)) {
          if (node->op_type != "Constant" || !is_standard_domain(node->domain)) continue;
          add(*tensor, ir::WeightOrigin::Kind::kConstantNode, output, attribute.name);
        } else if (const auto* body = std::get_if<ir::GraphPtr>(&attribute.value)) {
          place_.path.emplace_back(output, attribute.name);
          collect(**body);
          place_.path.pop_back();
        }
      }
    }
  }

  static std::string first_output(const Node& node) {
    for (const Value* output : node.outputs) {
      if (output != nullptr) return output->name;
    }
    return "";
  }

  void add(const Tensor& tensor, ir::WeightOrigin::Kind kind, const std::string& name,
           const std::string& attribute) {
    if (tensor.dtype() == DataType::kString || tensor.num_elements() == 0) return;
    ir::WeightOrigin origin = place_;
    origin.kind = kind;
    origin.name = name;
    origin.attribute = attribute;
    by_data_.emplace(tensor.raw(), std::make_shared<const ir::WeightOrigin>(std::move(origin)));
  }

  ir::WeightOrigin place_;
  std::unordered_map<const std::byte*, std::shared_ptr<const ir::WeightOrigin>> by_data_;
};

// Subgraphs' tensors that could be trained move to the main graph, where weights are; axes, shapes
// and single numbers stay where they are read.
bool may_be_weight(const Tensor& tensor) {
  return is_floating(tensor.dtype()) && tensor.num_elements() > 1;
}

// Rebuilds the node list of each graph: every node is checked, expanded, upgraded, lowered and has
// its types inferred before the next one is visited.
class Internaliser {
 public:
  Internaliser(const FileModel& file, const opdef::OpRegistry& registry,
               const opdef::Evaluator* evaluator, const RegisteredOperators& operators,
               const opdef::GradientAtFn& gradient_at)
      : registry_(registry),
        evaluator_(evaluator),
        operators_(operators),
        gradient_at_(gradient_at),
        knows_operators_(!registry.all().empty()),
        file_(*file.model),
        model_(ir::clone(*file.model)),
        origins_(model_),
        inferer_(model_, ir::kInternalOpset) {}

  ir::Model run();

 private:
  struct Work {
    Node* node = nullptr;
    std::int64_t opset = 0;   // version of ai.onnx that the node was written for
    bool is_lowered = false;  // the node is not of the file: of the newest version in other domains
  };

  void process_graph(Graph& graph, std::int64_t opset);
  void process_node(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack);
  void process_standard(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack);
  void expand(const Work& work, const ir::Function& function, std::vector<Work>& stack);
  void take_branch(const Work& work, Graph& branch, std::vector<Work>& stack);
  void process_bodies(const Work& work);
  bool process_registered(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack);
  void infer(Node& node);
  void keep(Node& node, ir::GraphBuilder& g, std::vector<Work>& stack);
  void revisit(std::size_t first_new, ir::GraphBuilder& g, std::vector<Work>& stack) const;
  void replace_outputs(Node& node, const std::vector<Value*>& results, std::size_t first_new,
                       ir::GraphBuilder& g);
  bool make_constant(Node& node);
  void hoist_initializers(Graph& graph);
  Value* main_initializer(const Tensor& tensor, const std::string& name);
  void resolve_inputs(Node& node) const;
  Value* resolved(Value* value) const;
  bool is_kept_function(const ir::Function& function) const;
  void mark_definitions();
  void finish_imports();

  const opdef::OpRegistry& registry_;
  const opdef::Evaluator* evaluator_;
  RegisteredOperators operators_;
  const opdef::GradientAtFn& gradient_at_;
  bool knows_operators_;  // false: a registry without operators, which expands nothing
  const ir::Model& file_;
  ir::Model model_;
  Origins origins_;
  Inferer inferer_;
  std::optional<DeclaredShapes> declared_;                    // once the inputs are named
  std::unordered_map<const Value*, Value*> replaced_;         // by a hoisted constant
  std::unordered_map<const std::byte*, Value*> hoisted_;      // by the data
  std::set<std::pair<std::string, std::string>> kept_calls_;  // names of registered operators
  int branches_ = 0;                                          // enclosing the current node
};

// True if a node has another form in the oldest opset than in this one, which came before.
bool has_older_forms(const Graph& graph, std::int64_t opset) {
  return std::ranges::any_of(graph.nodes, [&](const Node* node) {
    const auto bodies = node->subgraphs();
    return (is_standard_domain(node->domain) &&
            since_version("", node->op_type, opset) !=
                since_version("", node->op_type, kOldestOpset)) ||
           std::ranges::any_of(bodies,
                               [&](const Graph* body) { return has_older_forms(*body, opset); });
  });
}

ir::Model Internaliser::run() {
  std::int64_t opset = model_.opset();
  if (opset != 0 && opset < kOldestOpset && !has_older_forms(*model_.graph, opset) &&
      model_.functions.empty()) {
    opset = kOldestOpset;
  }
  if (opset != 0 && opset < kOldestOpset) {
    throw ModelError({.what = "opset " + std::to_string(opset) + " of ai.onnx, expected " +
                              std::to_string(kOldestOpset) + " or newer",
                      .hint = "Convert the model with onnx.version_converter, and compare what it "
                              "computes, or export it again."});
  }
  if (model_.ir_version < 4) ir::close_defaults(*model_.graph);  // they had to be inputs too
  if (operators_.table != nullptr) check_expansion(model_, *operators_.table);
  replace_map_inputs(model_);
  declared_.emplace(registry_, *model_.graph);
  if (gradient_at_) resolve_gradient_names(model_);
  process_graph(*model_.graph, opset == 0 ? ir::kInternalOpset : opset);
  for (Value* output : model_.graph->outputs) {
    Value* value = resolved(output);
    if (value == output) continue;
    Graph& graph = *model_.graph;  // outputs keep their names
    graph.nodes.push_back(graph.make_node("Identity", {value}, {output}, output->name + "_node"));
    replaced_.erase(output);
    infer(*graph.nodes.back());
  }
  drop_resolved_sequences(*model_.graph);
  model_.opaque_training_info.clear();  // written for the file's opset
  mark_definitions();
  finish_imports();
  return std::move(model_);
}

// The checks of a node of a file before anything else reads it, including ONNX's own functions.
// Absent inputs at the end of its list are dropped.
void check_node(Node& node, const Schema& schema) {
  try {
    check_call(node, schema);
    check_attribute_types(node, schema);
    check_attribute_values(node);
  } catch (const ModelError& error) {
    Problem problem = error.problem();
    problem.where = {.graph = node.graph->name, .node = node.name, .op_type = node.op_type};
    throw ModelError(std::move(problem));
  }
  ir::trim_inputs(node, static_cast<std::size_t>(schema.op().min_input()));
}

// LabelEncoder of ai.onnx.ml 1 has one list: a text becomes its place there, a number the text at
// that place.
void upgrade_label_encoder(Node& node) {
  const ir::AttributeValue* classes = node.find_attribute("classes_strings");
  if (node.op_type != "LabelEncoder" || classes == nullptr) return;
  const auto texts = std::get<std::vector<std::string>>(*classes);
  std::vector<std::int64_t> places(texts.size());
  std::iota(places.begin(), places.end(), 0);
  const bool to_number = node.input(0)->dtype() == DataType::kString;
  node.remove_attribute("classes_strings");
  node.remove_attribute(to_number ? "default_string" : "default_int64");
  node.set_attribute(to_number ? "keys_strings" : "values_strings", texts);
  node.set_attribute(to_number ? "values_int64s" : "keys_int64s", places);
}

void Internaliser::process_graph(Graph& graph, std::int64_t opset) {
  std::vector<Node*> nodes = std::exchange(graph.nodes, {});
  std::vector<Work> stack;
  stack.reserve(nodes.size());
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) stack.push_back({*node, opset});
  ir::GraphBuilder g(model_, graph, inferer_, registry_);
  while (!stack.empty()) {
    const Work work = stack.back();
    stack.pop_back();
    try {
      process_node(work, g, stack);
    } catch (const UnsupportedOperatorError&) {
      // An error only where an output is wanted that depends on it.
      if (graph.nodes.empty() || graph.nodes.back() != work.node) graph.nodes.push_back(work.node);
    }
  }
}

void Internaliser::process_node(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack) {
  base::poll_interrupt();
  Node& node = *work.node;
  g.set_scope(node.name);
  resolve_inputs(node);
  if (operators_.table != nullptr && process_registered(work, g, stack)) return;
  const ir::Function* function = called_function(model_, node);
  if (function != nullptr && !is_kept_function(*function)) return expand(work, *function, stack);
  if (const Graph* branch = known_body(node, registry_, evaluator_)) {
    check_branches(node);
    return take_branch(work, const_cast<Graph&>(*branch), stack);  // NOLINT: a body of our node
  }
  if (gradient_at_ && is_gradient_node(node)) return expand_gradient_node(node, g, gradient_at_);
  const Schema* schema = nullptr;  // in other domains
  if (!is_standard_domain(node.domain)) {
    const std::int64_t version = work.is_lowered ? 0 : model_.opset(node.domain);
    if (version > 0) schema = find_schema(node.domain, node.op_type, version);
    if (schema == nullptr) {
      schema = find_schema(node.domain, node.op_type, newest_opset(node.domain));
    }
  }
  if (schema != nullptr && knows_operators_ && registry_.find(node) == nullptr) {
    if (const auto body = schema_function(node, newest_opset(node.domain))) {
      check_node(node, *schema);
      infer(node);
      return expand(work, *body, stack);
    }
  }
  process_bodies(work);
  if (is_standard_domain(node.domain)) return process_standard(work, g, stack);
  if (schema != nullptr) check_node(node, *schema);
  upgrade_label_encoder(node);
  keep(node, g, stack);
}

// Operators that users registered: calls of those with a gradient of their own are kept.
bool Internaliser::process_registered(const Work& work, ir::GraphBuilder& g,
                                      std::vector<Work>& stack) {
  Node& node = *work.node;
  const ir::Function* own = called_function(model_, node);
  const ir::Function* body = own != nullptr ? own : operators_.table->body_of(node);
  if (!operators_.keeps_calls || !operators_.table->covers(node)) {
    if (body == nullptr || body == own) return false;
    expand(work, *body, stack);
    return true;
  }
  // A standard operator stays itself, unless it would be replaced by others.
  const opdef::OpDef* def = registry_.find(node);
  const bool is_known = def != nullptr || find_schema(node.domain, node.op_type,
                                                      newest_opset(node.domain)) != nullptr;
  const bool is_replaced = def == nullptr || def->lower != nullptr;
  if (body == nullptr && (!is_known || !is_replaced)) return false;
  specialise_call(node, body, work.opset, model_, registry_, evaluator_, *operators_.table);
  kept_calls_.insert({node.domain, node.op_type});
  g.graph().nodes.push_back(&node);
  return true;
}

void Internaliser::process_bodies(const Work& work) {
  const opdef::OpDef* def = registry_.find("", work.node->op_type);
  const bool has_branches = def != nullptr && def->taken_body != nullptr;
  branches_ += has_branches ? 1 : 0;
  for (Graph* body : work.node->subgraphs()) {
    hoist_initializers(*body);
    declared_->open_formals(*work.node, *body);
    process_graph(*body, work.opset);
    for (Value*& output : body->outputs) {
      output = resolved(output);
      if (output->graph == body) continue;
      // Not every runtime allows a body to return a value of an outer graph.
      Node* identity = body->add_node("Identity", {output}, 1, {}, "", output->name);
      inferer_.infer(*identity);
      output = identity->outputs[0];
    }
  }
  branches_ -= has_branches ? 1 : 0;
}

// The nodes of the branch, which replace the node, are visited next.
void Internaliser::take_branch(const Work& work, Graph& branch, std::vector<Work>& stack) {
  Graph& graph = *work.node->graph;
  hoist_initializers(branch);
  for (Value*& output : branch.outputs) output = resolved(output);
  const std::size_t first_new = graph.initializers.size();
  const std::vector<Node*> nodes = ir::expand_body(*work.node, branch);
  for (std::size_t i = first_new; i < graph.initializers.size(); ++i) {
    graph.initializers[i]->origin = origins_.find(graph.initializers[i]->initializer);
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    stack.push_back({*node, work.opset});
  }
}

// A branch with inconsistent shapes is never taken with these shapes, so it is not an error in the
// model: nothing is known about its results. If it is taken after all, the run reports it.
void Internaliser::infer(Node& node) {
  try {
    declared_->complete(node.outputs, [&] { inferer_.infer(node); });
  } catch (const ShapeError&) {
    if (branches_ == 0) throw;
    for (Value* output : node.outputs) {
      if (output != nullptr) output->type = {};
    }
  }
}

void Internaliser::process_standard(const Work& work, ir::GraphBuilder& g,
                                    std::vector<Work>& stack) {
  Node& node = *work.node;
  node.domain.clear();
  if (node.op_type == "Constant" && make_constant(node)) return;
  if (const Schema* schema = find_schema("", node.op_type, work.opset)) check_node(node, *schema);
  if (since_version("", node.op_type, ir::kInternalOpset) == 0 && work.opset > ir::kInternalOpset) {
    if (const auto function = schema_function(node, work.opset)) {
      return expand(work, *function, stack);
    }
  }
  const std::size_t first_new = g.graph().nodes.size();
  const auto results = upgrade_node(node, work.opset, g);
  if (results) {
    replace_outputs(node, *results, first_new, g);
    // An operator of a newer opset became others of ours.
    if (work.opset > ir::kInternalOpset) revisit(first_new, g, stack);
    return;
  }
  if (knows_operators_ && registry_.find("", node.op_type) == nullptr) {
    const Schema* schema = find_schema("", node.op_type, ir::kInternalOpset);
    if (schema != nullptr) check_attribute_types(node, *schema);  // also of one older than it
    // An operator without a kernel is run and differentiated through its ONNX function body.
    if (const auto function = schema_function(node, ir::kInternalOpset)) {
      if (const auto wide = in_float32(node, g, /*if_refused=*/false)) {
        replace_outputs(node, *wide, first_new, g);
        return revisit(first_new, g, stack);
      }
      infer(node);  // checks the operator's schema, which its body may not check
      return expand({.node = &node, .opset = ir::kInternalOpset}, *function, stack);
    }
  }
  keep(node, g, stack);
}

void Internaliser::expand(const Work& work, const ir::Function& function,
                          std::vector<Work>& stack) {
  std::vector<Node*> nodes = ir::expand_call(*work.node, function);
  const std::int64_t opset = opset_of(function, work.opset);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) stack.push_back({*node, opset});
  if (stack.size() > 4'000'000) {
    throw ModelError({.what = "its functions expand endlessly",
                      .hint = "Export the model without functions that call each other."});
  }
}

void Internaliser::keep(Node& node, ir::GraphBuilder& g, std::vector<Work>& stack) {
  const std::size_t first_new = g.graph().nodes.size();
  const opdef::OpDef* def = registry_.find(node);
  if (def != nullptr) {
    opdef::check_attributes(node, *def);
    if (def->lower != nullptr) {
      inferer_.check(node);
      // A node that becomes several operators is computed in float32, not rounded between them.
      const bool computes = def->passage == opdef::Passage::kNone && def->expression == nullptr;
      if (computes && node.domain.empty()) {
        if (const auto wide = in_float32(node, g, /*if_refused=*/false)) {
          replace_outputs(node, *wide, first_new, g);
          return revisit(first_new, g, stack);
        }
      }
      if (const auto results = def->lower(registry_.complete(node), g)) {
        replace_outputs(node, *results, first_new, g);
        return revisit(first_new, g, stack);
      }
    }
  } else if (const Schema* schema = find_schema(node.domain, node.op_type, ir::kInternalOpset)) {
    check_attribute_types(node, *schema);
  }
  g.graph().nodes.push_back(&node);
  infer(node);
}

// Converts the nodes that a node was lowered to: they may have a body, or a lowering, themselves.
void Internaliser::revisit(std::size_t first_new, ir::GraphBuilder& g,
                           std::vector<Work>& stack) const {
  std::vector<Node*>& nodes = g.graph().nodes;
  const auto is_final = [this](const Node* node) {
    const opdef::OpDef* def = registry_.find(*node);
    return def != nullptr && def->lower == nullptr;
  };
  const auto first = nodes.begin() + static_cast<std::ptrdiff_t>(first_new);
  const auto open = std::find_if_not(first, nodes.end(), is_final);
  for (auto node = nodes.end(); node != open; --node) {
    stack.push_back({*std::prev(node), ir::kInternalOpset, /*is_lowered=*/true});
  }
  nodes.erase(open, nodes.end());
}

void Internaliser::replace_outputs(Node& node, const std::vector<Value*>& results,
                                   std::size_t first_new, ir::GraphBuilder& g) {
  // Outputs that newer versions do not have are an error only if they are read.
  declared_->complete(node.outputs, [&] {
    for (Value* lost : adopt_results(node, results, first_new, g, inferer_)) {
      replaced_[lost] = nullptr;
    }
  });
}

bool Internaliser::make_constant(Node& node) {
  if (node.attributes.size() != 1 || node.outputs.size() != 1 || node.outputs[0] == nullptr) {
    return false;
  }
  const ir::Attribute& attribute = node.attributes.front();
  Tensor tensor;
  if (const auto* value = std::get_if<Tensor>(&attribute.value)) {
    tensor = *value;
  } else if (const auto* i = std::get_if<std::int64_t>(&attribute.value)) {
    tensor = Tensor::scalar(*i);
  } else if (const auto* s = std::get_if<std::string>(&attribute.value)) {
    tensor = Tensor::from_strings({*s}, Dims{});
  } else if (const auto* is = std::get_if<std::vector<std::int64_t>>(&attribute.value)) {
    tensor = Tensor::from(*is, Dims{static_cast<std::int64_t>(is->size())});
  } else if (const auto* ss = std::get_if<std::vector<std::string>>(&attribute.value)) {
    tensor = Tensor::from_strings(*ss, Dims{static_cast<std::int64_t>(ss->size())});
  } else {
    return false;  // sparse
  }
  Value* output = node.outputs[0];
  Graph& main = *model_.graph;
  const bool has_identity = tensor.dtype() != DataType::kString && tensor.num_elements() > 0;
  const bool is_first = !has_identity || !hoisted_.contains(tensor.raw());
  Graph& graph = *output->graph;
  const bool moves = &graph != &main && may_be_weight(tensor);
  if (moves || (&graph == &main && !is_first)) {
    replaced_[output] = main_initializer(tensor, output->name);
    return true;
  }
  output->producer = nullptr;
  output->type = ir::Type::tensor(tensor.dtype(), tensor.dims());
  output->origin = origins_.find(tensor);
  output->initializer = std::move(tensor);
  if (&graph == &main && has_identity) hoisted_.emplace(output->initializer.raw(), output);
  graph.initializers.push_back(output);
  return true;
}

// The initializer of the main graph with this data.
Value* Internaliser::main_initializer(const Tensor& tensor, const std::string& name) {
  const bool has_identity = tensor.dtype() != DataType::kString && tensor.num_elements() > 0;
  if (has_identity) {
    const auto known = hoisted_.find(tensor.raw());
    if (known != hoisted_.end()) return known->second;
  }
  Value* value = model_.graph->add_initializer(name, tensor);
  value->origin = origins_.find(tensor);
  if (has_identity) hoisted_.emplace(value->initializer.raw(), value);
  return value;
}

void Internaliser::hoist_initializers(Graph& graph) {
  std::erase_if(graph.initializers, [this](const Value* value) {
    if (value->is_input || !may_be_weight(value->initializer)) return false;
    replaced_[value] = main_initializer(value->initializer, value->name);
    return true;
  });
}

Value* Internaliser::resolved(Value* value) const {
  for (auto found = replaced_.find(value); found != replaced_.end();
       found = replaced_.find(value)) {
    if (found->second == nullptr) {
      throw ModelError({.what = "value '" + value->name +
                                "' is read, but newer versions of its operator do not have it",
                        .hint = "Export the model again with opset 18 or newer."});
    }
    value = found->second;
  }
  return value;
}

void Internaliser::resolve_inputs(Node& node) const {
  if (replaced_.empty()) return;
  for (Value*& input : node.inputs) {
    if (input != nullptr) input = resolved(input);
  }
}

bool Internaliser::is_kept_function(const ir::Function& function) const {
  if (kept_calls_.contains({function.domain, function.name})) return true;
  return registry_.find(function.domain, function.name) != nullptr &&
         opset_of(function, ir::kInternalOpset) == ir::kInternalOpset;
}

// Initializers without numbers in the file: axes and constants in the definitions of operators.
void Internaliser::mark_definitions() {
  std::unordered_set<std::string> names;
  for (const Value* value : file_.graph->initializers) names.insert(value->name);
  for (Value* value : model_.graph->initializers) {
    if (value->origin != nullptr || names.contains(value->name)) continue;
    value->origin = std::make_shared<const ir::WeightOrigin>(
        ir::WeightOrigin{.kind = ir::WeightOrigin::Kind::kDefinition});
  }
}

void Internaliser::finish_imports() {
  std::unordered_set<std::string> domains = {""};
  const auto collect = [&](const auto& self, const Graph& graph) -> void {
    for (const Node* node : graph.nodes) {
      domains.insert(node->domain);
      for (const Graph* body : node->subgraphs()) self(self, *body);
    }
  };
  collect(collect, *model_.graph);
  std::erase_if(model_.functions, [&](const ir::Function& f) { return !is_kept_function(f); });
  std::erase_if(model_.opset_imports, [&](const auto& import) {
    return is_standard_domain(import.first) || !domains.contains(import.first);
  });
  model_.opset_imports.insert(model_.opset_imports.begin(), {"", ir::kInternalOpset});
  model_.ir_version = ir::kWrittenIrVersion;
}

}  // namespace

ir::Model to_internal(const FileModel& file, const opdef::OpRegistry& registry,
                      const opdef::Evaluator* evaluator, const RegisteredOperators& operators,
                      const opdef::GradientAtFn& gradient_at) {
  try {
    return Internaliser(file, registry, evaluator, operators, gradient_at).run();
  } catch (const ModelError& error) {
    Problem problem = error.problem();
    if (problem.where.file.empty()) problem.where.file = file.path;
    throw ModelError(std::move(problem));
  } catch (const ShapeError& error) {
    Problem problem = error.problem();
    if (problem.where.file.empty()) problem.where.file = file.path;
    throw ShapeError(std::move(problem));
  }
}

}  // namespace onnxgrad::onnx_io

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/inline.h"
#include "onnx/downgrade_rules.h"
#include "onnx/downgrading.h"
#include "onnx/functions.h"
#include "onnx/inferer.h"
#include "onnx/model_io.h"
#include "onnx/model_rules.h"
#include "onnx/node_rules.h"
#include "onnx/portable_rules.h"
#include "onnx/rewriting.h"
#include "onnx/upgrade_rules.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// The IR version of the ONNX release that introduced an opset: what a runtime of that time accepts.
std::int64_t ir_version_of(std::int64_t opset, bool has_functions) {
  if (opset >= 21) return ir::kWrittenIrVersion;
  if (opset >= 19) return 9;
  return opset >= 15 || has_functions ? 8 : 7;
}

// Rules that write through a builder here call no functions.
class NoFunctions final : public ir::FunctionProvider {
 public:
  ir::Function specialise(std::string_view base_name, const std::vector<Value*>& /*inputs*/,
                          const std::vector<ir::Attribute>& /*attributes*/) const override {
    throw InternalError("function " + std::string(base_name) + " while an opset is changed");
  }
};

// Each node is converted to the internal opset's form, then to that of the target; what a rule
// writes is in the internal form and converted in turn.
class Retargeter {
 public:
  Retargeter(const ir::Model& model, std::int64_t opset, bool inline_functions,
             OlderBodyFn older_body)
      : model_(ir::clone(model)),
        target_(opset),
        opset_(opset),
        inline_functions_(inline_functions),
        older_body_(older_body),
        inferer_(model_, ir::kInternalOpset) {}

  ir::Model run();

 private:
  struct Work {
    Node* node = nullptr;
    std::int64_t opset = 0;
    int expansions = 0;  // nested expansions of operators into bodies, around this node
  };

  void find_unwritable_functions(std::int64_t own_opset);
  bool is_inlined(const ir::Function& function) const {
    return inline_functions_ || unwritable_.contains({function.domain, function.name});
  }
  void process_graph(Graph& graph, std::int64_t opset);
  void process_node(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack);
  void process_control_flow(const Work& work, ir::GraphBuilder& g);
  void process_standard(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack);
  void expand(const Work& work, const ir::Function& function, std::vector<Work>& stack);
  // Removes the nodes from `first_new` on from the graph: they are still to be converted.
  void requeue(std::size_t first_new, const Work& work, ir::GraphBuilder& g,
               std::vector<Work>& stack);
  void check(const Node& node) const;
  void infer(Node& node, int expansions) const;

  ir::Model model_;
  std::int64_t target_;
  std::int64_t opset_;  // opset of the converted nodes: the target, or at first the internal one
  bool inline_functions_;
  OlderBodyFn older_body_;
  using Names = std::set<std::pair<std::string, std::string>>;
  Names replaced_;    // functions that have older bodies
  Names unwritable_;  // functions with older forms only where types are known
  int branches_ = 0;  // around the current node
  Inferer inferer_;
  NoFunctions no_functions_;
};

ir::Model Retargeter::run() {
  const std::int64_t own_opset = model_.opset() == 0 ? ir::kInternalOpset : model_.opset();
  drop_unread_masks(*model_.graph);
  for (ir::Function& function : model_.functions) drop_unread_masks(*function.body);
  if (!inline_functions_ && opset_ < ir::kInternalOpset) find_unwritable_functions(own_opset);
  process_graph(*model_.graph, own_opset);
  if (inline_functions_) {
    std::erase_if(model_.opset_imports, [&](const auto& import) {
      return std::ranges::any_of(model_.functions, [&](const ir::Function& function) {
        return !is_standard_domain(import.first) && function.domain == import.first;
      });
    });
    model_.functions.clear();
  }
  for (ir::Function& function : model_.functions) {
    if (unwritable_.contains({function.domain, function.name})) continue;
    process_graph(*function.body, opset_of(function, own_opset));
    for (auto& [domain, version] : function.opset_imports) {
      if (is_standard_domain(domain)) version = opset_;
    }
  }
  std::erase_if(model_.functions, [&](const ir::Function& function) {
    const std::pair name(function.domain, function.name);
    return replaced_.contains(name) || unwritable_.contains(name);
  });
  model_.set_opset("", opset_);
  model_.ir_version = ir_version_of(opset_, !model_.functions.empty());
  return std::move(model_);
}

// Finds functions without an older form for unknown types; they are expanded in their callers,
// which may know the types.
void Retargeter::find_unwritable_functions(std::int64_t own_opset) {
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    const ir::Model copy = ir::clone(model_);
    for (const ir::Function& function : copy.functions) {
      if (unwritable_.contains({function.domain, function.name})) continue;
      try {
        process_graph(*function.body, opset_of(function, own_opset));
      } catch (const ModelError&) {
        has_changed = unwritable_.emplace(function.domain, function.name).second;
        opset_ = target_;
        branches_ = 0;
      }
    }
  }
}

void Retargeter::process_graph(Graph& graph, std::int64_t opset) {
  std::vector<Node*> nodes = std::exchange(graph.nodes, {});
  std::vector<Work> stack;
  stack.reserve(nodes.size());
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    stack.push_back({.node = *node, .opset = opset});
  }
  ir::GraphBuilder g(model_, graph, inferer_, no_functions_);
  while (!stack.empty()) {
    const Work work = stack.back();
    stack.pop_back();
    process_node(work, g, stack);
  }
}

void Retargeter::process_node(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack) {
  Node& node = *work.node;
  g.set_scope(node.name);
  if (const auto older = older_body_ == nullptr ? std::nullopt : older_body_(node, target_)) {
    replaced_.emplace(node.domain, node.op_type);
    return expand(work, *older, stack);
  }
  const ir::Function* function = called_function(model_, node);
  if (function != nullptr && is_inlined(*function)) return expand(work, *function, stack);
  const bool is_call = function != nullptr;
  if (!node.subgraphs().empty()) return process_control_flow(work, g);
  if (is_standard_domain(node.domain) && !is_call) return process_standard(work, g, stack);
  g.graph().nodes.push_back(&node);
  infer(node, work.expansions);
}

// A branch that does not fit together is one that is not taken. The bodies that ONNX defines
// operators by do not cover every shape that the operators take (LayerNormalization's scale).
void Retargeter::infer(Node& node, int expansions) const {
  try {
    inferer_.infer(node);
  } catch (const ShapeError& error) {
    if (branches_ > 0) {
      for (Value* output : node.outputs) {
        if (output != nullptr) output->type = {};
      }
      return;
    }
    if (expansions == 0) throw;
    throw ModelError({.what = "an operator with these shapes cannot be written in opset " +
                              std::to_string(opset_),
                      .where = error.problem().where,
                      .detail = error.problem().what + ".",
                      .hint = "Choose a newer target opset."});
  }
}

// Types come from bodies in the internal form; these are then converted to the target.
void Retargeter::process_control_flow(const Work& work, ir::GraphBuilder& g) {
  Node& node = *work.node;
  if (is_standard_domain(node.domain) && upgrade_node(node, work.opset, g)) {
    throw ModelError({.what = node.op_type + " of opset " + std::to_string(work.opset) +
                              " has no equivalent in other opsets",
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Export the model again with opset 9 or newer."});
  }
  const int is_branching = node.op_type == "If" ? 1 : 0;
  branches_ += is_branching;
  const std::int64_t target = std::exchange(opset_, ir::kInternalOpset);
  for (Graph* body : node.subgraphs()) process_graph(*body, work.opset);
  infer(node, work.expansions);
  opset_ = target;
  if (target != ir::kInternalOpset) {
    for (Graph* body : node.subgraphs()) process_graph(*body, ir::kInternalOpset);
    if (is_standard_domain(node.domain)) check(node);
  }
  branches_ -= is_branching;
  g.graph().nodes.push_back(&node);
}

// Bodies of functions have no types: their numbers are a Constant and a CastLike. Where they are
// inlined the type is known, and the result of `node` becomes a constant. False: it is none.
bool become_number(Node& node, Graph& graph) {
  const Value* number = node.op_type == "CastLike" ? node.input(0) : nullptr;
  const Value* like = node.input(1);
  if (number == nullptr || like == nullptr || like->dtype() == DataType::kUndefined) return false;
  const Tensor* tensor = number->is_constant() ? &number->initializer : nullptr;
  if (number->producer != nullptr && number->producer->op_type == "Constant") {
    const ir::AttributeValue* value = number->producer->find_attribute("value");
    tensor = value == nullptr ? nullptr : std::get_if<Tensor>(value);
  }
  Value* result = node.outputs[0];
  const bool is_output = std::ranges::find(graph.outputs, result) != graph.outputs.end();
  if (tensor == nullptr || tensor->num_elements() != 1 || is_output) return false;
  result->producer = nullptr;
  result->output_index = 0;
  result->initializer = tensor->cast(like->dtype());
  result->type = ir::Type::tensor(like->dtype(), tensor->dims());
  graph.initializers.push_back(result);
  return true;
}

void Retargeter::process_standard(const Work& work, ir::GraphBuilder& g, std::vector<Work>& stack) {
  Node& node = *work.node;
  const std::size_t first_new = g.graph().nodes.size();
  const auto adopt = [&](const std::vector<Value*>& results) {
    for (const Value* lost : adopt_results(node, results, first_new, g, inferer_)) {
      throw ModelError({.what = "output '" + lost->name + "' has no equivalent in other opsets",
                        .where = {.node = node.name, .op_type = node.op_type},
                        .hint = "Omit target_opset, or do not read this output."});
    }
    requeue(first_new, work, g, stack);
  };
  if (inline_functions_ && work.expansions > 0 && become_number(node, g.graph())) return;
  if (const auto results = upgrade_node(node, work.opset, g)) return adopt(*results);
  const std::int64_t newest = std::max(work.opset, ir::kInternalOpset);
  if (since_version("", node.op_type, ir::kInternalOpset) != 0) infer(node, work.expansions);
  if (const auto results = portable_form(node, opset_, g)) return adopt(*results);
  if (const auto results = downgrade_node(node, opset_, g)) return adopt(*results);
  const bool is_too_new = since_version("", node.op_type, opset_) == 0 ||
                          (node.op_type == "GroupNormalization" && opset_ < 21);
  if (is_too_new) {
    const auto function = schema_function(node, newest);
    constexpr int kMaxExpansions = 16;
    if (!function || work.expansions >= kMaxExpansions) {
      throw ModelError(
          {.what = "this operator does not exist in opset " + std::to_string(opset_),
           .where = {.graph = node.graph->name, .node = node.name, .op_type = node.op_type},
           .hint = "Choose a newer target opset."});
    }
    return expand(work, *function, stack);
  }
  check(node);
  g.graph().nodes.push_back(&node);
}

void Retargeter::expand(const Work& work, const ir::Function& function, std::vector<Work>& stack) {
  std::vector<Node*> nodes = ir::expand_call(*work.node, function);
  const std::int64_t opset = opset_of(function, work.opset);
  for (Node* node : nodes) ir::trim_inputs(*node);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    stack.push_back({.node = *node, .opset = opset, .expansions = work.expansions + 1});
  }
}

void Retargeter::requeue(std::size_t first_new, const Work& work, ir::GraphBuilder& g,
                         std::vector<Work>& stack) {
  std::vector<Node*>& nodes = g.graph().nodes;
  for (std::size_t i = nodes.size(); i-- > first_new;) {
    stack.push_back(
        {.node = nodes[i], .opset = ir::kInternalOpset, .expansions = work.expansions + 1});
  }
  nodes.resize(first_new);
}

void Retargeter::check(const Node& node) const {
  const Schema* schema = find_schema("", node.op_type, opset_);
  const auto with_place = [&](Problem problem) {
    problem.where = {.graph = node.graph->name, .node = node.name, .op_type = node.op_type};
    problem.detail = "It would be written in opset " + std::to_string(opset_) + ".";
    problem.hint = "Choose a newer target opset.";
    return problem;
  };
  if (schema == nullptr) {
    throw ModelError(with_place(
        {.what = "the operator does not exist there", .hint = "Choose a newer target opset."}));
  }
  for (const ir::Attribute& a : node.attributes) {
    if (schema->op().attributes().contains(a.name)) continue;
    refuse_downgrade(node, "attribute '" + a.name + "'");
  }
  try {
    check_call(node, *schema);
    const auto is_reference = [](const ir::Attribute& a) {
      return std::holds_alternative<ir::AttributeRef>(a.value);
    };
    if (std::ranges::none_of(node.attributes, is_reference)) check_attribute_types(node, *schema);
  } catch (const ModelError& error) {
    Problem problem = with_place(error.problem());
    problem.what += ", which the target opset cannot express";
    throw ModelError(std::move(problem));
  }
}

}  // namespace

ir::Model to_target_opset(const ir::Model& model, std::int64_t opset, bool inline_functions,
                          OlderBodyFn older_body) {
  if (opset < kOldestTarget || opset > ir::kInternalOpset) {
    throw ModelError({.what = "target opset " + std::to_string(opset) + ", expected " +
                              std::to_string(kOldestTarget) + " to " +
                              std::to_string(ir::kInternalOpset),
                      .hint = "Choose an opset in this range, or omit target_opset."});
  }
  return Retargeter(model, opset, inline_functions, older_body).run();
}

}  // namespace onnxgrad::onnx_io

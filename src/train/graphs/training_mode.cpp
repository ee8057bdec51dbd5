#include "train/graphs/training_mode.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::StateBinding;
using ir::Value;

// Running statistics: the initializer, and its value at this point of the graph.
using Statistics = std::vector<StateBinding>;
using IsNeeded = std::function<bool(const Node&)>;

Value* current(const Statistics& statistics, Value* initializer) {
  const auto known = std::ranges::find(statistics, initializer, &StateBinding::input);
  return known == statistics.end() ? initializer : known->output;
}

void set_current(Statistics& statistics, Value* initializer, Value* value) {
  const auto known = std::ranges::find(statistics, initializer, &StateBinding::input);
  if (known == statistics.end()) {
    statistics.push_back({.input = initializer, .output = value});
  } else {
    known->output = value;
  }
}

class Switcher {
 public:
  Switcher(const opdef::OpRegistry& registry, std::span<Value* const> trained, TrainingMode mode)
      : registry_(registry), trained_(trained), mode_(mode) {}

  // Appends to `statistics` what the nodes of g.graph() compute from them.
  void enter(GraphBuilder& g, const IsNeeded& is_needed, Statistics& statistics) const {
    for (Node* node : std::vector<Node*>(g.graph().nodes)) {
      if (!is_needed(*node)) continue;
      const opdef::OpDef* def = registry_.find(*node);
      if (node->domain.empty() && node->op_type == "If") {
        enter_branches(g, *node, statistics);
      } else if (!node->subgraphs().empty()) {
        enter_iterated(g, *node, statistics);
      } else if (def != nullptr && def->switch_on_training != nullptr && takes_part(*node, *def)) {
        opdef::complete_attributes(*node, *def);
        for (const StateBinding& fresh : def->switch_on_training(*node, g)) {
          // A layer that is used twice continues from the result of its first use.
          std::ranges::replace(node->inputs, fresh.input, current(statistics, fresh.input));
          set_current(statistics, fresh.input, fresh.output);
        }
      }
    }
  }

 private:
  // Statistics that change in an iteration become states of the Loop or Scan. The body of a
  // SequenceMap has none, and its iterations no order: only layers that draw at random change.
  void enter_iterated(GraphBuilder& g, Node& node, Statistics& statistics) const {
    const bool is_loop = node.op_type == "Loop";
    ir::Graph& body = *node.subgraphs().front();
    GraphBuilder inner = g.inside(body);
    if (!is_loop && node.op_type != "Scan") return enter_unordered(inner);
    Statistics after;
    enter(inner, [](const Node&) { return true; }, after);
    for (const auto& [initializer, value] : after) {
      const auto state = static_cast<std::ptrdiff_t>(count_states(node, is_loop));
      Value* formal = body.add_input(initializer->name + "_before", initializer->type);
      std::ranges::rotate(body.inputs.begin() + state + (is_loop ? 2 : 0),
                          std::prev(body.inputs.end()), body.inputs.end());
      ir::replace_uses(body, {{initializer, formal}});
      body.outputs.insert(body.outputs.begin() + state + (is_loop ? 1 : 0), value);
      node.inputs.insert(node.inputs.begin() + state + (is_loop ? 2 : 0),
                         current(statistics, initializer));
      node.outputs.insert(node.outputs.begin() + state, nullptr);
      for (auto i = static_cast<std::size_t>(state) + 1; i < node.outputs.size(); ++i) {
        if (node.outputs[i] != nullptr) ir::Graph::set_output(&node, i, node.outputs[i]);
      }
      Value* result = g.graph().add_output(&node, static_cast<std::size_t>(state),
                                           initializer->type, initializer->name + "_running");
      set_current(statistics, initializer, result);
    }
  }

  static std::size_t count_states(const Node& node, bool is_loop) {
    if (is_loop) return node.inputs.size() - 2;
    return node.inputs.size() - static_cast<std::size_t>(node.int_attribute("num_scan_inputs", 0));
  }

  void enter_unordered(GraphBuilder& g) const {
    for (Node* node : std::vector<Node*>(g.graph().nodes)) {
      for (ir::Graph* body : node->subgraphs()) {
        GraphBuilder inner = g.inside(*body);
        enter_unordered(inner);
      }
      const opdef::OpDef* def = registry_.find(*node);
      if (def == nullptr || !def->is_random || def->switch_on_training == nullptr) continue;
      opdef::complete_attributes(*node, *def);
      def->switch_on_training(*node, g);
    }
  }

  bool takes_part(const Node& node, const opdef::OpDef& def) const {
    if (mode_ == TrainingMode::kOn || def.weight_inputs.empty()) return true;
    return std::ranges::any_of(def.weight_inputs, [&](int i) {
      return std::ranges::find(trained_, node.input(static_cast<std::size_t>(i))) != trained_.end();
    });
  }

  // Statistics that change in a branch become outputs of the If; the other branch returns the old.
  void enter_branches(GraphBuilder& g, Node& node, Statistics& statistics) const {
    std::vector<std::pair<ir::Graph*, Statistics>> branches;
    for (ir::Graph* branch : node.subgraphs()) {
      GraphBuilder inner = g.inside(*branch);
      branches.emplace_back(branch, statistics);
      enter(inner, [](const Node&) { return true; }, branches.back().second);
    }
    std::vector<Value*> changed;
    for (const auto& [branch, after] : branches) {
      for (const auto& [initializer, value] : after) {
        const bool is_new = value != current(statistics, initializer) &&
                            std::ranges::find(changed, initializer) == changed.end();
        if (is_new) changed.push_back(initializer);
      }
    }
    for (Value* initializer : changed) {
      for (const auto& [branch, after] : branches) {
        GraphBuilder inner = g.inside(*branch);
        Value* value = current(after, initializer);
        branch->outputs.push_back(value->graph == branch ? value : inner.identity(value));
      }
      Value* result = g.graph().add_output(&node, node.outputs.size(), initializer->type,
                                           initializer->name + "_running");
      set_current(statistics, initializer, result);
    }
  }

  const opdef::OpRegistry& registry_;
  std::span<Value* const> trained_;
  TrainingMode mode_;
};

}  // namespace

std::vector<StateBinding> switch_on_training(GraphBuilder& g, const opdef::OpRegistry& registry,
                                             const std::unordered_set<const Value*>& needed,
                                             std::span<Value* const> trained, TrainingMode mode) {
  Statistics statistics;
  if (mode == TrainingMode::kOff) return statistics;
  const auto is_needed = [&](const Node& node) {
    return std::ranges::any_of(node.outputs,
                               [&](const Value* value) { return needed.contains(value); });
  };
  Switcher(registry, trained, mode).enter(g, is_needed, statistics);
  return statistics;
}

namespace {

bool is_true(const Value* value) {
  const Tensor* const tensor = constant_tensor(value);
  return tensor != nullptr && tensor->dtype() == DataType::kBool && tensor->num_elements() == 1 &&
         tensor->to_int64s().front() != 0;
}

class Leaver {
 public:
  // Returns whether leave() may change something.
  static bool has_training(const ir::Graph& graph) {
    return std::ranges::any_of(graph.nodes, [](const Node* node) {
      if (std::ranges::any_of(node->subgraphs(),
                              [](const ir::Graph* body) { return has_training(*body); })) {
        return true;
      }
      if (!node->domain.empty()) return false;
      if (node->op_type == "Dropout") return is_training_dropout(*node);
      return node->op_type == "BatchNormalization" && is_training_norm(*node);
    });
  }

  // Returns whether anything has changed.
  bool leave(ir::Graph& graph) {
    bool has_changed = false;
    std::unordered_map<const Value*, Value*> replaced;
    for (Node* node : std::vector<Node*>(graph.nodes)) {
      for (ir::Graph* body : node->subgraphs()) has_changed |= leave(*body);
      if (!node->domain.empty()) continue;
      if (node->op_type == "Dropout") has_changed |= leave_dropout(*node);
      if (node->op_type == "BatchNormalization") has_changed |= leave_norm(*node, graph, replaced);
    }
    if (!replaced.empty()) ir::replace_uses(graph, replaced);
    return has_changed;
  }

 private:
  static bool is_training_dropout(const Node& node) { return is_true(node.input(2)); }

  static bool leave_dropout(Node& node) {
    if (!is_training_dropout(node)) return false;
    node.inputs.resize(node.inputs[1] == nullptr ? 1 : 2);
    return true;
  }

  static constexpr std::size_t kFirstBuffer = 3;  // saved mean and variance of the batch

  static bool reads_buffers(const Node& node, const ir::Graph& graph) {
    const ir::Uses uses(graph);
    return std::any_of(
        node.outputs.begin() + kFirstBuffer, node.outputs.end(),
        [&](const Value* value) { return value != nullptr && uses.count(value) > 0; });
  }

  // In training mode since opset 14 by an attribute, before by further outputs.
  static bool is_training_norm(const Node& node) {
    return node.int_attribute("training_mode", 0) != 0 ||
           std::any_of(node.outputs.begin() + 1, node.outputs.end(),
                       [](const Value* value) { return value != nullptr; });
  }

  // The running statistics after it are those before it.
  static bool leave_norm(Node& node, ir::Graph& graph,
                         std::unordered_map<const Value*, Value*>& replaced) {
    if (!is_training_norm(node)) return false;
    if (node.outputs.size() > kFirstBuffer && reads_buffers(node, graph)) return false;
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      if (node.output(i) == nullptr) continue;
      Value* before = node.inputs.at(i + 2);  // old statistics, perhaps updated by another layer
      if (const auto known = replaced.find(before); known != replaced.end()) before = known->second;
      const bool is_output =
          std::ranges::find(graph.outputs, node.outputs[i]) != graph.outputs.end();
      if (is_output) {  // it keeps its name
        graph.insert_after(&node, "Identity", {before}, {node.outputs[i]});
      } else {
        replaced.emplace(node.outputs[i], before);
      }
    }
    node.outputs.resize(1);
    node.remove_attribute("training_mode");
    return true;
  }
};

}  // namespace

const Tensor* constant_tensor(const Value* value) {
  if (value == nullptr) return nullptr;
  if (value->is_constant()) return &value->initializer;
  const bool is_constant_node = value->producer != nullptr &&
                                value->producer->op_type == "Constant" &&
                                value->producer->domain.empty();
  if (!is_constant_node) return nullptr;
  const ir::AttributeValue* tensor = value->producer->find_attribute("value");
  return tensor == nullptr ? nullptr : std::get_if<Tensor>(tensor);
}

bool leave_training(ir::Model& model) {
  bool has_changed = Leaver().leave(*model.graph);
  for (ir::Function& function : model.functions) has_changed |= Leaver().leave(*function.body);
  return has_changed;
}

std::shared_ptr<const ir::Model> in_inference_form(std::shared_ptr<const ir::Model> model) {
  const bool has_training = Leaver::has_training(*model->graph) ||
                            std::ranges::any_of(model->functions, [](const ir::Function& function) {
                              return Leaver::has_training(*function.body);
                            });
  if (!has_training) return model;
  std::shared_ptr<ir::Model> form = ir::writable(std::move(model));
  leave_training(*form);
  return form;
}

}  // namespace onnxgrad::train

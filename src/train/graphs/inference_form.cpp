#include "train/graphs/inference_form.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

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

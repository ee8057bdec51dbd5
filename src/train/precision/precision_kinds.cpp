#include "train/precision/precision_kinds.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "train/tools/patterns.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

// An operator whose first `operands` inputs are multiplied and added up.
struct MatmulOperator {
  std::string_view domain;
  std::string_view op_type;
  std::size_t operands;  // the first ones
};
constexpr std::array kMatmuls = {
    MatmulOperator{"", "MatMul", 2},
    MatmulOperator{"", "Gemm", 2},
    MatmulOperator{"", "Conv", 2},
    MatmulOperator{"", "ConvTranspose", 2},
    MatmulOperator{"", "Einsum", 64},
    MatmulOperator{ir::kFunctionDomain, "ConvInputGrad", 2},
    MatmulOperator{ir::kFunctionDomain, "ConvWeightGrad", 2},
};

// Operators that only move elements of their first operand (Concat: of all), and that stock
// onnxruntime runs on bfloat16 too.
constexpr std::array<std::string_view, 9> kMovements = {
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
    "Slice",   "Split",   "Concat",  "Identity",
};

// Whether it computes integers: from 16-bit values neither they nor what is clipped are exact.
bool rounds_to_integers(const Node& node) {
  if (node.domain != ir::kFunctionDomain) return false;
  const std::string_view name = opdef::base_name(node.domain, node.op_type);
  return name == "FakeQuantize" || name == "QuantizedNumber" || name == "RoundedBias";
}

}  // namespace

bool is_wide(const Value* value) {
  if (value == nullptr || !value->type.is_tensor() || value->dtype() != DataType::kFloat32) {
    return false;
  }
  const auto dims = value->type.static_dims();
  return !(value->type.has_rank() && value->type.rank() == 0) &&
         !(dims && dims->num_elements() == 1);
}

NodeKinds::NodeKinds(const ir::Graph& graph, const opdef::OpRegistry& registry,
                     const PrecisionScope& scope, const std::vector<std::string>& float32_nodes,
                     const ir::Uses& uses)
    : registry_(registry), scope_(scope), patterns_(float32_nodes), uses_(uses) {
  find_attention(graph);
}

std::size_t NodeKinds::num_operands(const Node& node) const {
  const std::string_view name = opdef::base_name(node.domain, node.op_type);
  const auto* const found = std::ranges::find_if(kMatmuls, [&](const MatmulOperator& one) {
    return one.domain == node.domain && one.op_type == name;
  });
  return found == kMatmuls.end() ? 0 : std::min(found->operands, node.inputs.size());
}

NodeKind NodeKinds::kind(const Node& node) const {
  if (is_excluded(node)) return NodeKind::kExcluded;
  if (num_operands(node) > 0) return NodeKind::kMatmul;
  const opdef::OpDef* def = registry_.find(node);
  if (def != nullptr && def->fold_types != nullptr) return NodeKind::kShape;
  if (node.domain.empty() && std::ranges::find(kMovements, node.op_type) != kMovements.end()) {
    return NodeKind::kMovement;
  }
  if (def != nullptr && def->expression != nullptr) return NodeKind::kElementwise;
  if (node.domain.empty() && node.op_type.starts_with("Reduce")) return NodeKind::kReduction;
  return NodeKind::kWide;
}

bool NodeKinds::has_matmul_inside(const Node& node) const {
  return std::ranges::any_of(node.subgraphs(), [this](const ir::Graph* body) {
    return std::ranges::any_of(body->nodes, [this](const Node* inner) {
      return kind(*inner) == NodeKind::kMatmul || has_matmul_inside(*inner);
    });
  });
}

bool NodeKinds::undoes_broadcast(const Node& node) {
  if (!node.domain.empty() || node.outputs.size() != 1) return false;
  if (node.op_type == "ReduceSum") {
    return node.input(1) != nullptr && !node.inputs[1]->is_constant();
  }
  const Value* from = node.op_type == "Reshape" ? node.inputs[0] : nullptr;
  return from != nullptr && from->producer != nullptr && undoes_broadcast(*from->producer);
}

bool NodeKinds::matches(const Node& node) const {
  return std::ranges::any_of(patterns_, [&](const std::string& pattern) {
    return (!node.name.empty() && glob_match(pattern, node.name)) ||
           glob_match(pattern, node.op_type);
  });
}

bool NodeKinds::is_excluded(const Node& node) const {
  const auto found = scope_.backward.find(&node);
  const Node* primal = found == scope_.backward.end() ? &node : found->second;
  return primal != nullptr && (rounds_to_integers(*primal) || matches(*primal));
}

void NodeKinds::check_patterns(const ir::Graph& graph) const {
  std::vector<std::string> names;
  collect_names(graph, names);
  for (const std::string& pattern : patterns_) {
    const auto is_match = [&](const std::string& name) { return glob_match(pattern, name); };
    if (std::ranges::any_of(names, is_match)) continue;
    throw OptionError({.what = "float32_nodes: no node or operator matches '" + pattern + "'",
                       .hint = base::nearest_or(pattern, names)});
  }
}

void NodeKinds::collect_names(const ir::Graph& graph, std::vector<std::string>& names) const {
  for (const Node* node : graph.nodes) {
    if (scope_.backward.contains(node)) continue;
    if (!node->name.empty()) names.push_back(node->name);
    names.push_back(node->op_type);
    for (const ir::Graph* body : node->subgraphs()) collect_names(*body, names);
  }
}

// With what only moves elements before and after.
void NodeKinds::find_attention(const ir::Graph& graph) {
  for (const Node* node : graph.nodes) {
    if (scope_.backward.contains(node)) continue;
    for (const ir::Graph* body : node->subgraphs()) find_attention(*body);
    if (!node->domain.empty() || node->op_type != "Softmax") continue;
    NodeSet found{node};
    if (find_scores(node->inputs[0], found) && find_sum(node->outputs[0], found)) {
      attention_.merge(found);
    }
  }
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const Node* node = graph.nodes[i];
    if (scope_.backward.contains(node) || kind(*node) != NodeKind::kMovement) continue;
    const auto uses = uses_.of(node->outputs[0]);
    const bool leads_in = std::ranges::any_of(uses, [&](const ir::Use& use) {
      return use.node != nullptr && attention_.contains(use.node) &&
             !scope_.backward.contains(use.node);
    });
    if (leads_in) attention_.insert(node);
  }
  for (const Node* node : graph.nodes) {
    const auto backward = scope_.backward.find(node);
    // Movements of the result itself in the backward pass do not count: it is stored by then.
    const bool follows =
        kind(*node) == NodeKind::kMovement && node->inputs[0] != nullptr &&
        attention_.contains(node->inputs[0]->producer) &&
        (backward != scope_.backward.end()) == scope_.backward.contains(node->inputs[0]->producer);
    const bool is_gradient =
        backward != scope_.backward.end() && attention_.contains(backward->second);
    if (follows || is_gradient) attention_.insert(node);
  }
}

bool NodeKinds::joins(const Node* node, NodeSet& found) const {
  const NodeKind what = kind(*node);
  return (what == NodeKind::kElementwise || what == NodeKind::kMovement) &&
         found.size() < kMostInAttention && found.insert(node).second;
}

// Back through element-wise work to a product of two computed values.
bool NodeKinds::find_scores(const Value* value, NodeSet& found) const {
  const Node* node = value == nullptr ? nullptr : value->producer;
  if (node == nullptr || !is_wide(value)) return false;
  if (node->op_type == "MatMul" && kind(*node) == NodeKind::kMatmul) {
    const bool of_values =
        node->inputs[0]->producer != nullptr && node->inputs[1]->producer != nullptr;
    if (of_values) found.insert(node);
    return of_values;
  }
  if (!joins(node, found)) return false;
  bool has_scores = false;
  for (const Value* input : node->inputs) has_scores = find_scores(input, found) || has_scores;
  return has_scores;
}

bool NodeKinds::find_sum(const Value* value, NodeSet& found) const {
  bool has_matmul = false;
  for (const ir::Use& use : uses_.of(value)) {
    const Node* node = use.node;
    if (node == nullptr || scope_.backward.contains(node)) continue;
    if (node->op_type == "MatMul" && kind(*node) == NodeKind::kMatmul && use.input == 0) {
      found.insert(node);
      has_matmul = true;
    } else if (node->op_type == "Dropout" || kind(*node) == NodeKind::kMovement) {
      if (!found.insert(node).second) continue;
      has_matmul = find_sum(node->outputs[0], found) || has_matmul;
    }
  }
  return has_matmul;
}

}  // namespace onnxgrad::train

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ir/builder.h"
#include "ir/uses.h"
#include "opdef/registry.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: onnxgrad.LSTMGates(X, W, R, ..., Y), as the gradient of LSTM calls it, where Y is the
// first output of LSTM(X, W, R, ...) with the same attributes; likewise of GRU and RNN. The
// operator, which computes the gates anyway, becomes onnxgrad.fused.LSTM: its own outputs, then
// those of LSTMGates. If only the gradient reads the gates, and they are a sigmoid or tanh of their
// sums, both nodes get gate_values = 1: the gates are kept as values, from which the derivatives
// follow, and onnxgrad.LSTMGradient becomes onnxgrad.fused.LSTMGradient. Unread results of
// onnxgrad.LSTMGradient (stock runtimes want them in the file) are dropped, so that the kernel
// leaves out their products.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

struct CellRow {
  std::string_view op_type;
  std::string_view gates;
  std::string_view gradient;
  std::size_t num_inputs = 0;   // inputs of the operator: those of the function except Y
  std::size_t num_outputs = 0;  // outputs of the operator
};

constexpr std::size_t kGradientGates = 8;  // index of this input of LSTMGradient
constexpr std::array<CellRow, 3> kCells = {{
    {"LSTM", "LSTMGates", "LSTMGradient", 8, 3},
    {"GRU", "GRUGates", "GRUGradient", 6, 2},
    {"RNN", "RNNGates", "RNNGradient", 6, 2},
}};

// The row that has this function in a column.
const CellRow* find_cell(const Node& node, std::string_view CellRow::* column) {
  if (node.domain != ir::kFunctionDomain) return nullptr;
  const std::string_view name = opdef::base_name(node.domain, node.op_type);
  const auto* found = std::ranges::find(kCells, name, column);
  return found == kCells.end() ? nullptr : found;
}

template <class T>
bool is_same_as(const ir::AttributeValue& a, const ir::AttributeValue& b) {
  const T* first = std::get_if<T>(&a);
  const T* second = std::get_if<T>(&b);
  return first != nullptr && second != nullptr && *first == *second;
}

// Equality of attributes of the types that these operators have.
bool is_same(const ir::AttributeValue& a, const ir::AttributeValue& b) {
  return is_same_as<std::int64_t>(a, b) || is_same_as<float>(a, b) ||
         is_same_as<std::string>(a, b) || is_same_as<std::vector<float>>(a, b) ||
         is_same_as<std::vector<std::string>>(a, b);
}

bool has_attributes_of(const Node& gates, const Node& cell) {
  const auto agrees = [](const Node& a, const Node& b) {
    return std::ranges::all_of(a.attributes, [&](const ir::Attribute& attribute) {
      // One is 0 in a plan, the other follows from a shape.
      if (attribute.name == "layout" || attribute.name == "hidden_size") return true;
      const ir::AttributeValue* other = b.find_attribute(attribute.name);
      return other != nullptr && is_same(*other, attribute.value);
    });
  };
  return agrees(gates, cell) && agrees(cell, gates);
}

// The operator whose gates these are, or nullptr.
Node* find_operator(const Node& gates, const CellRow& row) {
  const Value* y = gates.input(row.num_inputs);
  Node* cell = y == nullptr || y->output_index != 0 ? nullptr : y->producer;
  if (cell == nullptr || !cell->domain.empty() || cell->op_type != row.op_type) return nullptr;
  for (std::size_t i = 0; i < row.num_inputs; ++i) {
    if (cell->input(i) != gates.input(i)) return nullptr;
  }
  return has_attributes_of(gates, *cell) ? cell : nullptr;
}

// Sigmoid for i, o and u, tanh for n and the cell, none of them clipped; without peepholes.
bool has_usual_gates(const Node& lstm) {
  constexpr std::array<std::string_view, 3> kUsual = {"Sigmoid", "Tanh", "Tanh"};
  if (const ir::AttributeValue* given = lstm.find_attribute("activations")) {
    const auto* names = std::get_if<std::vector<std::string>>(given);
    if (names == nullptr) return false;
    for (std::size_t i = 0; i < names->size(); ++i) {
      if ((*names)[i] != kUsual[i % kUsual.size()]) return false;
    }
  }
  return lstm.float_attribute("clip", 0.0F) == 0 && lstm.input(7) == nullptr;
}

// The node with its gates as values.
Node with_gate_values(const Node& node, std::string_view op_type) {
  Node changed = node;
  changed.domain = ir::kFusedDomain;
  changed.op_type = op_type;
  changed.set_attribute("gate_values", std::int64_t{1});
  return changed;
}

// True if any are kept.
bool keep_values(ir::Graph& graph, const PassContext& context) {
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    const CellRow* row = find_cell(*node, &CellRow::gradient);
    if (row == nullptr || row->op_type != "LSTM") continue;
    const Value* gates = node->input(kGradientGates);
    Node* cell = gates == nullptr ? nullptr : gates->producer;
    if (cell == nullptr || cell->domain != ir::kFusedDomain || cell->op_type != row->op_type ||
        uses.only_reader(gates) != node || cell->input(7) != node->input(6)) {
      continue;
    }
    if (gates->dtype() != DataType::kFloat32 && gates->dtype() != DataType::kFloat64) continue;
    if (!has_usual_gates(*cell) || !has_attributes_of(*node, *cell)) continue;
    Node with_values = with_gate_values(*cell, cell->op_type);
    Node gradient = with_gate_values(*node, row->gradient);
    if (!context.prefers(with_values) || !context.prefers(gradient)) continue;
    *cell = std::move(with_values);
    *node = std::move(gradient);
    changed = true;
  }
  return changed;
}

// True if it drops any.
bool drop_unread_gradients(ir::Graph& graph, const PassContext& context) {
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (find_cell(*node, &CellRow::gradient) == nullptr) continue;
    Node shorter = *node;
    for (Value*& output : shorter.outputs) {
      if (output != nullptr && uses.count(output) == 0) output = nullptr;
    }
    if (shorter.outputs == node->outputs || !context.prefers(shorter)) continue;
    *node = std::move(shorter);
    changed = true;
  }
  return changed;
}

// The operator with the results of its gates function after its own.
Node with_gates(const Node& cell, const Node& gates, const CellRow& row) {
  Node both = cell;
  both.domain = ir::kFusedDomain;
  both.outputs.resize(row.num_outputs, nullptr);
  both.outputs.insert(both.outputs.end(), gates.outputs.begin(), gates.outputs.end());
  return both;
}

}  // namespace

bool keep_gates(ir::Graph& graph, const PassContext& context) {
  const bool has_cells = any_node(graph, [](const Node& node) {
    return find_cell(node, &CellRow::gates) != nullptr ||
           find_cell(node, &CellRow::gradient) != nullptr;
  });
  if (!has_cells) return false;
  bool changed = false;
  for (Node* node : graph.nodes) {
    const CellRow* row = find_cell(*node, &CellRow::gates);
    Node* cell = row == nullptr ? nullptr : find_operator(*node, *row);
    if (cell == nullptr || !context.prefers(with_gates(*cell, *node, *row))) continue;
    cell->domain = ir::kFusedDomain;
    for (std::size_t i = 0; i < node->outputs.size(); ++i) {
      ir::Graph::set_output(cell, row->num_outputs + i, node->outputs[i]);
    }
    node->outputs.clear();
    changed = true;
  }
  if (changed) {
    std::erase_if(graph.nodes, [](const Node* node) {
      return node->outputs.empty() && find_cell(*node, &CellRow::gates) != nullptr;
    });
  }
  changed = drop_unread_gradients(graph, context) || changed;
  return keep_values(graph, context) || changed;
}

}  // namespace onnxgrad::passes

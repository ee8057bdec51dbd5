#include "train/batch_edits.h"

#include <algorithm>
#include <utility>

namespace onnxgrad::train {

using ir::Node;
using ir::Value;

namespace {

void insert_before(const Node* place, Node* node) {
  auto& nodes = place->graph->nodes;
  nodes.insert(std::ranges::find(nodes, place), node);
}

}  // namespace

Value* BatchEditor::ints(const std::vector<std::int64_t>& values) {
  has_new_constants_ = true;
  const Dims dims{static_cast<std::int64_t>(values.size())};
  return graph_.add_initializer("batch_shape", Tensor::from(values, dims));
}

Value* BatchEditor::op(Node& place, std::string_view op_type, std::vector<Value*> inputs,
                       std::vector<ir::Attribute> attributes) {
  ir::Graph& graph = *place.graph;
  Value* const result = graph.add_value(graph.names().unique("batch_" + std::string(op_type)));
  Node* const node = graph.make_node(op_type, std::move(inputs), {result}, result->name,
                                     std::move(attributes));
  insert_before(&place, node);
  new_nodes_.push_back(node);
  return result;
}

// Made once, at the beginning of the graph, so that subgraphs may read it too.
Value* BatchEditor::num_rows() {
  if (num_rows_ != nullptr) return num_rows_;
  Node& first = *graph_.nodes.front();
  Value* const shape = op(first, "Shape", {rows_});
  num_rows_ = op(first, "Gather", {shape, ints({0})}, {{.name = "axis", .value = std::int64_t{0}}});
  return num_rows_;
}

Value* BatchEditor::rows_times(Node& place, std::int64_t factor) {
  return factor == 1 ? num_rows() : op(place, "Mul", {num_rows(), ints({factor})});
}

// `entries` with rows * factor in one position.
Value* BatchEditor::joined(Node& place, const std::vector<std::int64_t>& entries,
                           std::size_t position, std::int64_t factor) {
  Value* const entry = rows_times(place, factor);
  if (entries.size() == 1) return entry;
  const auto at = entries.begin() + static_cast<std::ptrdiff_t>(position);
  std::vector<Value*> parts;
  if (at != entries.begin()) parts.push_back(ints({entries.begin(), at}));
  parts.push_back(entry);
  if (at + 1 != entries.end()) parts.push_back(ints({at + 1, entries.end()}));
  return op(place, "Concat", std::move(parts), {{.name = "axis", .value = std::int64_t{0}}});
}

void BatchEditor::change_entry(const BatchEdit& edit, Node& node) {
  if (node.op_type == "Slice" && node.inputs.size() == 1) {  // of an old opset
    auto ends = node.ints_attribute("ends");
    ends.at(edit.position) = edit.number;
    node.set_attribute("ends", std::move(ends));
    return;
  }
  Value*& operand = node.inputs.at(edit.operand);
  if (!edit.entries.empty()) {
    if (edit.factor != 0) {
      operand = joined(node, edit.entries, edit.position, edit.factor);
    } else {
      std::vector<std::int64_t> entries = edit.entries;
      entries[edit.position] = edit.number;
      operand = ints(entries);
    }
    return;
  }
  Tensor mask = Tensor::zeros(DataType::kBool, Dims{static_cast<std::int64_t>(edit.size)});
  mask.mutable_data<bool>()[edit.position] = true;
  Value* const entry = edit.factor != 0 ? rows_times(node, edit.factor) : ints({edit.number});
  Value* const chosen = graph_.add_initializer("batch_entry", std::move(mask));
  has_new_constants_ = true;
  operand = op(node, "Where", {chosen, entry, operand});
}

void BatchEditor::repeat(const BatchEdit& edit, Node& node) {
  Value* row = node.inputs.at(edit.operand);
  const auto axis = static_cast<std::int64_t>(edit.position);
  if (!edit.has_one_row) {
    row = op(node, "Gather", {row, ints({0})}, {{.name = "axis", .value = axis}});
  }
  if (edit.kind == BatchEdit::Kind::kRepeat) {
    const std::vector<std::int64_t> ones(edit.size, 1);
    row = op(node, "Expand", {row, joined(node, ones, edit.position, 1)});
  }
  node.inputs[edit.operand] = row;
}

void BatchEditor::apply(const BatchEdit& edit, Node& node) {
  if (edit.kind == BatchEdit::Kind::kEntry) {
    change_entry(edit, node);
  } else {
    repeat(edit, node);
  }
}

}  // namespace onnxgrad::train

#include "train/open_batch/batch_edits.h"

#include <algorithm>
#include <numeric>
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

Value* BatchEditor::ints(const std::vector<std::int64_t>& values, DataType dtype) {
  has_new_constants_ = true;
  const Dims dims{static_cast<std::int64_t>(values.size())};
  Tensor tensor = Tensor::from(values, dims);
  if (dtype == DataType::kInt32) tensor = tensor.cast(dtype);  // Slice takes both
  return graph_.add_initializer("batch_shape", std::move(tensor));
}

Value* BatchEditor::op(Node& place, std::string_view op_type, std::vector<Value*> inputs,
                       std::vector<ir::Attribute> attributes) {
  ir::Graph& graph = *place.graph;
  Value* const result = graph.add_value(graph.names().unique("batch_" + std::string(op_type)));
  Node* const node =
      graph.make_node(op_type, std::move(inputs), {result}, result->name, std::move(attributes));
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
  if (node.op_type == "Slice" && node.inputs.size() == 1) {  // form of an old opset
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
      operand = ints(entries, operand->dtype());
    }
    return;
  }
  Tensor mask = Tensor::zeros(DataType::kBool, Dims{static_cast<std::int64_t>(edit.size)});
  mask.mutable_data<bool>()[edit.position] = true;
  Value* const entry =
      edit.factor != 0 ? rows_times(node, edit.factor) : ints({edit.number}, operand->dtype());
  Value* const chosen = graph_.add_initializer("batch_entry", std::move(mask));
  has_new_constants_ = true;
  operand = op(node, "Where", {chosen, entry, operand});
}

void BatchEditor::repeat(const BatchEdit& edit, Node& node) {
  Value* row = node.inputs.at(edit.operand);
  const auto axis = static_cast<std::int64_t>(edit.position);
  if (!edit.has_one_row) {
    std::vector<std::int64_t> first(static_cast<std::size_t>(edit.factor));
    std::iota(first.begin(), first.end(), std::int64_t{0});
    row = op(node, "Gather", {row, ints(first)}, {{.name = "axis", .value = axis}});
  }
  if (edit.factor > 1) {
    row = repeat_blocks(edit, node, row);
  } else if (edit.kind == BatchEdit::Kind::kRepeat) {
    const std::vector<std::int64_t> ones(edit.size, 1);
    row = op(node, "Expand", {row, joined(node, ones, edit.position, 1)});
  }
  node.inputs[edit.operand] = row;
}

// [..., factor, ...] for one row becomes [..., rows * factor, ...].
Value* BatchEditor::repeat_blocks(const BatchEdit& edit, Node& node, Value* block) {
  const auto axis = static_cast<std::ptrdiff_t>(edit.position);
  std::vector<std::int64_t> apart = edit.entries;
  apart[edit.position] = edit.factor;
  apart.insert(apart.begin() + axis, 1);
  const std::vector<std::int64_t> ones(apart.size(), 1);
  std::vector<std::int64_t> together = edit.entries;
  together[edit.position] = -1;
  Value* const reshaped = op(node, "Reshape", {block, ints(apart)});
  Value* const all = op(node, "Expand", {reshaped, joined(node, ones, edit.position, 1)});
  return op(node, "Reshape", {all, ints(together)});
}

// Indices [rows, ..., m] whose first one is the row become those of one row without it.
void BatchEditor::leave_out_row_numbers(const BatchEdit& edit, Node& node) {
  std::vector<std::int64_t> others(static_cast<std::size_t>(edit.number) - 1);
  std::iota(others.begin(), others.end(), std::int64_t{1});
  const auto last = static_cast<std::int64_t>(edit.size) - 1;
  Value* const row = op(node, "Gather", {node.inputs.at(1), ints({0})},
                        {{.name = "axis", .value = std::int64_t{0}}});
  Value* const columns = op(node, "Gather", {row, ints(others)}, {{.name = "axis", .value = last}});
  const std::vector<std::int64_t> ones(edit.size, 1);
  node.inputs[1] = op(node, "Expand", {columns, joined(node, ones, 0, 1)});
  node.set_attribute("batch_dims", std::int64_t{1});
}

void BatchEditor::apply(const BatchEdit& edit, Node& node) {
  if (edit.kind == BatchEdit::Kind::kEntry) {
    change_entry(edit, node);
  } else if (edit.kind == BatchEdit::Kind::kRowNumbers) {
    leave_out_row_numbers(edit, node);
  } else {
    repeat(edit, node);
  }
}

}  // namespace onnxgrad::train

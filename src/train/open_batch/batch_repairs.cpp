#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "train/open_batch/batch_tracker.h"

// Operands of nodes whose results do not follow the number of rows.

namespace onnxgrad::train {

using ir::Dim;
using ir::Node;
using ir::Value;

namespace {

std::vector<std::int64_t> known_entries(const Value* value) {
  const Tensor tensor = known_value(value);
  if (!tensor.is_defined() || tensor.dims().rank() > 1) return {};
  return tensor.to_int64s();
}

// All rows, of `factor` elements along `axis`, have the same bytes.
bool has_equal_rows(const Tensor& tensor, std::size_t axis, std::int64_t factor) {
  if (tensor.dtype() == DataType::kString) return false;
  const Dims& dims = tensor.dims();
  const std::int64_t outer = dims.product(0, axis);
  const std::int64_t inner = factor * dims.product(axis + 1, dims.rank());
  const std::int64_t rows = dims[axis] / factor;
  const auto all = static_cast<std::size_t>(tensor.size_bytes());
  if (all == 0 || all % static_cast<std::size_t>(dims.num_elements()) != 0) return false;
  const std::size_t bytes =
      all / static_cast<std::size_t>(dims.num_elements()) * static_cast<std::size_t>(inner);
  const auto row = [&](std::int64_t o, std::int64_t r) {
    return std::span(tensor.raw() + static_cast<std::size_t>(o * rows + r) * bytes, bytes);
  };
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t r = 1; r < rows; ++r) {
      if (!std::ranges::equal(row(o, r), row(o, 0))) return false;
    }
  }
  return true;
}

bool broadcasts(const Node& node) {
  constexpr std::array<std::string_view, 24> kNames{"Add",       "And",
                                                    "BitShift",  "BitwiseAnd",
                                                    "BitwiseOr", "BitwiseXor",
                                                    "Div",       "Equal",
                                                    "Greater",   "Max",
                                                    "Mean",      "Min",
                                                    "Mod",       "Mul",
                                                    "Or",        "Pow",
                                                    "PRelu",     "Sub",
                                                    "Sum",       "Where",
                                                    "Xor",       "GreaterOrEqual",
                                                    "Less",      "LessOrEqual"};
  return node.domain.empty() && std::ranges::find(kNames, node.op_type) != kNames.end();
}

}  // namespace

bool BatchTracker::repair(Node& node) {
  if (!node.domain.empty()) return false;
  if (node.op_type == "Reshape") return repair_reshape(node);
  if (node.op_type == "Expand") return repair_expand(node);
  if (node.op_type == "Slice") return repair_slice(node);
  if (node.op_type == "Resize" || node.op_type == "AffineGrid") return repair_sizes(node);
  if (node.op_type == "GatherND") return repair_row_numbers(node);
  return repair_constants(node);
}

void BatchTracker::change_entry(Node& node, std::size_t operand, std::size_t position,
                                std::size_t size, std::int64_t factor, std::int64_t number) {
  apply({.operand = operand,
         .position = position,
         .size = size,
         .factor = factor,
         .number = number,
         .entries = known_entries(node.inputs[operand])},
        node);
}

bool BatchTracker::repair_reshape(Node& node) {
  const auto axis = reshaped_axis(node);
  if (!axis) return false;
  const ir::SymbolicShape& result = *before(node.outputs[0])->type.shape;
  std::vector<std::int64_t> entries;
  for (const Dim& dim : result) entries.push_back(dim.is_static() ? dim.value() : -1);
  const bool is_whole = std::ranges::count(entries, -1) == 0;
  if (!is_whole) {
    change_entry(node, 1, *axis, result.size(), entries[*axis] / rows_, 0);
    return true;
  }
  if (std::ranges::count(entries, 0) > 0) return false;
  apply({.operand = 1,
         .position = *axis,
         .size = entries.size(),
         .number = -1,
         .entries = std::move(entries)},
        node);
  return true;
}

// 1 keeps what the input has.
bool BatchTracker::repair_expand(Node& node) {
  const auto from = find_rows(node.inputs[0]);
  const Value* const old = before(node.outputs[0]);
  if (!from || old == nullptr || !old->type.shape || rows_ == 1) return false;
  const std::size_t added = old->type.shape->size() - node.inputs[0]->type.shape->size();
  change_entry(node, 1, added + from->axis, old->type.shape->size(), 0, 1);
  return true;
}

// All rows: to the end, however many there are.
bool BatchTracker::repair_slice(Node& node) {
  const auto from = find_rows(node.inputs[0]);
  const Value* const old = before(node.outputs[0]);
  const Value* const old_input = before(node.inputs[0]);
  if (!from || old == nullptr || old_input == nullptr || node.inputs.size() < 3) return false;
  const Dim& size = (*old_input->type.shape)[from->axis];
  if (!old->type.shape || !(*old->type.shape)[from->axis].surely_equals(size)) return false;
  const std::size_t rank = old->type.shape->size();
  const auto ends = known_entries(node.inputs[2]);
  std::vector<std::int64_t> axes;
  if (node.input(3) != nullptr) axes = known_entries(node.input(3));
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::int64_t axis =
        axes.empty() ? static_cast<std::int64_t>(i) : normalize_axis(axes.at(i), rank);
    // End of int32 or int64.
    constexpr std::int64_t kEnd = std::numeric_limits<std::int32_t>::max();
    if (axis != static_cast<std::int64_t>(from->axis) || ends[i] >= kEnd) continue;
    change_entry(node, 2, i, ends.size(), 0, kEnd);
    return true;
  }
  return false;
}

bool BatchTracker::repair_sizes(Node& node) {
  const auto from = find_rows(node.inputs[0]);
  const std::size_t operand = node.op_type == "Resize" ? 3 : 1;
  const Value* const sizes = node.input(operand);
  if (!from || sizes == nullptr || node.find_attribute("axes") != nullptr) return false;
  const auto size = sizes->type.static_dims();
  if (!size || size->rank() != 1) return false;
  const auto count = static_cast<std::size_t>((*size)[0]);
  change_entry(node, operand, from->axis, count, from->factor, 0);
  return true;
}

// An operand that does not depend on the rows, but has as many along the axis of another one.
bool BatchTracker::repair_constants(Node& node) {
  const bool is_matmul = node.op_type == "MatMul";
  const bool is_parallel = node.op_type == "Concat" || node.op_type == "GatherElements";
  const bool is_gemm = node.op_type == "Gemm";
  if (!broadcasts(node) && !is_matmul && !is_cell(node) && !is_parallel && !is_gemm) return false;
  for (std::size_t from = 0; from < node.inputs.size(); ++from) {
    const auto rows = find_rows(node.inputs[from]);
    if (!rows) continue;
    const std::size_t rank = node.inputs[from]->type.shape->size();
    const std::size_t from_end = rank - rows->axis;
    if (is_matmul && from_end <= 2) continue;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const Value* const operand = node.inputs[i];
      if (operand == nullptr || i == from || !operand->type.shape || find_rows(operand)) continue;
      const std::size_t own_rank = operand->type.shape->size();
      std::size_t axis = own_rank - from_end;
      if (is_parallel) axis = rows->axis;
      if (is_cell(node)) {
        if (i < 4) continue;
        axis = i == 4 || node.int_attribute("layout", 0) == 1 ? 0 : 1;
      }
      if (is_gemm && i != 2) continue;
      const bool expands = is_parallel || is_cell(node);
      const bool is_outer = outer_of(node.inputs[from], *rows) == 1;
      if (axis < own_rank && is_outer && repeat_rows(node, i, axis, rows->factor, expands)) {
        return true;
      }
    }
  }
  return false;
}

// A row is `factor` elements along the axis.
bool BatchTracker::repeat_rows(Node& node, std::size_t operand, std::size_t axis,
                               std::int64_t factor, bool expands) {
  Value* const value = node.inputs[operand];
  const auto dims = value->type.static_dims();
  if (!dims || (*dims)[axis] != rows_ * factor) return false;
  if (rows_ == 1 && factor == 1 && !expands) return false;  // it broadcasts
  if (rows_ > 1) {
    const Tensor tensor = known_value(value);
    if (!tensor.is_defined() || !has_equal_rows(tensor, axis, factor)) return false;
  }
  const bool repeats = expands || factor > 1;
  apply({.kind = repeats ? BatchEdit::Kind::kRepeat : BatchEdit::Kind::kFirstRow,
         .operand = operand,
         .position = axis,
         .size = dims->rank(),
         .factor = factor,
         .has_one_row = rows_ == 1,
         .entries = {dims->begin(), dims->end()}},
        node);
  return true;
}

// Masks of attention are looked up by the numbers of row and column: the first index is the row.
bool BatchTracker::repair_row_numbers(Node& node) {
  const auto from = find_rows(node.inputs[0]);
  const Value* const value = node.input(1);
  if (!from || from->axis != 0 || from->factor != 1 || value == nullptr || find_rows(value) ||
      node.int_attribute("batch_dims", 0) != 0) {
    return false;
  }
  const Tensor tensor = known_value(value);
  if (!tensor.is_defined() || tensor.dims().rank() < 2) return false;
  const Dims& dims = tensor.dims();
  const std::int64_t depth = dims[dims.rank() - 1];
  if (dims[0] != rows_ || depth < 2 || dims.num_elements() == 0) return false;
  const std::vector<std::int64_t> indices = tensor.to_int64s();
  const std::int64_t of_row = dims.num_elements() / rows_;
  for (std::int64_t i = 0; i < dims.num_elements(); ++i) {
    const auto place = static_cast<std::size_t>(i);
    const auto in_first = static_cast<std::size_t>(i % of_row);
    const bool is_row = i % depth == 0;
    if (indices[place] != (is_row ? i / of_row : indices[in_first])) return false;
  }
  apply({.kind = BatchEdit::Kind::kRowNumbers, .operand = 1, .size = dims.rank(), .number = depth},
        node);
  return true;
}

}  // namespace onnxgrad::train

#include "train/batch_tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "onnx/known_branches.h"
#include "onnxgrad/error.h"
#include "train/engine.h"

namespace onnxgrad::train {

using ir::Dim;
using ir::Node;
using ir::Type;
using ir::Value;

namespace {

// Large and prime, so that it is in no other dimension.
std::int64_t probe_rows_for(std::int64_t rows) { return rows % 251 == 0 ? 257 : 251; }

Tensor known_value(const Value* value) {
  if (value == nullptr) return {};
  if (value->is_constant()) return value->initializer;
  return onnx_io::find_constant(*value, builtin_engine().ops, &builtin_evaluator());
}

std::vector<std::int64_t> known_entries(const Value* value) {
  const Tensor tensor = known_value(value);
  if (!tensor.is_defined() || tensor.dims().rank() > 1) return {};
  return tensor.to_int64s();
}

// All rows along `axis` have the same bytes.
bool has_equal_rows(const Tensor& tensor, std::size_t axis) {
  if (tensor.dtype() == DataType::kString) return false;
  const Dims& dims = tensor.dims();
  const std::int64_t outer = dims.product(0, axis);
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const auto all = static_cast<std::size_t>(tensor.size_bytes());
  if (all == 0 || all % static_cast<std::size_t>(dims.num_elements()) != 0) return false;
  const std::size_t bytes =
      all / static_cast<std::size_t>(dims.num_elements()) * static_cast<std::size_t>(inner);
  const auto row = [&](std::int64_t o, std::int64_t r) {
    return std::span(tensor.raw() + static_cast<std::size_t>(o * dims[axis] + r) * bytes, bytes);
  };
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t r = 1; r < dims[axis]; ++r) {
      if (!std::ranges::equal(row(o, r), row(o, 0))) return false;
    }
  }
  return true;
}

// Operators that return a shape, or read only a type: no row is lost.
bool reads_no_rows(const Node& node) {
  constexpr std::array<std::string_view, 3> kNames{"Shape", "Size", "CastLike"};
  return std::ranges::find(kNames, node.op_type) != kNames.end();
}

bool broadcasts(const Node& node) {
  constexpr std::array<std::string_view, 24> kNames{
      "Add",     "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor",     "Div",  "Equal",
      "Greater", "Max", "Mean",     "Min",        "Mod",       "Mul",            "Or",   "Pow",
      "PRelu",   "Sub", "Sum",      "Where",      "Xor",       "GreaterOrEqual", "Less", "LessOrEqual"};
  return node.domain.empty() && std::ranges::find(kNames, node.op_type) != kNames.end();
}

void clear_types(const Node& node) {
  for (Value* output : node.outputs) {
    if (output != nullptr) output->type = {};
  }
}

void clear_types(const ir::Graph& graph) {
  for (const Node* node : graph.nodes) {
    clear_types(*node);
    for (const ir::Graph* body : node->subgraphs()) clear_types(*body);
  }
}

// Values of subgraphs are listed with their copies by the clone too.
std::string unused_symbol(const ir::Graph& graph) {
  std::set<std::string> used;
  const auto add = [&used](const std::vector<Value*>& values) {
    for (const Value* value : values) {
      if (!value->type.shape) continue;
      for (const Dim& dim : *value->type.shape) used.insert(dim.symbol());
    }
  };
  add(graph.inputs);
  add(graph.outputs);
  std::string symbol = "batch";
  for (int i = 1; used.contains(symbol); ++i) symbol = fmt::format("batch_{}", i);
  return symbol;
}

bool is_number(const Dim& dim) { return dim.is_static(); }

// The product of some dimensions, if all are numbers.
std::optional<std::int64_t> product(std::span<const Dim> dims) {
  std::int64_t result = 1;
  for (const Dim& dim : dims) {
    if (!is_number(dim)) return std::nullopt;
    result *= dim.value();
  }
  return result;
}

}  // namespace

BatchTracker::BatchTracker(const ir::Model& fixed, std::int64_t rows,
                           const std::vector<std::string>& inputs,
                           std::vector<std::size_t> choices)
    : fixed_(fixed),
      rows_(rows),
      probe_rows_(probe_rows_for(rows)),
      symbol_(unused_symbol(*fixed.graph)),
      choices_(std::move(choices)) {
  std::unordered_map<const Value*, Value*> copies;
  probe_ = std::make_shared<ir::Model>(ir::clone(fixed, &copies));
  for (const auto& [old, copy] : copies) before_[copy] = old;
  inferer_ = builtin_engine().make_inferer(*probe_);
  start(inputs);
}

BatchTracker::~BatchTracker() = default;

void BatchTracker::start(const std::vector<std::string>& inputs) {
  clear_types(*probe_->graph);
  for (const std::string& name : inputs) {
    Value* const input = probe_->graph->find(name);
    (*input->type.shape)[0] = Dim(probe_rows_);
    if (!editor_) editor_.emplace(*probe_->graph, input);
  }
}

std::shared_ptr<ir::Model> BatchTracker::open() {
  visit(*probe_->graph);
  for (const Value* output : probe_->graph->outputs) {
    const auto position = find_rows(output);
    if (position && outer_of(output, *position) != 1) {
      throw BatchObstacle{"in output '" + output->name + "' rows are not in one piece"};
    }
  }
  set_types(*probe_->graph);
  for (Node* node : editor_->new_nodes()) {
    clear_types(*node);
    inferer_->infer(*node);
  }
  return probe_;
}

const Value* BatchTracker::before(const Value* value) const {
  const auto known = before_.find(value);
  return known == before_.end() ? nullptr : known->second;
}

// Throws: BatchObstacle (a dimension that is not a multiple of the rows, or two that are).
std::optional<BatchTracker::Position> BatchTracker::find_rows(const Value* value) const {
  const Value* const old = before(value);
  if (value == nullptr || old == nullptr || !value->type.shape || !old->type.shape) return {};
  const ir::SymbolicShape& dims = *value->type.shape;
  const ir::SymbolicShape& old_dims = *old->type.shape;
  if (dims.size() != old_dims.size()) return {};
  std::optional<Position> found;
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    if (!is_number(dims[axis]) || !is_number(old_dims[axis])) continue;
    const std::int64_t now = dims[axis].value();
    const std::int64_t then = old_dims[axis].value();
    if (now == then) continue;
    if (found || then % rows_ != 0 || now != then / rows_ * probe_rows_) {
      throw BatchObstacle{"the dimensions of '" + value->name + "' mix rows"};
    }
    found = Position{.axis = axis, .factor = then / rows_};
  }
  return found;
}

std::int64_t BatchTracker::outer_of(const Value* value, const Position& position) const {
  if (position.factor == 1) return 1;
  const auto known = outer_.find(value);
  return known == outer_.end() ? 1 : known->second;
}

// Operators other than Reshape keep what a dimension is made of.
void BatchTracker::keep_outer(const Node& node) {
  for (const Value* output : node.outputs) {
    const auto position = output == nullptr ? std::nullopt : find_rows(output);
    if (!position || position->factor == 1) continue;
    for (const Value* input : node.inputs) {
      const auto from = input == nullptr ? std::nullopt : find_rows(input);
      if (from && from->factor == position->factor) outer_[output] = outer_of(input, *from);
    }
  }
}

void BatchTracker::visit(ir::Graph& graph) {
  for (Node* node : std::vector<Node*>(graph.nodes)) step(*node);
}

// "" if types were inferred.
std::string BatchTracker::infer(Node& node) {
  clear_types(node);
  try {
    inferer_->infer(node);
    return "";
  } catch (const Error& error) {
    return error.problem().what;
  }
}

void BatchTracker::infer_new(std::size_t first) {
  for (std::size_t i = first; i < editor_->new_nodes().size(); ++i) {
    inferer_->infer(*editor_->new_nodes()[i]);
  }
}

void BatchTracker::apply(BatchEdit edit, Node& node) {
  for (const Value* output : node.outputs) {
    if (output == nullptr) continue;
    edit.value = output->name;
    break;
  }
  const std::size_t first = editor_->new_nodes().size();
  const Value* const old = before(node.inputs.at(edit.operand));
  editor_->apply(edit, node);
  infer_new(first);
  if (edit.kind == BatchEdit::Kind::kRepeat) before_[node.inputs[edit.operand]] = old;
  edits_.push_back(std::move(edit));
}

void BatchTracker::step(Node& node) {
  constexpr int kMostRepairs = 8;  // a node has few operands that can hold a number of rows
  const auto carried = [this](const Value* input) { return find_rows(input).has_value(); };
  if (!node.subgraphs().empty()) enter_bodies(node);
  const bool carries = std::ranges::any_of(node.inputs, carried) ||
                       std::ranges::any_of(ir::captured_values(node), carried);
  std::string fault = "?";
  for (int round = 0; round < kMostRepairs; ++round) {
    fault = infer(node);
    if (fault.empty()) {
      fault = mismatch(node, carries);
      if (fault.empty()) {
        if (node.op_type != "Reshape") keep_outer(node);
        return;
      }
    }
    if (!repair(node)) break;
  }
  throw BatchObstacle{node.describe() + ": " + fault};
}

// Why the inferred types of the outputs do not follow the number of rows; "" if they do.
std::string BatchTracker::mismatch(const Node& node, bool carries) {
  bool any_carries = !carries || reads_no_rows(node);
  for (const Value* output : node.outputs) {
    const Value* const old = output == nullptr ? nullptr : before(output);
    if (old == nullptr || !old->type.shape) continue;
    if (!output->type.shape || output->type.shape->size() != old->type.shape->size()) {
      return "the shape of '" + output->name + "' does not follow the number of rows";
    }
    if (find_rows(output)) any_carries = true;
  }
  if (!any_carries) return "it combines rows, or takes some of them";
  if (node.op_type == "Reshape" && node.domain.empty()) {
    const auto axis = reshaped_axis(node);
    const auto found = find_rows(node.outputs[0]);
    if (axis && (!found || found->axis != *axis)) return "its shape is for a number of rows";
  }
  return "";
}

bool BatchTracker::repair(Node& node) {
  if (!node.domain.empty()) return false;
  if (node.op_type == "Reshape") return repair_reshape(node);
  if (node.op_type == "Expand") return repair_expand(node);
  if (node.op_type == "Slice") return repair_slice(node);
  if (node.op_type == "Resize") return repair_sizes(node);
  return repair_constants(node);
}

// The axis of the result that has the rows. Elements keep their order: what is before and after
// the rows has as many as in the input.
std::optional<std::size_t> BatchTracker::reshaped_axis(const Node& node) {
  const auto from = find_rows(node.inputs[0]);
  const Value* const old = before(node.outputs[0]);
  const Value* const old_input = before(node.inputs[0]);
  if (!from || old == nullptr || old_input == nullptr || !old->type.shape) return std::nullopt;
  if (const auto known = chosen_.find(&node); known != chosen_.end()) return known->second;
  const std::span dims(*old_input->type.shape);
  const auto before_rows = product(dims.first(from->axis));
  if (!before_rows) return std::nullopt;
  const std::int64_t outer = *before_rows * outer_of(node.inputs[0], *from);
  const auto after = product(dims.subspan(from->axis + 1));
  const std::span result(*old->type.shape);
  struct Candidate {
    std::size_t axis;
    std::int64_t outer;  // within the dimension
    int rank;            // of preference, from 0
  };
  std::vector<Candidate> candidates;
  for (std::size_t axis = 0; axis < result.size(); ++axis) {
    const auto first = product(result.first(axis));
    if (!first || *first == 0 || outer % *first != 0 || !is_number(result[axis])) continue;
    const std::int64_t own_outer = outer / *first;
    const std::int64_t size = result[axis].value();
    if (own_outer * rows_ == 0 || size % (own_outer * rows_) != 0) continue;
    const std::int64_t inner = size / (own_outer * rows_);
    const auto rest = product(result.subspan(axis + 1));
    const std::int64_t own_inner = from->factor / outer_of(node.inputs[0], *from);
    if (rest && after && inner * *rest != own_inner * *after) continue;
    const bool is_exact = size == rows_;
    const int rank = is_exact ? (axis == from->axis ? 0 : 1) : own_outer == 1 ? 2 : 3;
    candidates.push_back({axis, own_outer, rank});
  }
  if (candidates.empty()) {
    if (!product(result)) return std::nullopt;
    throw BatchObstacle{node.describe() + ": it mixes rows with another dimension"};
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::rank);
  std::size_t choice = 0;
  if (candidates.size() > 1) {
    const std::size_t number = possibilities_.size();
    possibilities_.push_back(candidates.size());
    if (number < choices_.size()) choice = std::min(choices_[number], candidates.size() - 1);
  }
  outer_[node.outputs[0]] = candidates[choice].outer;
  chosen_[&node] = candidates[choice].axis;
  return candidates[choice].axis;
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
  for (const Dim& dim : result) entries.push_back(is_number(dim) ? dim.value() : -1);
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
    constexpr std::int64_t kEnd = std::numeric_limits<std::int32_t>::max();  // of either type
    if (axis != static_cast<std::int64_t>(from->axis) || ends[i] >= kEnd) continue;
    change_entry(node, 2, i, ends.size(), 0, kEnd);
    return true;
  }
  return false;
}

bool BatchTracker::repair_sizes(Node& node) {
  const auto from = find_rows(node.inputs[0]);
  const Value* const sizes = node.input(3);
  if (!from || sizes == nullptr || node.find_attribute("axes") != nullptr) return false;
  const std::size_t rank = node.inputs[0]->type.shape->size();
  change_entry(node, 3, from->axis, rank, from->factor, 0);
  return true;
}

// An operand that does not depend on the rows, but has as many along the axis of another one.
bool BatchTracker::repair_constants(Node& node) {
  const bool is_matmul = node.op_type == "MatMul";
  const bool is_cell = node.op_type == "LSTM" || node.op_type == "GRU" || node.op_type == "RNN";
  const bool is_parallel = node.op_type == "Concat" || node.op_type == "GatherElements";
  const bool is_gemm = node.op_type == "Gemm";
  if (!broadcasts(node) && !is_matmul && !is_cell && !is_parallel && !is_gemm) return false;
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
      if (is_cell) {
        if (i < 4) continue;
        axis = i == 4 || node.int_attribute("layout", 0) == 1 ? 0 : 1;
      }
      if (is_gemm && i != 2) continue;
      if (axis < own_rank && repeat_rows(node, i, axis, is_parallel || is_cell)) return true;
    }
  }
  return false;
}

bool BatchTracker::repeat_rows(Node& node, std::size_t operand, std::size_t axis, bool expands) {
  Value* const value = node.inputs[operand];
  const Dim& dim = (*value->type.shape)[axis];
  if (!is_number(dim) || dim.value() != rows_ || (rows_ == 1 && !expands)) return false;
  if (rows_ > 1) {
    const Tensor tensor = known_value(value);
    if (!tensor.is_defined() || !has_equal_rows(tensor, axis)) return false;
  }
  apply({.kind = expands ? BatchEdit::Kind::kRepeat : BatchEdit::Kind::kFirstRow,
         .operand = operand,
         .position = axis,
         .size = value->type.shape->size(),
         .factor = 1,
         .has_one_row = rows_ == 1},
        node);
  return true;
}

// Types of the formal inputs of a body, and the body's own nodes. A state of a Loop or Scan that
// begins with the same numbers for all rows becomes one with a row for each.
void BatchTracker::enter_bodies(Node& node) {
  const bool is_loop = node.op_type == "Loop";
  const bool is_scan = node.op_type == "Scan";
  if (is_loop || is_scan) {
    const std::size_t first = is_loop ? 2 : 0;
    std::size_t end = node.inputs.size();
    if (is_scan) end -= static_cast<std::size_t>(node.int_attribute("num_scan_inputs", 0));
    const auto carried = [this](const Value* value) { return find_rows(value).has_value(); };
    const bool carries = std::ranges::any_of(node.inputs, carried) ||
                         std::ranges::any_of(ir::captured_values(node), carried);
    for (std::size_t i = first; carries && i < end; ++i) {
      const Value* const state = node.inputs[i];
      if (state == nullptr || carried(state) || !state->type.shape) continue;
      const auto& dims = *state->type.shape;
      if (dims.size() < 2 && !is_floating(state->dtype())) continue;
      const auto axis = std::ranges::find(dims, Dim(rows_));
      if (axis == dims.end()) continue;
      repeat_rows(node, i, static_cast<std::size_t>(axis - dims.begin()), /*expands=*/true);
    }
  }
  for (ir::Graph* body : node.subgraphs()) {
    set_formals(node, *body);
    visit(*body);
  }
}

void BatchTracker::set_formals(Node& node, ir::Graph& body) {
  const std::size_t count = std::min(body.inputs.size(), node.inputs.size());
  const auto axes = node.ints_attribute("scan_input_axes");
  const bool is_scan = node.op_type == "Scan";
  const auto num_scanned = static_cast<std::size_t>(node.int_attribute("num_scan_inputs", 0));
  for (std::size_t i = 0; i < count; ++i) {
    Value* const formal = body.inputs[i];
    const Value* const old = before(formal);
    const auto rows = find_rows(node.inputs[i]);
    if (old == nullptr) continue;
    formal->type = old->type;
    if (!rows || !formal->type.shape) continue;
    std::size_t axis = rows->axis;
    if (is_scan && i >= node.inputs.size() - num_scanned) {
      const std::size_t k = i - (node.inputs.size() - num_scanned);
      const std::size_t rank = node.inputs[i]->type.shape->size();
      const std::int64_t scanned = k < axes.size() ? normalize_axis(axes[k], rank) : 0;
      if (axis == static_cast<std::size_t>(scanned)) {
        throw BatchObstacle{node.describe() + ": it iterates over the rows"};
      }
      if (axis > static_cast<std::size_t>(scanned)) --axis;
    }
    if (axis >= formal->type.shape->size()) continue;
    Dim& dim = (*formal->type.shape)[axis];
    if (is_number(dim)) dim = Dim(dim.value() / rows_ * probe_rows_);
  }
}

// The type in the fixed model, with the symbol where the rows are.
Type BatchTracker::open_type(const Value& value) const {
  const Value* const old = before(&value);
  if (old == nullptr) return value.type;
  const auto rows = find_rows(&value);
  Type type = old->type;
  if (rows) (*type.shape)[rows->axis] = rows->factor == 1 ? Dim::named(symbol_) : Dim();
  return type;
}

void BatchTracker::set_types(ir::Graph& graph) {
  std::vector<std::pair<Value*, Type>> types;
  const auto add = [&](Value* value) {
    if (value != nullptr && !value->is_constant()) types.emplace_back(value, open_type(*value));
  };
  for (Value* input : graph.inputs) add(input);
  for (const Node* node : graph.nodes) {
    for (Value* output : node->outputs) add(output);
    for (ir::Graph* body : node->subgraphs()) set_types(*body);
  }
  for (auto& [value, type] : types) value->type = std::move(type);
}

}  // namespace onnxgrad::train

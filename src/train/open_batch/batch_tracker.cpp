#include "train/open_batch/batch_tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <set>
#include <utility>

#include "onnx/inference.h"
#include "onnx/known_branches.h"
#include "onnxgrad/error.h"
#include "train/graphs/training_mode.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {

using ir::Dim;
using ir::Node;
using ir::Type;
using ir::Value;

namespace {

// Large and prime, so that it is in no other dimension.
std::int64_t probe_rows_for(std::int64_t rows) { return rows % 251 == 0 ? 257 : 251; }

// Operators that return a shape, or read only a type: no row is lost.
bool reads_no_rows(const Node& node) {
  constexpr std::array<std::string_view, 3> kNames{"Shape", "Size", "CastLike"};
  return std::ranges::find(kNames, node.op_type) != kNames.end();
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

bool has_static_outputs(const Node& node) {
  return std::ranges::all_of(node.outputs, [](const Value* output) {
    if (output == nullptr) return true;
    if (output->type.kind == Type::Kind::kUnknown) return false;
    return !output->type.is_tensor() || output->type.static_dims().has_value();
  });
}

// Infers a node, also from integers that inference does not follow: elements of a shape that
// exporters compute by slices of slices.
void infer_with_values(Node& node, const ir::TypeInferer& inferer) {
  inferer.infer(node);
  if (has_static_outputs(node) || !node.subgraphs().empty()) return;
  const std::vector<Value*> inputs = node.inputs;
  std::deque<Value> constants;
  for (Value*& input : node.inputs) {
    if (input == nullptr || input->is_constant() || !is_integer(input->dtype())) continue;
    Tensor value = known_value(input);
    if (!value.is_defined() || value.dims().rank() > 1) continue;
    Value& constant = constants.emplace_back();
    constant.name = input->name;
    constant.type = Type::tensor(value.dtype(), value.dims());
    constant.initializer = std::move(value);
    input = &constant;
  }
  if (constants.empty()) return;
  try {
    inferer.infer(node);
  } catch (...) {
    node.inputs = inputs;
    throw;
  }
  node.inputs = inputs;
}

void complete_types(ir::Model& model) {
  const auto inferer = onnx_io::make_file_inferer(model);
  for (Node* node : model.graph->nodes) {
    if (!has_static_outputs(*node)) infer_with_values(*node, *inferer);
  }
}

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

Tensor known_value(const Value* value) {
  if (value == nullptr) return {};
  if (const Tensor* constant = constant_tensor(value)) return *constant;
  return onnx_io::find_constant(*value, builtin_ops(), &builtin_evaluator());
}

bool is_cell(const Node& node) {
  return node.op_type == "LSTM" || node.op_type == "GRU" || node.op_type == "RNN";
}

BatchTracker::BatchTracker(const ir::Model& fixed, std::int64_t rows,
                           const std::vector<std::string>& inputs, std::vector<std::size_t> choices)
    : fixed_(ir::clone(fixed)),
      rows_(rows),
      probe_rows_(probe_rows_for(rows)),
      symbol_(unused_symbol(*fixed.graph)),
      choices_(std::move(choices)) {
  complete_types(fixed_);
  std::unordered_map<const Value*, Value*> copies;
  probe_ = std::make_shared<ir::Model>(ir::clone(fixed_, &copies));
  for (const auto& [old, copy] : copies) before_[copy] = old;
  inferer_ = onnx_io::make_file_inferer(*probe_);
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
    infer_with_values(node, *inferer_);
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
  if (!node.subgraphs().empty()) enter_bodies(node);
  try {
    follow(node);
  } catch (const BatchObstacle& obstacle) {
    throw BatchObstacle{node.describe() + ": " + obstacle.reason};
  }
}

void BatchTracker::follow(Node& node) {
  constexpr int kMostRepairs = 8;  // a node has few operands that can hold a number of rows
  const auto carried = [this](const Value* input) { return find_rows(input).has_value(); };
  const bool carries = std::ranges::any_of(node.inputs, carried) ||
                       std::ranges::any_of(ir::captured_values(node), carried);
  // Inference does not compare the shapes of initial states.
  while (is_cell(node) && repair_constants(node)) {
  }
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
  throw BatchObstacle{fault};
}

// Reason for which the inferred types of the outputs do not follow the number of rows; "": they do.
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
    int rank;            // preference, from 0
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
    throw BatchObstacle{"it mixes rows with another dimension"};
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
      repeat_rows(node, i, static_cast<std::size_t>(axis - dims.begin()), 1, /*expands=*/true);
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
  if (!type.shape || !value.type.shape) return type;
  for (std::size_t axis = 0; axis < type.shape->size(); ++axis) {
    const bool is_known = axis < value.type.shape->size() && is_number((*value.type.shape)[axis]);
    if (is_number((*type.shape)[axis]) && !is_known) (*type.shape)[axis] = Dim();
  }
  if (rows && rows->factor == 1) (*type.shape)[rows->axis] = Dim::named(symbol_);
  if (rows && rows->factor != 1) (*type.shape)[rows->axis] = Dim();
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

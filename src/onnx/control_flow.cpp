#include "onnx/control_flow.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "onnxgrad/error.h"
#include "opdef/trip_count.h"

namespace onnxgrad::onnx_io {
namespace {

[[noreturn]] void fail(const ir::Node& node, std::string what) {
  throw ModelError(
      {.what = std::move(what),
       .where = {.node = node.name, .op_type = node.op_type},
       .hint = "Export the model again: the operator's inputs, outputs and body must match."});
}

ir::Graph& body_of(const ir::Node& node, std::string_view attribute) {
  const ir::AttributeValue* value = node.find_attribute(attribute);
  const auto* graph = value == nullptr ? nullptr : std::get_if<ir::GraphPtr>(value);
  if (graph == nullptr) fail(node, "attribute '" + std::string(attribute) + "' must be a graph");
  return **graph;
}

void expect_counts(const ir::Node& node, const ir::Graph& body, std::size_t num_inputs,
                   std::size_t num_outputs) {
  if (body.inputs.size() == num_inputs && body.outputs.size() == num_outputs) return;
  fail(node, "its body '" + body.name + "' has " + std::to_string(body.inputs.size()) +
                 " inputs and " + std::to_string(body.outputs.size()) + " outputs, expected " +
                 std::to_string(num_inputs) + " and " + std::to_string(num_outputs));
}

ir::Type without_axis(ir::Type type, std::size_t axis) {
  if (type.shape) type.shape->erase(type.shape->begin() + static_cast<std::ptrdiff_t>(axis));
  return type;
}

ir::Type with_axis(ir::Type type, std::size_t axis, const ir::Dim& dim) {
  if (type.shape) type.shape->insert(type.shape->begin() + static_cast<std::ptrdiff_t>(axis), dim);
  return type;
}

const ir::Type kUnknown = {};

const ir::Type& type_of(const ir::Value* value) {
  return value == nullptr ? kUnknown : value->type;
}

// The types that the file declares for the values of a body, where each round starts.
class DeclaredTypes {
 public:
  explicit DeclaredTypes(ir::Graph& body) { collect(body); }
  void restore() const {
    for (const auto& [value, type] : types_) value->type = type;
  }

 private:
  void collect(ir::Graph& graph) {
    for (ir::Value* input : graph.inputs) types_.emplace_back(input, input->type);
    for (ir::Node* node : graph.nodes) {
      for (ir::Value* output : node->outputs) {
        if (output != nullptr) types_.emplace_back(output, output->type);
      }
      for (ir::Graph* subgraph : node->subgraphs()) collect(*subgraph);
    }
  }
  std::vector<std::pair<ir::Value*, ir::Type>> types_;
};

std::optional<bool> known_condition(const ir::Value* condition) {
  if (condition == nullptr || !condition->is_constant()) return std::nullopt;
  const Tensor& value = condition->initializer;
  if (value.dtype() != DataType::kBool || value.num_elements() != 1) return std::nullopt;
  return value.raw()[0] != std::byte{0};  // a file may have other bytes than 0 and 1
}

std::optional<ShapeError> try_branch(ir::Graph& branch, const InferBody& infer_body) {
  try {
    infer_body(branch);
    return std::nullopt;
  } catch (const ShapeError& error) {
    return error;
  }
}

void forget_types(ir::Graph& graph) {
  for (ir::Node* node : graph.nodes) {
    for (ir::Value* output : node->outputs) {
      if (output != nullptr) output->type = {};
    }
    for (ir::Graph* subgraph : node->subgraphs()) forget_types(*subgraph);
  }
}

// A declaration of `output` is not usable where two of its cases are known to differ.
void forget_contradicted(const ir::Type& a, const ir::Type& b, ir::Value* output) {
  if (output == nullptr || !output->type.shape || !a.shape || !b.shape) return;
  if (a.shape->size() != b.shape->size()) return output->type.shape.reset();
  if (output->type.shape->size() != a.shape->size()) return;
  for (std::size_t i = 0; i < a.shape->size(); ++i) {
    const ir::Dim& first = (*a.shape)[i];
    const ir::Dim& second = (*b.shape)[i];
    if (first.is_static() && second.is_static() && first.value() != second.value()) {
      (*output->type.shape)[i] = ir::Dim();
    }
  }
}

// Forgets the dimensions of `state` that `next` does not keep, also those of the elements of a
// sequence. True if there were any.
bool relax(ir::Type& state, const ir::Type& next) {
  if (state.element) {
    ir::Type element = *state.element;
    const bool has_changed = relax(element, next.element ? *next.element : kUnknown);
    state.element = std::make_shared<const ir::Type>(std::move(element));
    return has_changed;
  }
  if (!state.shape) return false;
  if (!next.shape || next.shape->size() != state.shape->size()) {
    state.shape.reset();
    return true;
  }
  bool has_changed = false;
  for (std::size_t i = 0; i < state.shape->size(); ++i) {
    ir::Dim& dim = (*state.shape)[i];
    const bool is_unknown = !dim.is_static() && !dim.is_symbolic();
    if (is_unknown || dim.surely_equals((*next.shape)[i])) continue;
    dim = ir::Dim();
    has_changed = true;
  }
  return has_changed;
}

// A list with an element for each scanned input or stacked output; zeros if it is not given.
std::vector<std::int64_t> list_or_zeros(const ir::Node& node, std::string_view attribute,
                                        std::size_t count) {
  std::vector<std::int64_t> list =
      node.ints_attribute(attribute, std::vector<std::int64_t>(count, 0));
  if (list.size() != count) {
    fail(node, "attribute '" + std::string(attribute) + "' has " + std::to_string(list.size()) +
                   " elements, expected " + std::to_string(count));
  }
  return list;
}

}  // namespace

ir::Type without_shape(ir::Type type) {
  type.shape.reset();
  if (type.element) {
    type.element = std::make_shared<const ir::Type>(without_shape(*type.element));
  }
  return type;
}

ir::Type common_type(const ir::Type& a, const ir::Type& b) {
  if (a.kind == ir::Type::Kind::kUnknown || b.kind == ir::Type::Kind::kUnknown) return {};
  if (a.kind != b.kind ||
      (a.dtype != b.dtype && a.dtype != DataType::kUndefined && b.dtype != DataType::kUndefined)) {
    throw ModelError({.what = "types " + a.to_string() + " and " + b.to_string() + " differ",
                      .hint = "Give both branches the same type, with a Cast in one of them."});
  }
  ir::Type result = a;
  if (a.dtype == DataType::kUndefined) result.dtype = b.dtype;
  if (a.element && b.element) {
    result.element = std::make_shared<const ir::Type>(common_type(*a.element, *b.element));
  }
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) {
    result.shape.reset();
    return result;
  }
  for (std::size_t i = 0; i < a.shape->size(); ++i) {
    if (!(*a.shape)[i].surely_equals((*b.shape)[i])) (*result.shape)[i] = ir::Dim();
  }
  return result;
}

ir::Type merge_types(const ir::Type& inferred, const ir::Type& declared) {
  using Kind = ir::Type::Kind;
  if (declared.kind == Kind::kUnknown) return inferred;
  if (inferred.kind == Kind::kUnknown) return declared;
  const bool same_dtype = inferred.dtype == declared.dtype ||
                          inferred.dtype == DataType::kUndefined ||
                          declared.dtype == DataType::kUndefined;
  if (inferred.kind != declared.kind || !same_dtype) {
    throw ModelError(
        {.what = "declared as " + declared.to_string() + ", but it is " + inferred.to_string(),
         .hint = "Fix the declaration, or omit it: types are inferred again."});
  }
  ir::Type result = inferred;
  if (result.dtype == DataType::kUndefined) result.dtype = declared.dtype;
  if (inferred.element && declared.element) {
    result.element =
        std::make_shared<const ir::Type>(merge_types(*inferred.element, *declared.element));
  } else if (!inferred.element) {
    result.element = declared.element;
  }
  if (!result.shape) {
    result.shape = declared.shape;
  } else if (declared.shape && declared.shape->size() == result.shape->size()) {
    for (std::size_t i = 0; i < result.shape->size(); ++i) {
      ir::Dim& dim = (*result.shape)[i];
      if (!dim.is_static() && !dim.is_symbolic()) dim = (*declared.shape)[i];
    }
  }
  return result;
}

void check_branches(const ir::Node& node) {
  for (const ir::Graph* branch : node.subgraphs()) {
    expect_counts(node, *branch, 0, node.outputs.size());
  }
}

std::vector<ir::Type> infer_if(ir::Node& node, const InferBody& infer_body) {
  ir::Graph* const branches[] = {&body_of(node, "then_branch"), &body_of(node, "else_branch")};
  std::optional<ShapeError> failures[2];
  const std::optional<bool> condition = known_condition(node.input(0));
  for (int i = 0; i < 2; ++i) {
    expect_counts(node, *branches[i], 0, node.outputs.size());
    const bool is_taken = !condition || *condition == (i == 0);
    if (is_taken) failures[i] = try_branch(*branches[i], infer_body);
    // A branch with inconsistent shapes is not the one that is taken.
    if (failures[i]) forget_types(*branches[i]);
  }
  const bool none_fits = condition ? failures[*condition ? 0 : 1].has_value()
                                   : failures[0].has_value() && failures[1].has_value();
  if (none_fits) throw ShapeError((failures[0] ? failures[0] : failures[1])->problem());
  std::vector<ir::Type> types;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ir::Type& a = branches[0]->outputs[i]->type;
    const ir::Type& b = branches[1]->outputs[i]->type;
    const bool only_first = failures[1] || (condition && *condition);
    const bool only_second = failures[0] || (condition && !*condition);
    types.push_back(only_first ? a : only_second ? b : common_type(a, b));
    if (!only_first && !only_second) forget_contradicted(a, b, node.outputs[i]);
  }
  return types;
}

std::vector<ir::Type> infer_loop(ir::Node& node, const InferBody& infer_body, int max_rounds) {
  ir::Graph& body = body_of(node, "body");
  if (node.inputs.size() < 2) fail(node, "it needs inputs M and cond, absent ones as empty names");
  const std::size_t num_states = node.inputs.size() - 2;
  if (node.outputs.size() < num_states) {
    fail(node, "it has " + std::to_string(num_states) + " states, but only " +
                   std::to_string(node.outputs.size()) + " outputs");
  }
  expect_counts(node, body, num_states + 2, node.outputs.size() + 1);
  const DeclaredTypes declared(body);
  std::vector<ir::Type> states;
  for (std::size_t i = 0; i < num_states; ++i) states.push_back(type_of(node.input(i + 2)));

  // Each round forgets the dimensions that an iteration changes; the last one forgets all.
  bool has_changed = true;
  for (int round = 1; has_changed; ++round) {
    if (round >= max_rounds) {
      for (ir::Type& state : states) state = without_shape(std::move(state));
    }
    declared.restore();
    body.inputs[0]->type = ir::Type::tensor(DataType::kInt64, Dims{});
    body.inputs[1]->type = ir::Type::tensor(DataType::kBool, Dims{});
    for (std::size_t i = 0; i < num_states; ++i) {
      // A shape that the file declares for the state may hold for the first iteration only.
      body.inputs[i + 2]->type = merge_types(states[i], without_shape(body.inputs[i + 2]->type));
    }
    infer_body(body);
    has_changed = false;
    for (std::size_t i = 0; i < num_states; ++i) {
      has_changed |= relax(states[i], body.outputs[i + 1]->type);
    }
  }
  for (std::size_t i = 0; i < num_states; ++i) {
    // An optional may come in and its content go out.
    const ir::Type& last = body.outputs[i + 1]->type;
    forget_contradicted(type_of(node.input(i + 2)), last, node.outputs[i]);
    if (last.kind != ir::Type::Kind::kUnknown && last.kind != states[i].kind) states[i] = last;
  }
  const std::optional<std::int64_t> count = opdef::fixed_trip_count(node);
  for (std::size_t i = num_states; i < node.outputs.size(); ++i) {
    const ir::Dim length = count ? ir::Dim(*count) : ir::Dim();
    states.push_back(with_axis(body.outputs[i + 1]->type, 0, length));
  }
  return states;
}

std::vector<ir::Type> infer_sequence_map(ir::Node& node, const InferBody& infer_body) {
  using Kind = ir::Type::Kind;
  ir::Graph& body = body_of(node, "body");
  expect_counts(node, body, node.inputs.size(), node.outputs.size());
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    ir::Type type = type_of(node.input(i));
    if (type.kind == Kind::kSequence) type = type.element ? ir::Type(*type.element) : kUnknown;
    body.inputs[i]->type = merge_types(type, without_shape(body.inputs[i]->type));
  }
  infer_body(body);
  std::vector<ir::Type> types;
  for (const ir::Value* output : body.outputs) {
    ir::Type type{.kind = Kind::kSequence};
    if (output->type.kind != Kind::kUnknown) {
      type.element = std::make_shared<const ir::Type>(output->type);
    }
    types.push_back(std::move(type));
  }
  return types;
}

std::vector<ir::Type> infer_scan(ir::Node& node, const InferBody& infer_body) {
  ir::Graph& body = body_of(node, "body");
  const std::int64_t given = node.int_attribute("num_scan_inputs", -1);
  const std::size_t num_inputs = node.inputs.size();
  if (given < 1 || static_cast<std::uint64_t>(given) > num_inputs) {
    fail(node, "attribute 'num_scan_inputs' is " + std::to_string(given) + ", expected 1 to " +
                   std::to_string(num_inputs));
  }
  const std::size_t num_states = num_inputs - static_cast<std::size_t>(given);
  if (node.outputs.size() < num_states) fail(node, "it has fewer outputs than states");
  const std::size_t num_scan_outputs = node.outputs.size() - num_states;
  expect_counts(node, body, num_inputs, node.outputs.size());
  const auto num_scanned = static_cast<std::size_t>(given);
  const auto input_axes = list_or_zeros(node, "scan_input_axes", num_scanned);
  const auto output_axes = list_or_zeros(node, "scan_output_axes", num_scan_outputs);
  list_or_zeros(node, "scan_input_directions", num_scanned);
  list_or_zeros(node, "scan_output_directions", num_scan_outputs);

  ir::Dim length;
  for (std::size_t i = 0; i < num_inputs; ++i) {
    ir::Type type = type_of(node.input(i));
    if (i >= num_states && type.shape) {
      if (type.rank() == 0) fail(node, "scan input " + std::to_string(i) + " has rank 0");
      const auto axis =
          static_cast<std::size_t>(normalize_axis(input_axes[i - num_states], type.rank()));
      const ir::Dim& dim = (*type.shape)[axis];
      if (!length.is_static() && (dim.is_static() || dim.is_symbolic())) length = dim;
      type = without_axis(std::move(type), axis);
    }
    body.inputs[i]->type = merge_types(type, body.inputs[i]->type);
  }
  infer_body(body);
  std::vector<ir::Type> types;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    ir::Type type = body.outputs[i]->type;
    if (i < num_states) {
      type = common_type(type, type_of(node.input(i)));
    } else if (type.shape) {
      const auto axis = normalize_axis(output_axes[i - num_states], type.rank() + 1);
      type = with_axis(std::move(type), static_cast<std::size_t>(axis), length);
    }
    types.push_back(std::move(type));
  }
  return types;
}

}  // namespace onnxgrad::onnx_io

#include "onnx/declared_shapes.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "ir/uses.h"
#include "onnx/control_flow.h"
#include "onnx/functions.h"
#include "onnx/schemas.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::Dim;
using ir::Node;
using ir::Type;
using ir::Value;

bool has_fixed_sizes(const Value& value) {
  return value.type.is_tensor() && value.type.static_dims().has_value();
}

// Whether its elements can determine the shape of a result: integers, conditions, and short lists
// such as the scales of Resize.
bool may_give_sizes(const Value& value) {
  const bool is_list = !value.type.has_rank() || value.type.rank() <= 1;
  return !is_floating(value.dtype()) || is_list;
}

bool is_unknown(const Dim& dim) { return !dim.is_static() && !dim.is_symbolic(); }

bool has_unknown_sizes(const Type& type) {
  if (type.element) return has_unknown_sizes(*type.element);
  return !type.shape || std::ranges::any_of(*type.shape, is_unknown);
}

void open_sizes(Type& type) {
  if (type.shape) std::ranges::fill(*type.shape, Dim());
  if (!type.element) return;
  Type element = *type.element;
  open_sizes(element);
  type.element = std::make_shared<const Type>(std::move(element));
}

// The dimensions of `declared` that `outer` confirms; `left_out`: the axis of `outer` that a Scan
// walks along.
void keep_confirmed(Type& declared, const Type& outer, std::optional<std::size_t> left_out) {
  if (!declared.shape) return;
  ir::SymbolicShape expected = outer.shape.value_or(ir::SymbolicShape());
  if (left_out && *left_out < expected.size()) {
    expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(*left_out));
  }
  const bool fits = outer.shape && expected.size() == declared.shape->size();
  for (std::size_t i = 0; i < declared.shape->size(); ++i) {
    Dim& dim = (*declared.shape)[i];
    if (!fits || !dim.surely_equals(expected[i])) dim = Dim();
  }
}

}  // namespace

DeclaredShapes::DeclaredShapes(const opdef::OpRegistry& registry, ir::Graph& graph)
    : registry_(registry), graph_(graph) {
  for (Value* input : graph.inputs) {
    for (std::size_t axis = 0; axis < input->type.rank(); ++axis) {
      Dim& dim = (*input->type.shape)[axis];
      if (is_unknown(dim)) dim = Dim::open(input->name + "." + std::to_string(axis));
      if (dim.is_symbolic()) of_inputs_.insert(dim.symbol());
    }
  }
}

void DeclaredShapes::complete(const std::vector<Value*>& outputs,
                              const std::function<void()>& infer) {
  std::vector<Type> declared;
  for (Value* output : outputs) {
    declared.push_back(output == nullptr ? Type{} : output->type);
    if (output != nullptr) output->type = without_shape(output->type);
  }
  try {
    infer();
  } catch (...) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] != nullptr) outputs[i]->type = declared[i];
    }
    throw;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Value* output = outputs[i];
    if (output == nullptr || output->producer == nullptr) continue;
    if (declared[i].kind != output->type.kind || !has_unknown_sizes(output->type)) continue;
    const bool relies = is_relied_on(*output->producer, *output);
    complete(output->type, declared[i], relies, *output, /*is_element=*/false);
  }
}

void DeclaredShapes::open_formals(const Node& node, ir::Graph& body) const {
  if (node.op_type != "Scan") {
    for (Value* input : body.inputs) open_sizes(input->type);
    return;
  }
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(
      node.int_attribute("num_scan_inputs", std::int64_t{0}), std::int64_t{0}));
  const std::size_t num_states = node.inputs.size() - std::min(count, node.inputs.size());
  const std::vector<std::int64_t> axes = node.ints_attribute("scan_input_axes");
  for (std::size_t i = 0; i < body.inputs.size(); ++i) {
    const Type outer = node.input(i) == nullptr ? Type{} : node.input(i)->type;
    std::optional<std::size_t> walked;
    if (i >= num_states) {
      const std::int64_t axis = i - num_states < axes.size() ? axes[i - num_states] : 0;
      walked = static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(outer.rank())
                                                 : axis);
    }
    keep_confirmed(body.inputs[i]->type, outer, walked);
  }
}

// Whether the declared numbers hold for whatever is fed. They are needed where sizes are computed
// in a way that is not followed before the run, or where ONNX infers no shape.
bool DeclaredShapes::is_relied_on(const Node& node, const Value& output) {
  const bool is_known =
      registry_.find(node) != nullptr || is_standard_domain(node.domain) ||
      find_schema(node.domain, node.op_type, newest_opset(node.domain)) != nullptr;
  if (!is_known) return true;
  bool has_computed_sizes = !output.type.has_rank();
  for (const Value* input : ir::values_read(node)) {
    if (!has_fixed_sizes(*input)) return false;
    if (!may_give_sizes(*input) || input->is_constant()) continue;
    if (is_fed(input)) return false;
    has_computed_sizes = true;
  }
  return has_computed_sizes;
}

// Whether its elements depend on what is fed. Sizes that are fixed do not.
bool DeclaredShapes::is_fed(const Value* value) {
  std::vector<const Value*> open{value};
  while (!open.empty()) {
    const Value* next = open.back();
    if (is_fed_.contains(next)) {
      open.pop_back();
      continue;
    }
    const Node* node = next->producer;
    if (node == nullptr) {
      is_fed_[next] = next->is_input;
      continue;
    }
    const opdef::OpDef* def = registry_.find(*node);
    bool result = def != nullptr && def->is_random;
    const bool is_of_types = def != nullptr && def->fold_types != nullptr;
    const std::size_t before = open.size();
    for (const Value* input : ir::values_read(*node)) {
      if (is_of_types) {
        result = result || !has_fixed_sizes(*input);
      } else if (const auto known = is_fed_.find(input); known != is_fed_.end()) {
        result = result || known->second;
      } else {
        open.push_back(input);
      }
    }
    if (open.size() == before || result) {
      open.resize(before);
      is_fed_[next] = result;
    }
  }
  return is_fed_.at(value);
}

void DeclaredShapes::complete(Type& type, const Type& declared, bool is_relied_on,
                              const Value& value, bool is_element) {
  if (type.element && declared.element) {
    Type element = *type.element;
    if (element.kind == Type::Kind::kUnknown) element = without_shape(*declared.element);
    complete(element, *declared.element, is_relied_on, value, /*is_element=*/true);
    type.element = std::make_shared<const Type>(std::move(element));
  }
  if (!declared.shape) return;
  if (!type.shape) type.shape.emplace(declared.shape->size());
  if (type.shape->size() != declared.shape->size()) return;
  for (std::size_t axis = 0; axis < type.shape->size(); ++axis) {
    Dim& dim = (*type.shape)[axis];
    if (is_unknown(dim)) {
      dim = completed((*declared.shape)[axis], is_relied_on, value, axis, is_element);
    }
  }
}

// True of the name of a dimension of an input, and of an expression with one ("2*N + 1").
bool DeclaredShapes::is_of_inputs(const std::string& symbol) const {
  const auto is_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  if (of_inputs_.contains(symbol)) return true;
  for (auto first = symbol.begin(); first != symbol.end();) {
    const auto last = std::find_if_not(first, symbol.end(), is_word);
    if (of_inputs_.contains(std::string(first, last))) return true;
    first = last == symbol.end() ? last : std::next(last);
  }
  return false;
}

Dim DeclaredShapes::completed(const Dim& declared, bool is_relied_on, const Value& value,
                              std::size_t axis, bool is_element) {
  if (is_unknown(declared)) return {};
  if (declared.is_static() && is_relied_on) return declared;
  if (declared.is_symbolic() && is_of_inputs(declared.symbol())) return declared;
  // Each iteration of a body, and each element of a sequence, may have another size.
  if (is_element || value.graph != &graph_) return {};
  const std::string place = value.name + "." + std::to_string(axis);
  if (declared.is_symbolic() &&
      used_by_.try_emplace(declared.symbol(), place).first->second == place) {
    return declared;
  }
  return Dim::open(place);
}

}  // namespace onnxgrad::onnx_io

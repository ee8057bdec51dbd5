#include "opdef/gradient_type.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace onnxgrad::opdef {
namespace {

using ir::GraphBuilder;
using ir::Type;
using ir::Value;

bool is_sequence(const Type& type) { return type.kind == Type::Kind::kSequence; }

// The position of what was at `position` once another element is there; a negative one counts from
// the end and stays.
Value* next_position(GraphBuilder& g, Value* position) {
  if (position->is_constant() && position->initializer.num_elements() == 1) {
    const std::int64_t at = position->initializer.to_int64s().front();
    constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max() - 1;
    return at < 0 ? position : g.int_scalar(std::min(at, kLast) + 1);
  }
  Value* given = g.cast(position, DataType::kInt64);
  return g.where(g.less(given, g.int_scalar(0)), given, g.add(given, g.int_scalar(1)));
}

Value* replace_element(GraphBuilder& g, Value* sequence, Value* position, Value* element) {
  Value* longer = g.op("SequenceInsert", {sequence, element, position});
  return g.op("SequenceErase", {longer, next_position(g, position)});
}

const ir::Node* made_by(const Value* value, const char* op_type) {
  const ir::Node* node = value == nullptr ? nullptr : value->producer;
  return node != nullptr && node->domain.empty() && node->op_type == op_type ? node : nullptr;
}

// The SequenceInsert of an element_gradient(); nullptr: `value` is not one.
const ir::Node* insert_of_element(const Value* value) {
  const ir::Node* erase = made_by(value, "SequenceErase");
  const ir::Node* insert = erase == nullptr ? nullptr : made_by(erase->input(0), "SequenceInsert");
  const ir::Node* zeros = insert == nullptr ? nullptr : made_by(insert->input(0), "SequenceMap");
  if (zeros == nullptr || zeros->subgraphs().front()->name != "zeros") return nullptr;
  return insert;
}

// Element type of a sequence's tensors, whose shapes may differ.
DataType element_dtype(const Value* sequence) {
  const auto& element = sequence->type.element;
  return element && element->is_tensor() ? element->dtype : DataType::kUndefined;
}

Value* zero_sequence(GraphBuilder& g, Value* sequence) {
  const DataType stored = element_dtype(sequence);
  if (stored == DataType::kUndefined) {
    throw GradientError({.what = "the type of the elements of a sequence is not known",
                         .where = {.value = sequence->name},
                         .hint = "Give the sequence its type in the model."});
  }
  ir::GraphPtr body = g.subgraph("zeros", [&](GraphBuilder& inner) {
    Value* element = inner.graph().add_input("element", Type::tensor(stored));
    const Tensor zero = Tensor::zeros(gradient_dtype(stored), Dims{1});
    return std::vector{
        inner.op("ConstantOfShape", {inner.op("Shape", {element})}, {{"value", zero}})};
  });
  return g.op("SequenceMap", {sequence}, {{"body", std::move(body)}});
}

}  // namespace

Type gradient_type(Type type) {
  if (type.is_tensor()) type.dtype = gradient_dtype(type.dtype);
  if (is_sequence(type) && type.element) {
    type.element = std::make_shared<const Type>(gradient_type(*type.element));
  }
  return type;
}

bool can_have_gradient(const Type& type) {
  if (is_sequence(type) || type.kind == Type::Kind::kOptional) {
    return !type.element || can_have_gradient(*type.element);
  }
  if (type.kind == Type::Kind::kMap) return false;
  return !type.is_tensor() || type.dtype == DataType::kUndefined || is_floating(type.dtype);
}

Value* zero_gradient(GraphBuilder& g, Value* value) {
  if (is_sequence(value->type)) return zero_sequence(g, value);
  if (!value->type.is_tensor() || !is_f16(value->dtype())) return g.zeros_like(value);
  Value* zero = g.constant(Tensor::zeros(DataType::kFloat32, Dims{}), "zero");
  const auto dims = value->type.static_dims();
  if (!dims) return g.expand(zero, g.shape_of(value));
  return dims->rank() == 0 ? zero : g.expand(zero, g.ints({dims->begin(), dims->end()}));
}

Value* add_gradients(GraphBuilder& g, Value* a, Value* b) {
  if (!is_sequence(a->type)) return g.add(a, b);
  if (insert_of_element(a) != nullptr) std::swap(a, b);
  if (const ir::Node* insert = insert_of_element(b)) {
    Value* position = insert->inputs[2];
    Value* before = g.op("SequenceAt", {a, position});
    return replace_element(g, a, position, g.add(before, insert->inputs[1]));
  }
  const DataType dtype = std::max(element_dtype(a), element_dtype(b));  // one may be unknown
  ir::GraphPtr body = g.subgraph("sums", [&](GraphBuilder& inner) {
    Value* left = inner.graph().add_input("left", Type::tensor(dtype));
    Value* right = inner.graph().add_input("right", Type::tensor(dtype));
    return std::vector{inner.add(left, right)};
  });
  return g.op("SequenceMap", {a, b}, {{"body", std::move(body)}});
}

Value* element_gradient(GraphBuilder& g, Value* sequence, Value* position, Value* gradient) {
  return replace_element(g, zero_gradient(g, sequence), position, gradient);
}

}  // namespace onnxgrad::opdef

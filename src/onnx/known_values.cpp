#include "onnx/known_values.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "onnx/functions.h"
#include "onnx/protos.h"
#include "onnx/schemas.h"

namespace onnxgrad::onnx_io {
namespace {

constexpr std::int64_t kMaxElements = 1024;      // elements of a propagated value
constexpr std::int64_t kMaxTensorBytes = 65536;  // size of a constant that inference may examine
constexpr int kMaxDepth = 64;                    // depth of producers that are traced back
constexpr int kMaxWork = 512;                    // nodes visited for one inference

bool is_index_type(DataType dtype) {
  return dtype == DataType::kInt64 || dtype == DataType::kInt32;
}

class PropagationContext final : public onnx::DataPropagationContext {
 public:
  PropagationContext(const ir::Node& node, KnownValues& known) : node_(node), known_(known) {}

  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    for (const ir::Attribute& attribute : node_.attributes) {
      if (attribute.name != name) continue;
      to_proto(attribute, attributes_.emplace_back());
      return &attributes_.back();
    }
    return nullptr;
  }
  size_t getNumInputs() const override { return node_.inputs.size(); }
  const onnx::TypeProto* getInputType(size_t index) const override {
    return type_of(node_.input(index));
  }
  size_t getNumOutputs() const override { return node_.outputs.size(); }
  const onnx::TypeProto* getOutputType(size_t index) const override {
    return type_of(node_.output(index));
  }
  const onnx::TensorShapeProto* getInputData(size_t index) override {
    const ir::Value* input = node_.input(index);
    return input == nullptr ? nullptr : known_.elements(*input);
  }
  void addOutputData(size_t index, onnx::TensorShapeProto&& elements) override {
    if (index == 0) result = std::move(elements);
  }

  std::optional<onnx::TensorShapeProto> result;

 private:
  const onnx::TypeProto* type_of(const ir::Value* value) const {
    if (value == nullptr || value->type.kind == ir::Type::Kind::kUnknown) return nullptr;
    to_proto(value->type, types_.emplace_back());
    return &types_.back();
  }
  const ir::Node& node_;
  KnownValues& known_;
  mutable std::deque<onnx::AttributeProto> attributes_;
  mutable std::deque<onnx::TypeProto> types_;
};

}  // namespace

const onnx::TensorShapeProto* KnownValues::elements(const ir::Value& value) {
  const auto known = elements_.find(&value);
  if (known != elements_.end()) return known->second ? &*known->second : nullptr;
  if (depth_ >= kMaxDepth || ++work_ > kMaxWork) return nullptr;
  ++depth_;
  std::optional<onnx::TensorShapeProto> computed;
  try {
    computed = compute(value);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Nothing is known; a faulty node is reported by its own inference.
  }
  --depth_;
  const auto& stored = elements_.emplace(&value, std::move(computed)).first->second;
  return stored ? &*stored : nullptr;
}

std::optional<onnx::TensorShapeProto> KnownValues::compute(const ir::Value& value) {
  if (value.is_constant()) {
    const Tensor& tensor = value.initializer;
    if (!is_index_type(tensor.dtype()) || tensor.dims().rank() > 1 ||
        tensor.num_elements() > kMaxElements) {
      return std::nullopt;
    }
    onnx::TensorShapeProto elements;
    for (const std::int64_t element : tensor.to_int64s()) {
      elements.add_dim()->set_dim_value(element);
    }
    return elements;
  }
  if (value.producer == nullptr || value.type.rank() > 1) return std::nullopt;
  const ir::Node& node = *value.producer;
  const bool is_split = node.op_type == "Split" && is_standard_domain(node.domain);
  if (value.output_index != 0 && !is_split) return std::nullopt;
  std::optional<onnx::TensorShapeProto> elements =
      is_split ? part(node, value.output_index) : propagate(node);
  if (elements && elements->dim_size() <= kMaxElements) return elements;
  return std::nullopt;
}

std::optional<onnx::TensorShapeProto> KnownValues::propagate(const ir::Node& node) {
  if (!is_standard_domain(node.domain)) return std::nullopt;
  if (node.op_type == "Constant") {
    const ir::AttributeValue* attribute = node.find_attribute("value");
    const Tensor* tensor = attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
    if (tensor == nullptr) return std::nullopt;
    ir::Value constant;
    constant.initializer = *tensor;
    return compute(constant);
  }
  if (node.op_type == "Reshape" || node.op_type == "Identity") {
    // Elements of the input, unchanged; compute() has ensured that the result has rank 0 or 1.
    const ir::Value* input = node.input(0);
    const onnx::TensorShapeProto* same = input == nullptr ? nullptr : elements(*input);
    return same == nullptr ? std::nullopt : std::optional(*same);
  }
  if (node.op_type == "Range") return range(node);
  if (node.op_type == "Div" || node.op_type == "Mod") return quotient(node);
  if (node.op_type == "Slice" && !has_small_steps(node)) return std::nullopt;
  const Schema* schema = find_schema("", node.op_type, opset_);
  if (schema == nullptr || !schema->propagate()) return std::nullopt;
  for (const ir::Value* input : node.inputs) {
    if (input == nullptr || !input->type.is_tensor()) return std::nullopt;
  }
  PropagationContext context(node, *this);
  schema->propagate()(context);
  return std::move(context.result);
}

// ONNX's function for Slice counts with an int: it never terminates with a step of 2^32.
bool KnownValues::has_small_steps(const ir::Node& node) {
  const ir::Value* input = node.input(4);
  const onnx::TensorShapeProto* steps = input == nullptr ? nullptr : elements(*input);
  if (steps == nullptr) return input == nullptr;
  return std::ranges::all_of(steps->dim(), [](const auto& step) {
    return step.has_dim_value() && step.dim_value() >= -kMaxElements &&
           step.dim_value() <= kMaxElements;
  });
}

// The elements that Split returns as this output; the sizes of the parts are an input (from opset
// 13 on), an attribute, or equal except the last one.
std::optional<onnx::TensorShapeProto> KnownValues::part(const ir::Node& node, int output) {
  const ir::Value* input = node.input(0);
  const onnx::TensorShapeProto* all = input == nullptr ? nullptr : elements(*input);
  if (all == nullptr) return std::nullopt;
  const auto count = static_cast<std::int64_t>(node.outputs.size());
  const std::int64_t equal = (all->dim_size() + count - 1) / count;
  std::vector<std::int64_t> sizes = node.ints_attribute("split");
  if (const ir::Value* given = node.input(1)) {
    const onnx::TensorShapeProto* numbers = elements(*given);
    if (numbers == nullptr) return std::nullopt;
    for (const auto& dim : numbers->dim()) {
      if (!dim.has_dim_value()) return std::nullopt;
      sizes.push_back(dim.dim_value());
    }
  }
  if (sizes.empty()) sizes.assign(node.outputs.size(), equal);
  if (output >= std::ssize(sizes)) return std::nullopt;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  for (int i = 0; i <= output; ++i) {
    begin = end;
    end += std::clamp<std::int64_t>(sizes[static_cast<std::size_t>(i)], 0, all->dim_size());
  }
  onnx::TensorShapeProto list;
  for (std::int64_t i = begin; i < std::min<std::int64_t>(end, all->dim_size()); ++i) {
    *list.add_dim() = all->dim(static_cast<int>(i));
  }
  return list;
}

std::optional<onnx::TensorShapeProto> KnownValues::range(const ir::Node& node) {
  std::int64_t numbers[3] = {};  // start, limit, delta
  for (std::size_t i = 0; i < 3; ++i) {
    const ir::Value* input = node.input(i);
    const onnx::TensorShapeProto* number = input == nullptr ? nullptr : elements(*input);
    if (number == nullptr || number->dim_size() != 1 || !number->dim(0).has_dim_value()) {
      return std::nullopt;
    }
    numbers[i] = number->dim(0).dim_value();
  }
  const auto [start, limit, delta] = numbers;
  const auto is_small = [](std::int64_t n) { return n >= -kMaxElements && n <= kMaxElements; };
  if (delta == 0 || !is_small(start) || !is_small(limit) || !is_small(delta)) return std::nullopt;
  onnx::TensorShapeProto list;
  for (std::int64_t i = start; delta > 0 ? i < limit : i > limit; i += delta) {
    list.add_dim()->set_dim_value(i);
  }
  return list;
}

// Div and Mod of integers, for which ONNX propagates nothing; exporters write negative axes with
// it.
std::optional<onnx::TensorShapeProto> KnownValues::quotient(const ir::Node& node) {
  const ir::Value* inputs[2] = {node.input(0), node.input(1)};
  if (inputs[0] == nullptr || inputs[1] == nullptr) return std::nullopt;
  const onnx::TensorShapeProto* lists[2] = {elements(*inputs[0]), elements(*inputs[1])};
  if (lists[0] == nullptr || lists[1] == nullptr) return std::nullopt;
  const int sizes[2] = {lists[0]->dim_size(), lists[1]->dim_size()};
  if (sizes[0] != sizes[1] && sizes[0] != 1 && sizes[1] != 1) return std::nullopt;
  const int size = sizes[0] == 1 ? sizes[1] : sizes[0];
  const bool is_mod = node.op_type == "Mod";
  const bool is_sign_of_dividend = node.int_attribute("fmod", 0) != 0;
  onnx::TensorShapeProto result;
  for (int i = 0; i < size; ++i) {
    auto* element = result.add_dim();
    const auto& a = lists[0]->dim(sizes[0] == 1 ? 0 : i);
    const auto& b = lists[1]->dim(sizes[1] == 1 ? 0 : i);
    if (!a.has_dim_value() || !b.has_dim_value() || b.dim_value() == 0) continue;  // unknown
    const std::int64_t x = a.dim_value();
    const std::int64_t y = b.dim_value();
    const bool is_overflow = y == -1 && x == std::numeric_limits<std::int64_t>::min();
    if (is_overflow) continue;
    std::int64_t value = is_mod ? x % y : x / y;
    if (is_mod && !is_sign_of_dividend && value != 0 && (value < 0) != (y < 0)) value += y;
    element->set_dim_value(value);
  }
  return result;
}

const onnx::TensorProto* KnownValues::tensor(const ir::Value& value) {
  const auto known = tensors_.find(&value);
  if (known != tensors_.end()) return known->second ? &*known->second : nullptr;
  std::optional<onnx::TensorProto>& result = tensors_[&value];
  const auto set = [&result](const Tensor& tensor) {
    to_proto(tensor, result.emplace());
    return &*result;
  };
  if (value.is_constant()) {
    const Tensor& constant = value.initializer;
    const bool is_small =
        constant.dtype() != DataType::kString && constant.size_bytes() <= kMaxTensorBytes;
    return is_small ? set(constant) : nullptr;
  }
  const Tensor numbers = integers(value);
  return numbers.is_defined() ? set(numbers) : nullptr;
}

Tensor KnownValues::integers(const ir::Value& value) {
  if (!is_index_type(value.dtype()) || !value.type.has_rank() || value.type.rank() > 1) return {};
  const onnx::TensorShapeProto* list = elements(value);
  if (list == nullptr) return {};
  std::vector<std::int64_t> numbers;
  for (const auto& dim : list->dim()) {
    if (!dim.has_dim_value()) return {};
    numbers.push_back(dim.dim_value());
  }
  const auto count = static_cast<std::int64_t>(numbers.size());
  if (value.type.rank() == 0 && count != 1) return {};
  const Dims dims = value.type.rank() == 0 ? Dims{} : Dims{count};
  return Tensor::from(numbers, dims).cast(value.dtype());
}

const Tensor* constant_of(const ir::Value* value) {
  if (value == nullptr) return nullptr;
  if (value->is_constant()) return &value->initializer;
  if (value->producer == nullptr || value->producer->op_type != "Constant") return nullptr;
  const ir::AttributeValue* held = value->producer->find_attribute("value");
  return held == nullptr ? nullptr : std::get_if<Tensor>(held);
}

std::optional<std::vector<std::int64_t>> known_ints(const ir::Value* value) {
  if (const Tensor* tensor = constant_of(value)) {
    if (!is_integer(tensor->dtype())) return std::nullopt;
    return tensor->to_int64s();
  }
  KnownValues known(ir::kInternalOpset);
  const onnx::TensorShapeProto* elements = value == nullptr ? nullptr : known.elements(*value);
  if (elements == nullptr) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const auto& element : elements->dim()) {
    if (!element.has_dim_value()) return std::nullopt;
    numbers.push_back(element.dim_value());
  }
  return numbers;
}

}  // namespace onnxgrad::onnx_io

#include "opdef/function_body.h"

#include <utility>

#include "ir/builder.h"

namespace onnxgrad::opdef {

using ir::Attribute;
using ir::Value;

FunctionBody::FunctionBody(std::string_view base_name, std::string_view key,
                           const std::vector<Attribute>& call_attributes) {
  function_.domain = ir::kFunctionDomain;
  function_.name = std::string(base_name) + "__" + std::string(key);
  function_.body = std::make_shared<ir::Graph>();
  function_.body->name = function_.name;
  function_.opset_imports = {{"", ir::kInternalOpset}};
  for (const Attribute& attribute : call_attributes) {
    function_.attribute_names.push_back(attribute.name);
  }
}

Value* FunctionBody::input(std::string_view name) {
  return function_.body->add_input(name, ir::Type{});
}

std::vector<Value*> FunctionBody::ops(std::string_view op_type, std::vector<Value*> inputs,
                                      std::size_t num_outputs, std::vector<Attribute> attributes) {
  return function_.body->add_node(op_type, std::move(inputs), num_outputs, std::move(attributes))
      ->outputs;
}

Value* FunctionBody::op(std::string_view op_type, std::vector<Value*> inputs,
                        std::vector<Attribute> attributes) {
  return ops(op_type, std::move(inputs), 1, std::move(attributes)).front();
}

Value* FunctionBody::constant(Tensor tensor) {
  return op("Constant", {}, {{.name = "value", .value = std::move(tensor)}});
}

Value* FunctionBody::ints(const std::vector<std::int64_t>& values) {
  return constant(Tensor::from(values, Dims{static_cast<std::int64_t>(values.size())}));
}

Value* FunctionBody::int_scalar(std::int64_t value) { return constant(Tensor::scalar(value)); }

Value* FunctionBody::scalar_like(Value* like, double value) {
  return op("CastLike", {constant(Tensor::scalar(value)), like});
}

Value* FunctionBody::reshape(Value* x, Value* shape) {
  return op("Reshape", {x, shape}, {{.name = "allowzero", .value = std::int64_t{1}}});
}

Value* FunctionBody::dims_of(Value* x, std::int64_t first, std::int64_t last) {
  return op("Shape", {x}, {{.name = "start", .value = first}, {.name = "end", .value = last}});
}

Value* FunctionBody::concat(std::vector<Value*> parts, std::int64_t axis) {
  return op("Concat", std::move(parts), {{.name = "axis", .value = axis}});
}

Value* FunctionBody::transpose(Value* x, const std::vector<std::int64_t>& perm) {
  return op("Transpose", {x}, {{.name = "perm", .value = perm}});
}

Value* FunctionBody::unsqueeze(Value* x, const std::vector<std::int64_t>& axes) {
  return op("Unsqueeze", {x, ints(axes)});
}

Value* FunctionBody::reduce_sum(Value* x, const std::vector<std::int64_t>& axes, bool keepdims) {
  return op("ReduceSum", {x, ints(axes)},
            {{.name = "keepdims", .value = static_cast<std::int64_t>(keepdims)}});
}

ir::Function FunctionBody::finish(std::vector<Value*> outputs) && {
  function_.body->outputs = std::move(outputs);
  return std::move(function_);
}

std::string key_of(std::span<const std::int64_t> values) {
  std::string key;
  for (const std::int64_t value : values) {
    if (!key.empty()) key += 'x';
    if (value < 0) key += 'm';
    // The magnitude without overflow for the smallest integer.
    const auto bits = static_cast<std::uint64_t>(value);
    key += std::to_string(value < 0 ? ~bits + 1 : bits);
  }
  return key;
}

}  // namespace onnxgrad::opdef

#include "onnx/testing/schema_info.h"

#include <algorithm>

#include "onnx/schemas.h"

namespace onnxgrad::onnx_io {
namespace {

std::vector<SchemaParameter> parameters_of(
    const std::vector<onnx::OpSchema::FormalParameter>& formals) {
  using Kind = SchemaParameter::Kind;
  const onnx::DataType double_type = onnx::Utils::DataTypeUtils::ToType("tensor(double)");
  std::vector<SchemaParameter> parameters;
  for (const auto& formal : formals) {
    const auto option = formal.GetOption();
    const Kind kind = option == onnx::OpSchema::Optional   ? Kind::kOptional
                      : option == onnx::OpSchema::Variadic ? Kind::kVariadic
                                                           : Kind::kRequired;
    const bool takes_floats = formal.GetTypes().contains(double_type);
    parameters.push_back({.name = formal.GetName(), .kind = kind, .takes_floats = takes_floats});
  }
  return parameters;
}

}  // namespace

std::optional<SchemaInfo> schema_info(std::string_view domain, std::string_view op_type,
                                      std::int64_t opset) {
  const Schema* schema = find_schema(domain, op_type, opset == 0 ? newest_opset(domain) : opset);
  if (schema == nullptr) return std::nullopt;
  SchemaInfo info{.since_version = schema->op().SinceVersion(),
                  .attributes = {},
                  .required_attributes = {},
                  .defaults = {},
                  .inputs = parameters_of(schema->op().inputs()),
                  .outputs = parameters_of(schema->op().outputs())};
  for (const auto& [name, attribute] : schema->op().attributes()) {
    info.attributes.push_back(name);
    if (attribute.required) info.required_attributes.push_back(name);
    const onnx::AttributeProto& value = attribute.default_value;
    if (value.has_i()) info.defaults[name] = static_cast<std::int64_t>(value.i());
    if (value.has_f()) info.defaults[name] = value.f();
    if (value.has_s()) info.defaults[name] = value.s();
  }
  std::ranges::sort(info.attributes);
  std::ranges::sort(info.required_attributes);
  return info;
}

}  // namespace onnxgrad::onnx_io

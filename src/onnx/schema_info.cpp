#include "onnx/schema_info.h"

#include <algorithm>

#include "onnx/schemas.h"

namespace onnxgrad::onnx_io {

std::optional<SchemaInfo> schema_info(std::string_view domain, std::string_view op_type,
                                      std::int64_t opset) {
  const Schema* schema = find_schema(domain, op_type, opset == 0 ? newest_opset(domain) : opset);
  if (schema == nullptr) return std::nullopt;
  SchemaInfo info{
      .since_version = schema->op().SinceVersion(), .attributes = {}, .required_attributes = {}};
  for (const auto& [name, attribute] : schema->op().attributes()) {
    info.attributes.push_back(name);
    if (attribute.required) info.required_attributes.push_back(name);
  }
  std::ranges::sort(info.attributes);
  std::ranges::sort(info.required_attributes);
  return info;
}

}  // namespace onnxgrad::onnx_io

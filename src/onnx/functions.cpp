#include "onnx/functions.h"

#include <onnx/onnx_pb.h>

#include <iterator>
#include <variant>

namespace onnxgrad::onnx_io {

int attribute_type(const ir::AttributeValue& value) {
  using onnx::AttributeProto;
  // In the order of ir::AttributeValue's alternatives.
  constexpr int kTypes[] = {AttributeProto::INT,     AttributeProto::FLOAT,
                            AttributeProto::STRING,  AttributeProto::TENSOR,
                            AttributeProto::GRAPH,   AttributeProto::INTS,
                            AttributeProto::FLOATS,  AttributeProto::STRINGS,
                            AttributeProto::TENSORS, AttributeProto::GRAPHS};
  if (const auto* ref = std::get_if<ir::AttributeRef>(&value)) return ref->type;
  if (const auto* opaque = std::get_if<ir::OpaqueAttribute>(&value)) return opaque->type;
  static_assert(std::size(kTypes) + 2 == std::variant_size_v<ir::AttributeVariant>);
  return kTypes[value.index()];
}

std::int64_t opset_of(const ir::Function& function, std::int64_t fallback) {
  for (const auto& [domain, version] : function.opset_imports) {
    if (is_standard_domain(domain)) return version;
  }
  return fallback;
}

}  // namespace onnxgrad::onnx_io

#include "onnx/functions.h"

#include <onnx/onnx_pb.h>
#include <algorithm>

#include <string>
#include <utility>

#include "onnxgrad/error.h"

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
  static_assert(std::size(kTypes) + 2 == std::variant_size_v<ir::AttributeValue>);
  return kTypes[value.index()];
}

const ir::AttributeValue* call_attribute(const ir::Node& call, const ir::Function& function,
                                         std::string_view name) {
  if (const ir::AttributeValue* own = call.find_attribute(name)) return own;
  const auto found = std::ranges::find(function.attribute_defaults, name, &ir::Attribute::name);
  return found == function.attribute_defaults.end() ? nullptr : &found->value;
}

void bind_attributes(ir::Graph& body, const ir::Node& call, const ir::Function& function) {
  for (ir::Node* node : body.nodes) {
    std::erase_if(node->attributes, [&](ir::Attribute& attribute) {
      const auto* ref = std::get_if<ir::AttributeRef>(&attribute.value);
      if (ref == nullptr) return false;
      const ir::AttributeValue* actual = call_attribute(call, function, ref->name);
      if (actual == nullptr) return true;
      if (ref->type != 0 && attribute_type(*actual) != ref->type) {
        throw ModelError({.what = "attribute '" + ref->name + "' of function '" + function.name +
                                  "' has another type than its body expects",
                          .where = {.node = call.name, .op_type = call.op_type}});
      }
      attribute.value = ir::AttributeValue(*actual);
      return false;
    });
    for (ir::Graph* subgraph : node->subgraphs()) bind_attributes(*subgraph, call, function);
  }
}

std::int64_t opset_of(const ir::Function& function, std::int64_t fallback) {
  for (const auto& [domain, version] : function.opset_imports) {
    if (is_standard_domain(domain)) return version;
  }
  return fallback;
}

}  // namespace onnxgrad::onnx_io

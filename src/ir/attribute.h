#ifndef ONNXGRAD_IR_ATTRIBUTE_H_
#define ONNXGRAD_IR_ATTRIBUTE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/type.h"
#include "onnxgrad/tensor.h"

namespace onnxgrad::ir {

class Graph;

/// A reference, in a function body, to the calling node's attribute of that name.
/// `type` is ONNX's AttributeProto.AttributeType.
struct AttributeRef {
  std::string name = {};
  int type = 0;
  bool operator==(const AttributeRef&) const = default;
};

/// An attribute that onnxgrad passes through without inspection (sparse tensors, type protos):
/// the serialized AttributeProto.
struct OpaqueAttribute {
  int type = 0;
  std::string bytes = {};
  bool operator==(const OpaqueAttribute&) const = default;
};

using GraphPtr = std::shared_ptr<Graph>;

using AttributeVariant =
    std::variant<std::int64_t, float, std::string, Tensor, GraphPtr, std::vector<std::int64_t>,
                 std::vector<float>, std::vector<std::string>, std::vector<Tensor>,
                 std::vector<GraphPtr>, AttributeRef, OpaqueAttribute>;

/// The variant of attribute values with members that are compiled once: those of std::variant would
/// be compiled again in every source that holds attributes.
class AttributeValue : public AttributeVariant {
 public:
  using AttributeVariant::AttributeVariant;
  AttributeValue();
  AttributeValue(const AttributeValue& other);
  AttributeValue(AttributeValue&& other) noexcept;
  AttributeValue& operator=(const AttributeValue& other);
  AttributeValue& operator=(AttributeValue&& other) noexcept;
  ~AttributeValue();
};

struct Attribute {
  std::string name = {};
  AttributeValue value = {};
  std::string doc_string = {};
};

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_ATTRIBUTE_H_

#ifndef ONNXGRAD_ONNX_TESTING_SCHEMA_INFO_H_
#define ONNXGRAD_ONNX_TESTING_SCHEMA_INFO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attribute.h"

// ONNX's definition of an operator, without ONNX's headers: for tests of the registry.

namespace onnxgrad::onnx_io {

/// A formal input or output.
struct SchemaParameter {
  enum class Kind { kRequired, kOptional, kVariadic };
  std::string name;
  Kind kind = Kind::kRequired;
  bool takes_floats = false;  ///< accepts a float64 tensor
};

struct SchemaInfo {
  int since_version = 0;
  std::vector<std::string> attributes;                 ///< names, sorted
  std::vector<std::string> required_attributes;        ///< names, sorted
  std::map<std::string, ir::AttributeValue> defaults;  ///< numbers and strings, by name
  std::vector<SchemaParameter> inputs;
  std::vector<SchemaParameter> outputs;
};

/// The schema of `op_type` in force at `opset` of its domain (0: the newest known);
/// nullopt if there is none.
std::optional<SchemaInfo> schema_info(std::string_view domain, std::string_view op_type,
                                      std::int64_t opset);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_TESTING_SCHEMA_INFO_H_

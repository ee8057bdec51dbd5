#include "opdef/function_body.h"

#include <utility>

namespace onnxgrad::opdef {

using ir::Attribute;
using ir::Value;

FunctionBody::FunctionBody(std::shared_ptr<ir::Graph> body) : GraphBuilder(*body) {
  function_.domain = ir::kFunctionDomain;
  function_.body = std::move(body);
  function_.opset_imports = {{"", ir::kInternalOpset}};
}

FunctionBody::FunctionBody(std::string_view base_name, std::string_view key,
                           const std::vector<Attribute>& call_attributes)
    : FunctionBody(std::make_shared<ir::Graph>()) {
  function_.name = std::string(base_name) + "__" + std::string(key);
  function_.body->name = function_.name;
  for (const Attribute& attribute : call_attributes) {
    function_.attribute_names.push_back(attribute.name);
  }
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
    // The magnitude, without overflow for the smallest integer.
    const auto bits = static_cast<std::uint64_t>(value);
    key += std::to_string(value < 0 ? ~bits + 1 : bits);
  }
  return key;
}

}  // namespace onnxgrad::opdef

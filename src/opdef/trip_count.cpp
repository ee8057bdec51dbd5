#include "opdef/trip_count.h"

#include <algorithm>

#include "ir/pattern.h"

namespace onnxgrad::opdef {
namespace {

bool is_true(const ir::Value* value) {
  if (value == nullptr) return true;  // no condition
  value = ir::look_through_identities(value);
  if (!value->is_constant()) return false;
  const Tensor& tensor = value->initializer;
  return tensor.dtype() == DataType::kBool && tensor.num_elements() == 1 &&
         tensor.raw()[0] != std::byte{0};
}

}  // namespace

std::optional<std::int64_t> fixed_trip_count(const ir::Node& node) {
  const ir::AttributeValue* attribute = node.find_attribute("body");
  const auto* body = attribute == nullptr ? nullptr : std::get_if<ir::GraphPtr>(attribute);
  const ir::Value* count = node.input(0);
  if (body == nullptr || (*body)->inputs.size() < 2 || (*body)->outputs.empty()) return {};
  if (count == nullptr || !count->is_constant() || count->initializer.dtype() != DataType::kInt64 ||
      count->initializer.num_elements() != 1) {
    return {};
  }
  if (!is_true(node.input(1))) return {};
  const ir::Value* next = (*body)->outputs[0];
  if (ir::look_through_identities(next) != (*body)->inputs[1] && !is_true(next)) return {};
  return std::max<std::int64_t>(count->initializer.data<std::int64_t>()[0], 0);
}

}  // namespace onnxgrad::opdef

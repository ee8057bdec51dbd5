#include "ir/key.h"

#include <variant>
#include <vector>

namespace onnxgrad::ir {

void append_key(std::string& key, const Type& type) {
  key += static_cast<char>(type.kind);
  key += static_cast<char>(type.dtype);
  key += type.shape ? 's' : '-';
  if (type.shape) {
    const std::size_t rank = type.shape->size();
    append_key(key, &rank, 1);
    for (const Dim& dim : *type.shape) {
      const std::int64_t size = dim.value();
      append_key(key, &size, 1);
      if (!dim.is_static()) append_key(key, dim.symbol());
    }
  }
  key += type.element ? 'e' : '-';
  if (type.element) append_key(key, *type.element);
}

bool append_key(std::string& key, const Tensor& tensor, std::int64_t max_bytes) {
  if (tensor.dtype() == DataType::kString || tensor.size_bytes() > max_bytes) return false;
  key += static_cast<char>(tensor.dtype());
  const auto dims = tensor.dims().values();
  append_key(key, dims.data(), dims.size());
  append_key(key, tensor.raw(), static_cast<std::size_t>(tensor.size_bytes()));
  return true;
}

bool append_key(std::string& key, const AttributeValue& value, std::int64_t max_bytes) {
  key += static_cast<char>(value.index());
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    append_key(key, number, 1);
  } else if (const auto* real = std::get_if<float>(&value)) {
    append_key(key, real, 1);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    append_key(key, *text);
  } else if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&value)) {
    append_key(key, numbers->data(), numbers->size());
  } else if (const auto* reals = std::get_if<std::vector<float>>(&value)) {
    append_key(key, reals->data(), reals->size());
  } else if (const auto* tensor = std::get_if<Tensor>(&value)) {
    return append_key(key, *tensor, max_bytes);
  } else {
    return false;
  }
  return true;
}

}  // namespace onnxgrad::ir

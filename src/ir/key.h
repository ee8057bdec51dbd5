#ifndef ONNXGRAD_IR_KEY_H_
#define ONNXGRAD_IR_KEY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ir/attribute.h"
#include "ir/type.h"
#include "onnxgrad/tensor.h"

// Keys by which nodes are compared: bytes, in which each part has a fixed size or is preceded by
// its size, so that two keys are equal only if all parts are.

namespace onnxgrad::ir {

template <class T>
void append_key(std::string& key, const T* data, std::size_t size) {
  key.append(reinterpret_cast<const char*>(&size), sizeof size);
  if (size > 0) key.append(reinterpret_cast<const char*>(data), size * sizeof(T));
}

inline void append_key(std::string& key, std::string_view text) {
  append_key(key, text.data(), text.size());
}

void append_key(std::string& key, const Type& type);

/// Appends a tensor. False, with a part of it appended, for strings and for larger tensors.
bool append_key(std::string& key, const Tensor& tensor, std::int64_t max_bytes);

/// Appends an attribute. False also for graphs and other kinds that are not compared.
bool append_key(std::string& key, const AttributeValue& value, std::int64_t max_bytes);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_KEY_H_

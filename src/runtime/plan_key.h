#ifndef ONNXGRAD_RUNTIME_PLAN_KEY_H_
#define ONNXGRAD_RUNTIME_PLAN_KEY_H_

#include <cstdint>
#include <string>

#include "opdef/kernel.h"

// Keys of plans compiled for given shapes.

namespace onnxgrad::runtime {

template <class T>
void append_bytes(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// Appends element type, rank and dimensions.
inline void append_desc(std::string& key, const opdef::TensorDesc& desc) {
  append_bytes(key, desc.dtype);
  append_bytes(key, desc.dims.rank());
  for (const std::int64_t dim : desc.dims) append_bytes(key, dim);
}

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PLAN_KEY_H_

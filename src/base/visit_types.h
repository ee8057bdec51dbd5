#ifndef ONNXGRAD_BASE_VISIT_TYPES_H_
#define ONNXGRAD_BASE_VISIT_TYPES_H_

#include <type_traits>

#include "base/f16.h"
#include "onnxgrad/dtype.h"

// Calls of templates by the type of a tensor's elements.

namespace onnxgrad::base {

/// Returns the DataType of an element type; dtype_of() and 16-bit floats.
template <class T>
constexpr DataType element_type() {
  if constexpr (std::is_same_v<T, Float16>) {
    return DataType::kFloat16;
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return DataType::kBfloat16;
  } else {
    return dtype_of<T>();
  }
}

/// Calls f(T()) for the one of `Types` that is the element type of `dtype`; false if none is.
template <class... Types, class F>
bool visit_types(DataType dtype, F&& f) {
  return ((dtype == element_type<Types>() && (f(Types()), true)) || ...);
}

/// Calls f(T()) for an element type that is a number or bool, but no 16-bit float; else false.
template <class F>
bool visit_numbers(DataType dtype, F&& f) {
  switch (dtype) {
    case DataType::kFloat32:
      return f(float{}), true;
    case DataType::kFloat64:
      return f(double{}), true;
    case DataType::kInt8:
      return f(std::int8_t{}), true;
    case DataType::kInt16:
      return f(std::int16_t{}), true;
    case DataType::kInt32:
      return f(std::int32_t{}), true;
    case DataType::kInt64:
      return f(std::int64_t{}), true;
    case DataType::kUint8:
      return f(std::uint8_t{}), true;
    case DataType::kUint16:
      return f(std::uint16_t{}), true;
    case DataType::kUint32:
      return f(std::uint32_t{}), true;
    case DataType::kUint64:
      return f(std::uint64_t{}), true;
    case DataType::kBool:
      return f(bool{}), true;
    default:
      return false;
  }
}

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_VISIT_TYPES_H_

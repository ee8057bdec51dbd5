#ifndef ONNXGRAD_DTYPE_H_
#define ONNXGRAD_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace [[gnu::visibility("default")]] onnxgrad {

/// Element types of tensors, numbered as in ONNX's TensorProto.DataType.
enum class DataType : std::int32_t {
  kUndefined = 0,
  kFloat32 = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBfloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kUint4 = 21,
  kInt4 = 22,
  kFloat4E2M1 = 23,
  kFloat8E8M0 = 24,
  kUint2 = 25,
  kInt2 = 26,
};

/// Number of bits of one stored element (2, 4, 8, ..., 128); 0 for strings and kUndefined.
int size_bits(DataType dtype);

/// NumPy's name for the type ("float32", "int64", "bool", "string", ...); "undefined" otherwise.
std::string_view dtype_name(DataType dtype);

/// The type with this NumPy name, if there is one.
std::optional<DataType> dtype_from_name(std::string_view name);

/// True for float16, bfloat16, float32 and float64: the types that carry gradients.
bool is_floating(DataType dtype);

/// True for float16 and bfloat16, which only store elements; all computation is in float32.
bool is_f16(DataType dtype);

/// True for signed and unsigned integers of 8 to 64 bits.
bool is_integer(DataType dtype);

/// The DataType of a C++ element type; a compile-time error for others.
template <class T>
constexpr DataType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DataType::kFloat32;
  else if constexpr (std::is_same_v<T, double>)
    return DataType::kFloat64;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return DataType::kInt8;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return DataType::kInt16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DataType::kInt32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DataType::kInt64;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return DataType::kUint8;
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return DataType::kUint16;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return DataType::kUint32;
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return DataType::kUint64;
  else if constexpr (std::is_same_v<T, bool>)
    return DataType::kBool;
  else if constexpr (std::is_same_v<T, std::string>)
    return DataType::kString;
  else
    static_assert(sizeof(T) == 0, "no tensor element type for T");
}

}  // namespace onnxgrad

#endif  // ONNXGRAD_DTYPE_H_

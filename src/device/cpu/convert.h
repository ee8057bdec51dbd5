#ifndef ONNXGRAD_DEVICE_CPU_CONVERT_H_
#define ONNXGRAD_DEVICE_CPU_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "device/isa.h"
#include "onnxgrad/dtype.h"

namespace onnxgrad::device {

/// Converts an array: to[i] = from[i] for i in [0, n).
using ConvertFn = void (*)(void* to, const void* from, std::int64_t n);

/// Returns the conversion from one of bool, the integers of 8 to 64 bits, float16, bfloat16,
/// float32, float64 to another (or the same); nullptr for other types. Floating to integer: towards
/// zero to int64 (bounded by its range, NaN becomes 0), then as from int64. Integer to narrower
/// integer: the low bits. To bool: whether it is not 0 (NaN is not 0).
ConvertFn find_conversion(Isa isa, DataType from, DataType to);

/// Returns a vectorised conversion (convert_simd.cpp); nullptr: none for these types.
ConvertFn find_vector_conversion(Isa isa, DataType from, DataType to);

/// Converts a matrix: to[i, j] = from[i, j], with zeros after the last column up to a full vector.
/// to_row, from_row: row strides in elements.
using ConvertRowsFn = void (*)(float* to, std::ptrdiff_t to_row, const void* from,
                               std::ptrdiff_t from_row, std::int64_t rows, std::int64_t columns);

/// Returns the conversion to float32 from f16 or bf16, or, if `rounds`, from float32 rounded to it.
ConvertRowsFn find_widening(Isa isa, DataType half, bool rounds);

/// Adds float to double: to[i] += from[i] for i in [0, n).
void add_widened(Isa isa, double* to, const float* from, std::int64_t n);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_CONVERT_H_

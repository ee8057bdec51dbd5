#ifndef ONNXGRAD_DEVICE_CPU_CONVERT_H_
#define ONNXGRAD_DEVICE_CPU_CONVERT_H_

#include <cstdint>

#include "onnxgrad/dtype.h"

namespace onnxgrad::device {

/// to[i] = from[i] for i in [0, n).
using ConvertFn = void (*)(void* to, const void* from, std::int64_t n);

/// From one of bool, the integers of 8 to 64 bits, float16, bfloat16, float32, float64 to another
/// (or the same); nullptr for other types. Floating to integer: towards zero to int64 (bounded by
/// its range, NaN becomes 0), then as from int64. Integer to narrower integer: the low bits. To
/// bool: whether it is not 0 (NaN is not 0).
ConvertFn find_conversion(DataType from, DataType to);

/// The vectorised ones among them (convert_simd.cpp); nullptr for the others.
ConvertFn find_vector_conversion(DataType from, DataType to);

/// From float32 to float32: each number rounded to a half of type `half`.
ConvertFn find_rounding(DataType half);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_CONVERT_H_

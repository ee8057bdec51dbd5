#ifndef ONNXGRAD_OPS_QUANTIZE_SMALL_TYPES_H_
#define ONNXGRAD_OPS_QUANTIZE_SMALL_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "onnxgrad/dtype.h"

// Access to single elements of the types of quantized tensors: integers of 2 to 32 bits, floats of
// 4, 8 and 16 bits. Types below a byte are packed, the first element in the lowest bits.

namespace onnxgrad::ops {

/// Rounding of float8_e8m0, which has powers of two only.
enum class ScaleRounding : std::uint8_t { kUp, kDown, kNearest };
ScaleRounding scale_rounding(std::string_view round_mode);

/// Returns true for the types that load_small() and store_small() support.
bool is_small_type(DataType dtype);
/// Returns true for the floating-point types of 4 and 8 bits.
bool is_small_float(DataType dtype);

/// Returns element `i` of the tensor at `data`.
float load_small(DataType dtype, const std::byte* data, std::int64_t i);

/// Stores `value` rounded to the nearest, ties to even. Integers saturate. Floating-point types
/// without infinities overflow to the largest magnitude if `saturate`, else to NaN. Elements that
/// share a byte must be stored in order from the first.
void store_small(DataType dtype, std::byte* data, std::int64_t i, float value, bool saturate,
                 ScaleRounding rounding = ScaleRounding::kUp);

/// Smallest and largest value of an integer type.
struct IntegerRange {
  float low = 0;
  float high = 0;
};
IntegerRange integer_range(DataType dtype);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_QUANTIZE_SMALL_TYPES_H_

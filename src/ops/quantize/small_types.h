#ifndef ONNXGRAD_OPS_QUANTIZE_SMALL_TYPES_H_
#define ONNXGRAD_OPS_QUANTIZE_SMALL_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "onnxgrad/dtype.h"

// Elements of the types that quantized tensors have, one at a time: integers of 2 to 32 bits,
// floating-point numbers of 4, 8 and 16 bits. Those below a byte are packed, the first in the
// lowest bits.

namespace onnxgrad::ops {

/// How float8_e8m0 rounds, which has powers of two only.
enum class ScaleRounding : std::uint8_t { kUp, kDown, kNearest };
ScaleRounding scale_rounding(std::string_view round_mode);

/// True for the types that load_small() and store_small() know.
bool is_small_type(DataType dtype);
/// True for the floating-point types of 4 and 8 bits.
bool is_small_float(DataType dtype);

/// Element `i` of the tensor at `data`.
float load_small(DataType dtype, const std::byte* data, std::int64_t i);

/// Stores `value` rounded to the nearest, ties to even. Integers take the nearest one that they
/// have. Floating-point types without infinities take the largest magnitude, if `saturate`, else
/// NaN. Elements that share a byte must be stored in order from the first.
void store_small(DataType dtype, std::byte* data, std::int64_t i, float value, bool saturate,
                 ScaleRounding rounding = ScaleRounding::kUp);

/// The smallest and the largest value that an integer type has.
struct IntegerRange {
  float low = 0;
  float high = 0;
};
IntegerRange integer_range(DataType dtype);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_QUANTIZE_SMALL_TYPES_H_

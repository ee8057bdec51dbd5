#ifndef ONNXGRAD_DEVICE_CPU_TAP_GEMMS_H_
#define ONNXGRAD_DEVICE_CPU_TAP_GEMMS_H_

#include <cstddef>
#include <cstdint>

// AMX products of bfloat16 matrices whose parts are anywhere in memory, for convolutions. A step
// multiplies 32 columns of A by 16 rows of B in VNNI layout: two adjacent elements of the sum in 32
// bits.

namespace onnxgrad::device {

inline constexpr std::int64_t kTapNumbers = 32;  ///< columns of A in a step
inline constexpr std::int64_t kTapVnni = 16;
inline constexpr std::int64_t kTapRows = 32;     ///< maximum of TapGemms::rows
inline constexpr std::int64_t kTapColumns = 16;  ///< TapGemms::columns is a multiple of it

/// Sums of products: sums[i, j] (+)= sum over s of A_s[i, :] . B_s[:, j]. Strides and offsets are
/// in bytes; sums_row is in elements.
struct TapGemms {
  const std::byte* a = nullptr;  ///< A_s begins at a + a_offsets[s]
  std::ptrdiff_t a_row = 0;
  const std::int32_t* a_offsets = nullptr;
  const std::byte* b = nullptr;  ///< B_s begins at b + b_offsets[s]
  std::ptrdiff_t b_row = 0;      ///< from VNNI pair to VNNI pair
  const std::int32_t* b_offsets = nullptr;
  std::int64_t steps = 0;
  float* sums = nullptr;
  std::ptrdiff_t sums_row = 0;
  std::int64_t rows = 0;  ///< at most kTapRows
  std::int64_t columns = 0;
  bool adds = false;
};

/// Computes TapGemms; subnormal elements count as zero.
using TapGemmsFn = void (*)(const TapGemms& products);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_TAP_GEMMS_H_

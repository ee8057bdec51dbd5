#ifndef ONNXGRAD_DEVICE_CPU_TAP_GEMMS_H_
#define ONNXGRAD_DEVICE_CPU_TAP_GEMMS_H_

#include <cstddef>
#include <cstdint>

// Products of bfloat16 matrices whose parts are anywhere in memory, with AMX: what convolutions are
// made of. A step multiplies 32 columns of A with 16 lines of B, which hold pairs: two numbers that
// follow each other in the sum, in 32 bits.

namespace onnxgrad::device {

inline constexpr std::int64_t kTapNumbers = 32;  ///< of the sum, in a step
inline constexpr std::int64_t kTapVnni = 16;
inline constexpr std::int64_t kTapRows = 32;     ///< of a block of results
inline constexpr std::int64_t kTapColumns = 16;  ///< the number of columns is a multiple of it

/// sums[i, j] (+)= sum over s of A_s[i, :] . B_s[:, j]. Distances and offsets are in bytes, except
/// that of sums, in elements.
struct TapGemms {
  const std::byte* a = nullptr;  ///< A_s begins at a + a_offsets[s]
  std::ptrdiff_t a_row = 0;
  const std::int32_t* a_offsets = nullptr;
  const std::byte* b = nullptr;  ///< B_s begins at b + b_offsets[s]
  std::ptrdiff_t b_row = 0;      ///< from pair to pair
  const std::int32_t* b_offsets = nullptr;
  std::int64_t steps = 0;
  float* sums = nullptr;
  std::ptrdiff_t sums_row = 0;
  std::int64_t rows = 0;  ///< at most kTapRows
  std::int64_t columns = 0;
  bool adds = false;
};

/// Subnormal elements are zero.
using TapGemmsFn = void (*)(const TapGemms& products);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_TAP_GEMMS_H_

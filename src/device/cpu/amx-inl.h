#ifndef ONNXGRAD_DEVICE_CPU_AMX_INL_H_
#define ONNXGRAD_DEVICE_CPU_AMX_INL_H_

#include <cstddef>

#include "device/cpu/f16_gemm_end-inl.h"

// Functions that f16_gemm_amx.cpp and gemm_split_amx.cpp share: AMX tiles 0 to 3 hold the sums of a
// block of up to 2 x 2 tiles of 16 x 16 float32.

#if ONNXGRAD_HAS_VNNI && defined(__linux__)
#define ONNXGRAD_HAS_AMX 1
#define ONNXGRAD_AMX_TARGET __attribute__((target(ONNXGRAD_VNNI_FEATURES ",amx-tile,amx-bf16")))
#define ONNXGRAD_AMX_INLINE ONNXGRAD_AMX_TARGET __attribute__((always_inline)) inline

namespace onnxgrad::device {
struct SplitTarget;  // gemm_split.h
}

namespace onnxgrad::device::amx {

/// Returns the functions of a split GEMM by AMX (gemm_split_amx.cpp).
const SplitTarget& split_target();

inline constexpr std::ptrdiff_t kTile = 16;  // rows, and columns of 32 bits
inline constexpr std::ptrdiff_t kLine = 64;  // bytes of a row

template <bool kHasLower, bool kIsWide>
ONNXGRAD_AMX_INLINE void zero_sums() {
  _tile_zero(0);
  if (kIsWide) _tile_zero(1);
  if (kHasLower) _tile_zero(2);
  if (kHasLower && kIsWide) _tile_zero(3);
}

/// Stores tiles 0 to 3; `row`: row stride of `sums` in bytes.
template <bool kHasLower, bool kIsWide>
ONNXGRAD_AMX_INLINE void store_sums(float* sums, std::ptrdiff_t row) {
  auto* upper = reinterpret_cast<std::byte*>(sums);
  std::byte* lower = upper + kTile * row;
  _tile_stored(0, upper, row);
  if (kIsWide) _tile_stored(1, upper + kLine, row);
  if (kHasLower) _tile_stored(2, lower, row);
  if (kHasLower && kIsWide) _tile_stored(3, lower + kLine, row);
}

}  // namespace onnxgrad::device::amx

#else
#define ONNXGRAD_HAS_AMX 0
#endif

#endif  // ONNXGRAD_DEVICE_CPU_AMX_INL_H_

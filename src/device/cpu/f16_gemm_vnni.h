#ifndef ONNXGRAD_DEVICE_CPU_F16_GEMM_VNNI_H_
#define ONNXGRAD_DEVICE_CPU_F16_GEMM_VNNI_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm.h"

// The inner kernels of f16_gemm_kernel.cpp and its packing: the product of a panel of A's rows with
// a packed B panel in VNNI layout. A VNNI pair is two bfloat16 elements adjacent in k, in 32 bits.

namespace onnxgrad::device {

/// Epilogue of a block's sums, c = max(floor, scale * sum + start); strides are in elements.
struct F16End {
  float* c = nullptr;              ///< float32 result
  std::uint16_t* f16_c = nullptr;  ///< bfloat16 result, written instead of `c`
  std::ptrdiff_t c_row = 0;
  const float* start = nullptr;              ///< float32 addend; nullptr: none
  const std::uint16_t* f16_start = nullptr;  ///< bfloat16 addend, instead of `start`
  std::ptrdiff_t start_row = 0;              ///< 0: one row for all
  float scale = 1;
  bool relu = false;
};

/// Rows of A times one packed B panel: c[i, j] = end(sum over VNNI pairs p of a[i, p] . b[p, j]).
struct VnniPanel {
  const std::byte* a = nullptr;
  std::ptrdiff_t a_row = 0;          ///< row stride in bytes
  std::ptrdiff_t a_step = 0;         ///< bytes from pair to pair
  const std::uint32_t* b = nullptr;  ///< [pairs, 16 vectors], zeros after the last column
  std::int64_t rows = 0;
  std::int64_t pairs = 0;
  int vectors = 1;           ///< of 16 columns
  std::int64_t columns = 0;  ///< columns of C: more than 16 (vectors - 1)
  F16End end;
};

inline constexpr std::ptrdiff_t kVnniLanes = 16;
inline constexpr int kVnniMaxVectors = 4;
/// Rows of a tile that reads A in place, by vectors - 1.
inline constexpr int kVnniRows[kVnniMaxVectors] = {8, 8, 8, 6};
/// Rows of a packed A panel.
inline constexpr std::int64_t kVnniPanelRows = 6;
/// VNNI pairs that AMX reads at a time: packed operands are padded with zeros to a multiple.
inline constexpr std::int64_t kAmxVnni = 16;

/// Whether the processor and the system support AVX512-BF16.
bool cpu_has_bf16_dot();
/// Multiplies rows of A, in place (a_step: 4) or in packed A panels of kVnniPanelRows, by a B
/// panel.
void run_vnni(const VnniPanel& b_panel);
/// Packs rows of steps into VNNI layout: to[p, j] = (from[2p, j], from[2p + 1, j]) for `count`
/// columns; zeros beyond `steps` and `count` up to a multiple of 16. from_row: elements.
void pack_vnni(const std::uint16_t* from, std::ptrdiff_t from_row, std::int64_t steps,
               std::int64_t count, std::uint32_t* to, std::ptrdiff_t to_row);

/// Rounds float32 to bfloat16 and packs it into VNNI layout.
void pack_vnni(const float* from, std::ptrdiff_t from_row, std::int64_t steps, std::int64_t count,
               std::uint32_t* to, std::ptrdiff_t to_row);

struct F16GemmSpec;  // f16_gemm.h

/// Plans a GEMM of bfloat16 by AVX512-BF16 or AMX (f16_gemm_kernel.cpp): all fields but the label.
PreparedGemm prepare_vnni_gemm(const F16GemmSpec& spec, bool is_amx);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_F16_GEMM_VNNI_H_

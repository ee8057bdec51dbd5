#ifndef ONNXGRAD_DEVICE_CPU_GEMM_SOURCE_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_SOURCE_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/convert.h"

// Operands of another type than the one a product computes in.

namespace onnxgrad::device {

template <class T>
struct GemmTarget;  // gemm_tile.h

/// How a product in float32 reads a matrix of halves, or one of float32 that is rounded to halves.
struct GemmSource {
  ConvertRowsFn convert = nullptr;  ///< nullptr: numbers are of the product's type
  std::int64_t size = 0;            ///< bytes of a number
  int parts = 1;                    ///< numbers of bfloat16 whose sum each converted one is

  explicit operator bool() const { return convert != nullptr; }
  const std::byte* at(const void* matrix, std::int64_t index) const {
    return static_cast<const std::byte*>(matrix) + index * size;
  }
};

/// `rounds`: of float32.
GemmSource source_of_f16(DataType half, bool rounds = false);

/// [rows, columns] of a matrix, from number `first` on, with `row` numbers from row to row.
struct SourceBlock {
  const void* matrix = nullptr;
  std::int64_t first = 0, row = 0;
  std::int64_t rows = 0, columns = 0;
};

inline constexpr std::int64_t kSourceLines = 16;   ///< rows that are transposed at a time
inline constexpr std::int64_t kSourceSteps = 256;  ///< numbers of each: they fit the L1 cache

/// to[j, i] = block[i, j] for i in [0, width), zeros from the block's last row on. `lines` holds
/// kSourceLines rows of kSourceSteps.
void transpose_source(const GemmSource& source, const SourceBlock& block, std::int64_t width,
                      const GemmTarget<float>& target, float* to, std::ptrdiff_t to_row,
                      float* lines);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_SOURCE_H_

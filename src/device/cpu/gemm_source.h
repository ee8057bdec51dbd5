#ifndef ONNXGRAD_DEVICE_CPU_GEMM_SOURCE_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_SOURCE_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/convert.h"
#include "device/isa.h"

// Operands of a GEMM whose elements are converted to its type.

namespace onnxgrad::device {

template <class T>
struct GemmTarget;  // gemm_tile.h

/// Block [rows, columns] of a matrix whose first element is `first`; `row`: row stride in elements.
struct SourceBlock {
  const void* matrix = nullptr;
  std::int64_t first = 0, row = 0;
  std::int64_t rows = 0, columns = 0;
};

/// Writes a block as float32, with zeros after the last column up to a full vector.
using ReadBlockFn = void (*)(float* to, std::ptrdiff_t to_row, const SourceBlock& block);

/// Conversion to float32 of a matrix of 16-bit floats, or of float32 rounded to 16-bit floats, or
/// of one that `read` computes, which may be rounded by `convert` then.
struct GemmSource {
  ConvertRowsFn convert = nullptr;
  std::int64_t size = 0;       ///< bytes of an element; 0: `read` knows
  int parts = 1;               ///< bfloat16 scalars whose sum a converted element is
  ReadBlockFn read = nullptr;  ///< nullptr: elements are in memory

  /// False: elements have the GEMM's type.
  explicit operator bool() const { return convert != nullptr || read != nullptr; }
  /// Writes a block as float32, as ReadBlockFn.
  void block(float* to, std::ptrdiff_t to_row, const SourceBlock& block) const {
    if (read == nullptr) {
      return convert(to, to_row, at(block.matrix, block.first), block.row, block.rows,
                     block.columns);
    }
    read(to, to_row, block);
    if (convert != nullptr) convert(to, to_row, to, to_row, block.rows, block.columns);
  }
  const std::byte* at(const void* matrix, std::int64_t index) const {
    return static_cast<const std::byte*>(matrix) + index * size;
  }
};

/// Returns the conversion of elements of type `half`, float16 or bfloat16, to float32; with
/// `rounds`, of float32 elements that are rounded to that type.
GemmSource source_of_f16(Isa isa, DataType half, bool rounds = false);

inline constexpr std::int64_t kSourceLines = 16;   ///< rows that are transposed at a time
inline constexpr std::int64_t kSourceSteps = 256;  ///< elements of each: they fit the L1 cache

/// to[j, i] = block[i, j] for rows i in [0, width) and all columns j of the block, zeros for rows
/// beyond the block's. `lines`: scratch of [kSourceLines, kSourceSteps].
void transpose_source(const GemmSource& source, const SourceBlock& block, std::int64_t width,
                      const GemmTarget<float>& target, float* to, std::ptrdiff_t to_row,
                      float* lines);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_SOURCE_H_

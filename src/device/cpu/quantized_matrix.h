#ifndef ONNXGRAD_DEVICE_CPU_QUANTIZED_MATRIX_H_
#define ONNXGRAD_DEVICE_CPU_QUANTIZED_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "device/cpu/gemm.h"
#include "device/cpu/gemm_source.h"
#include "device/isa.h"
#include "onnxgrad/dtype.h"

// Matrices of integers of 2, 4 or 8 bits, or of numbers of entries of a table, with scales:
// operands of a GEMM that are computed where B panels are packed, so that no float copy of the
// matrix exists.

namespace onnxgrad::device {

/// How far one scale reaches if it is that of all rows, or columns.
inline constexpr std::int64_t kAllOfThem = std::numeric_limits<std::int64_t>::max();

/// A matrix W[r, c] = (code - zero) * scale, or table[code] * scale. Scale and zero of an element
/// have the index (r / row_block) * scale_row + (groups != nullptr ? groups[c] : c / column_block).
struct QuantizedMatrix {
  const std::byte* codes = nullptr;  ///< row-major; below a byte, the first is in the lowest bits
  DataType type = DataType::kUint4;  ///< uint8, int8, uint4, int4, uint2 or int2
  std::int64_t columns = 0;
  std::int64_t row_length = 0;  ///< row stride of codes, at least `columns`
  const float* scales = nullptr;
  const std::byte* zeros = nullptr;        ///< nullptr: `zero` for all
  DataType zeros_type = DataType::kUint4;  ///< a type of codes, or float32
  float zero = 0;
  const float* table = nullptr;  ///< 16 entries, for uint4
  const std::int32_t* groups = nullptr;
  std::int64_t row_block = 1;
  std::int64_t column_block = kAllOfThem;
  std::int64_t scale_row = 1;
};

/// True for the types of codes.
bool is_code_type(DataType type);

/// Sums over k of few rows of A with rows of W, which are computed where they are read and need no
/// packing: sums[(r - first) * m + i] = sum_k A[i, k] W[r, k] for r in [first, first + count).
struct QuantizedDots {
  const QuantizedMatrix* matrix = nullptr;
  const float* a = nullptr;  ///< [m, k], dense; k is `columns` of the matrix
  std::int64_t m = 0;
  std::int64_t first = 0, count = 0;
  float* sums = nullptr;
};
void run_quantized_dots(Isa isa, const QuantizedDots& dots);

/// Sums over rows of W, whose elements are computed where they are read:
/// sums[j] = sum_r a[r] W[r, first + j] for j in [0, count).
struct QuantizedRowSums {
  static constexpr std::int64_t kMostColumns = 256;
  const QuantizedMatrix* matrix = nullptr;
  const float* a = nullptr;  ///< [k]
  std::int64_t k = 0;
  std::int64_t first = 0, count = 0;  ///< at most kMostColumns
  float* sums = nullptr;
};
void run_quantized_row_sums(Isa isa, const QuantizedRowSums& rows);

/// Source of a GEMM whose GemmOperands::b is a QuantizedMatrix. `rounds`: elements are rounded to
/// that 16-bit type, kUndefined: not.
GemmSource source_of_quantized(Isa isa, DataType rounds = DataType::kUndefined);

/// Whether a GEMM of such a matrix has few rows, and W is read where it is: by dot products with
/// its rows if B is W', else, for a row, by sums of them.
bool suits_quantized_dots(const GemmSpec& spec, const QuantizedMatrix& matrix);
PreparedGemm prepare_quantized_dots(const GemmSpec& spec);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_QUANTIZED_MATRIX_H_

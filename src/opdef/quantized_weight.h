#ifndef ONNXGRAD_OPDEF_QUANTIZED_WEIGHT_H_
#define ONNXGRAD_OPDEF_QUANTIZED_WEIGHT_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "opdef/expr.h"

// Weights whose integers stay packed. A file computes such a matrix from constants, in several
// ways; a plan reads it where it is multiplied, and a LoRA finds the layer that has it.

namespace onnxgrad::opdef {

/// Where the numbers of a matrix are: W[r, c] = (code - zero) scale, or table[code] scale, with
/// code r * row_length + c. Scale and zero have the index
/// (r / row_block) * scale_row + (groups ? groups[c] : c / column_block).
struct QuantizedForm {
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  std::int64_t rows = 0, columns = 0;
  std::int64_t row_length = 0;  ///< as stored, at least `columns`
  std::int64_t first_row = 0;   ///< for dequantized() alone
  std::int64_t row_block = 1, column_block = kAll, scale_row = 1;
  DataType type = DataType::kUint4;         ///< of codes; their tensor may have whole bytes
  float zero = 0;                           ///< where there are no zeros
  std::vector<float> table = {};            ///< 16 entries, or none
  DataType rounded = DataType::kUndefined;  ///< 16-bit type to which numbers are rounded
};

/// A matrix that nodes compute from constants of 2, 4 or 8 bits.
struct QuantizedWeight {
  QuantizedForm form = {};
  bool is_transposed = false;  ///< the value is the transposition of [rows, columns]
  ir::Value* codes = nullptr;
  ir::Value* scales = nullptr;
  ir::Value* zeros = nullptr;   ///< nullptr: form.zero
  ir::Value* groups = nullptr;  ///< of columns; nullptr: blocks
};

/// The constants of a matrix; `zeros` and `groups` may be undefined.
struct QuantizedTensors {
  Tensor codes = {}, scales = {}, zeros = {}, groups = {};
};

/// The tensor of an initializer that is no input, or of a Constant; nullptr for other values.
const Tensor* constant_tensor(const ir::Value* value);

/// Recognises what computes `value`, for ai.onnx operators of any version: DequantizeLinear of a
/// constant matrix, with one scale, one for each row or column, or in blocks; (codes - zeros) *
/// scales with groups of columns; entries of a table of 16, or of 256 pairs, times scales of
/// blocks; and Transpose, Identity, Cast between floating-point types and Slice of columns after
/// these.
std::optional<QuantizedWeight> find_quantized_weight(const ir::Value* value);

QuantizedTensors tensors_of(const QuantizedWeight& weight);

/// All elements [rows, columns], row by row.
std::vector<float> dequantized(const QuantizedForm& form, const QuantizedTensors& tensors);

/// `QuantizedGemm` of domain `onnxgrad.fused`, (A, codes, scales, zeros?, groups?, operands...) ->
/// (C, sums?): as `Gemm`, with B = W of `form`.
struct QuantizedGemm {
  bool transpose_a = false;
  bool transpose_b = false;
  QuantizedForm form = {};
  std::optional<ExprProgram> epilogue = {};
  bool sums_columns = false;

  static QuantizedGemm read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kQuantizedGemm = "QuantizedGemm";
inline constexpr std::size_t kQuantizedGemmOperands = 5;  ///< before those of the epilogue

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_QUANTIZED_WEIGHT_H_

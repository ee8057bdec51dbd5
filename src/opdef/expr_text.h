#ifndef ONNXGRAD_OPDEF_EXPR_TEXT_H_
#define ONNXGRAD_OPDEF_EXPR_TEXT_H_

#include <span>
#include <string>
#include <string_view>

#include "opdef/expr.h"
#include "opdef/fused.h"
#include "opdef/kernel.h"

// Element-wise programs as source text, for devices whose kernels are compiled at run time. It is
// C++17 without the standard library but for the functions of math.h and memcpy(), which NVRTC has
// without a header, and has the numbers of the CPU's tiles: NaN wins in Min and Max; integers wrap
// around, division by zero yields 0; floating numbers become integers towards zero, within the
// range of int64, NaN 0; products and sums are rounded one by one, but for kFma. The compiler must
// not contract them (-ffp-contract=off, --fmad=false). Functions (exp, tanh, ...) are those of the
// compiler's library: on the host, and in CUDA's documentation, within 4 units of the last place,
// as the tiles are (device/cpu/tile_functions-inl.h).

namespace onnxgrad::opdef {

/// Definitions that all other texts use; precedes them, once. OG_FUNCTION, unless it is defined
/// before, is `static inline`.
std::string_view text_prelude();

/// The name of an element's type in texts: "og_f32", "og_bf16", "og_u8" for bool; empty for types
/// without one. block_text() defines those of 16 bits.
std::string_view text_type(DataType dtype);

/// The function of a program:
///
///   OG_FUNCTION void <name>(const T* in, T* out)
///
/// reads num_inputs numbers and writes one for each result. T is the type of `compute` (float32,
/// float64, int64, uint64): float, double, og_i64 or og_u64.
std::string program_text(const ExprProgram& program, DataType compute, std::string_view name);

/// The functions of a node `Elementwise` with these operands and results (absent ones are not
/// computed), the last of which is
///
///   OG_FUNCTION void <name>(const void* const* in, void* const* out, og_i64 index)
///
/// It computes element `index` of the results: of the operands' common shape F, or, with
/// reductions, of F without the reduced axes, with the stored results of the elements that are
/// combined in it. in, out: addresses of the operands and results. Calls for different elements may
/// run at the same time. Sums of float32 are added up in float64. Returns an empty text for types
/// that no element-wise kernel computes.
std::string elementwise_text(const Elementwise& op, std::span<const TensorDesc> inputs,
                             std::span<const TensorDesc> outputs, std::string_view name);

/// The functions of a node with reductions, for devices whose threads have barriers: the
/// blockDim.y threads of a column of a block call the last one with the same index, which may be
/// beyond the last; the text needs ops/block_text_cuda.h.
std::string elementwise_block_text(const Elementwise& op, std::span<const TensorDesc> inputs,
                                   std::span<const TensorDesc> outputs, std::string_view name);

/// Elements that are combined in one of the result, and whether the results of adjacent calls are
/// adjacent in the operands' common shape.
struct ElementwiseFolds {
  std::int64_t length = 1;
  bool are_adjacent = false;
};
ElementwiseFolds elementwise_folds(const Elementwise& op, std::span<const TensorDesc> inputs);

/// The number of elements that elementwise_text() has a call for.
std::int64_t elementwise_calls(const Elementwise& op, std::span<const TensorDesc> inputs);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_EXPR_TEXT_H_

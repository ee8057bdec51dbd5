#ifndef ONNXGRAD_DEVICE_CPU_TILE_OPS_H_
#define ONNXGRAD_DEVICE_CPU_TILE_OPS_H_

#include <cstddef>
#include <cstdint>

#include "device/isa.h"
#include "onnxgrad/dtype.h"
#include "opdef/expr.h"

// The instructions of element-wise programs, each over a tile: a run of elements that fits into the
// L1 cache. One table per type of the computation, filled for an instruction set
// by tile_arithmetic-inl.h and tile_functions_simd.cpp (float, double) and
// tile_integers.cpp (int64, uint64).

namespace onnxgrad::device {

/// Number of instructions: those of ExprOp, then the ones below.
inline constexpr std::size_t kNumExprOps = static_cast<std::size_t>(opdef::ExprOp::kFma) + 1;

enum class TileOp : std::uint8_t {
  kCopy = kNumExprOps,  ///< a
  kFill,                ///< a[0]
  kMulSub,              ///< a * b - c
  kNegMulAdd,           ///< c - a * b
  kMulGreater,          ///< b > c ? a * 1 : a * 0
  kAddRelu,             ///< max(0, a + b); NaN stays NaN
  kCount
};

constexpr TileOp tile_op(opdef::ExprOp op) { return static_cast<TileOp>(op); }

/// to[i] = op(a[i], b[i], c[i]) for i in [0, n). `to` may be a, b or c. `pad`: `to` may be written
/// up to the end of the last vector.
using TileFn = void (*)(void* to, const void* a, const void* b, const void* c, std::int64_t n,
                        bool pad);

/// Operands of a tile function that are one element for the whole tile.
enum TileForm : std::uint8_t {
  kAllVectors = 0,
  kLastScalar = 1,   ///< b of binary, c of ternary instructions
  kFirstScalar = 2,  ///< a of binary, b of ternary instructions
  kBothScalar = 3,   ///< b and c of ternary instructions
  kNumForms = 4
};

enum class Fold : std::uint8_t { kSum, kMax, kMin };
inline constexpr std::size_t kNumFolds = 3;

/// Reduces x [rows, columns] (rows `row_step` apart) to one element per row, or to one per column.
/// The order of operations depends only on the sizes. NaN stays NaN.
using FoldFn = void (*)(const void* x, std::int64_t rows, std::int64_t columns,
                        std::ptrdiff_t row_step, void* to);

struct TileTable {
  TileFn fn[static_cast<std::size_t>(TileOp::kCount)][kNumForms] = {};
  FoldFn fold_columns[kNumFolds] = {};  ///< to [rows]
  FoldFn fold_rows[kNumFolds] = {};     ///< to [columns]

  TileFn& at(TileOp op, TileForm form = kAllVectors) {
    return fn[static_cast<std::size_t>(op)][form];
  }
  TileFn at(TileOp op, TileForm form = kAllVectors) const {
    return fn[static_cast<std::size_t>(op)][form];
  }
};

/// Returns the functions for kFloat32, kFloat64, kInt64 or kUint64.
TileTable make_tile_table(Isa isa, DataType compute);

// Functions that fill parts of a TileTable.
void fill_float_arithmetic(Isa isa, TileTable& table);
void fill_double_arithmetic(Isa isa, TileTable& table);
void fill_functions(Isa isa, TileTable& table, DataType compute);
void fill_integers(TileTable& table);
void fill_unsigned(TileTable& table);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_TILE_OPS_H_

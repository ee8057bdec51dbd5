#ifndef ONNXGRAD_DEVICE_CPU_OFFSET_TILE_H_
#define ONNXGRAD_DEVICE_CPU_OFFSET_TILE_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_tile.h"
#include "device/isa.h"

// GEMM tiles with one operand read through a table of offsets, for convolutions: the im2col matrix
// is never materialised. One set per instruction set
// (offset_tile-inl.h). All strides are in elements.

namespace onnxgrad::device {

/// Blocks of C: c[i, j] = start[i, j] + sum over k of a[offsets[k] + i * a_row] * b[k, j]. The
/// function determines the number of rows and of vectors of columns.
template <class T>
struct OffsetTile {
  const T* a = nullptr;
  const std::int32_t* offsets = nullptr;  ///< [steps]
  std::ptrdiff_t a_row = 0;
  const T* b = nullptr;  ///< [steps, vectors * lanes]
  T* c = nullptr;        ///< full vectors are written
  std::ptrdiff_t c_row = 0;
  const T* start = nullptr;  ///< may be `c`
  std::ptrdiff_t start_row = 0;
  std::int64_t steps = 0;
  std::int64_t blocks = 1;  ///< with the same b
  std::ptrdiff_t a_block = 0;
  std::ptrdiff_t c_block = 0;
  std::ptrdiff_t start_block = 0;
};

template <class T>
using OffsetTileFn = void (*)(const OffsetTile<T>& tile);

/// Blocks of C: c[i, j] = start[i] + sum over k of a[k, i] * b[offsets[k] + j], with an epilogue if
/// `finishes`.
template <class T>
struct PlaneTile {
  const T* a = nullptr;                   ///< [steps, rows]
  const T* b = nullptr;                   ///< readable up to full vectors
  const std::int32_t* offsets = nullptr;  ///< [steps]
  T* c = nullptr;
  std::ptrdiff_t c_row = 0;
  const T* start = nullptr;  ///< [rows]
  std::int64_t steps = 0;
  std::int64_t tail = 0;    ///< columns in the last vector, 1 to lanes
  std::int64_t blocks = 1;  ///< with the same a
  std::ptrdiff_t b_block = 0;
  std::ptrdiff_t c_block = 0;
  bool finishes =
      false;  ///< adds `residual` and restricts the result to [low, high]; NaN stays NaN
  const T* residual = nullptr;  ///< with the strides of c; nullptr: zero
  T low = 0;
  T high = 0;
};

template <class T>
using PlaneTileFn = void (*)(const PlaneTile<T>& tile);

/// The functions of one instruction set for T: tiles by [vectors - 1][rows - 1].
template <class T>
struct OffsetTarget {
  int lanes = 1;
  int max_vectors = 1;
  int max_rows[kGemmMaxVectors] = {};
  OffsetTileFn<T> offset_tile[kGemmMaxVectors][kGemmMaxRows] = {};
  PlaneTileFn<T> plane_tile[kGemmMaxVectors][kGemmMaxRows] = {};
};

/// Returns the tiles of an instruction set.
template <class T>
const OffsetTarget<T>& offset_target(Isa isa);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_OFFSET_TILE_H_

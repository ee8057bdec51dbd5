#ifndef ONNXGRAD_DEVICE_CPU_GEMM_EPILOGUE_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_EPILOGUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_kernel.h"
#include "device/cpu/gemm_plan.h"

// Epilogue of GEMM kernels whose sums are in a buffer in the cache instead of a tile's registers,
// and the sums of columns of any kernel.

namespace onnxgrad::device {

/// Runs all tiles of a part of C, from `top` on; B is in place.
template <class T>
void run_tiles_of(const GemmTarget<T>& target, GemmTile<T> top, std::int64_t rows,
                  std::int64_t columns) {
  const ColumnSplit split = split_columns(columns, target);
  const std::int64_t count = split.count();
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int64_t vectors = split.size(p);
    GemmTile<T> tile = top;
    tile.tail = p + 1 == count ? split.tail : target.lanes;
    run_rows(tile, split_rows(rows, target, vectors));
    const std::int64_t width = vectors * target.lanes;
    if (top.b != nullptr) top.b += width;
    move_right(top, width, 1);
  }
}

/// Writes the sums of the columns of a part of C, complete and in place, to task.column_sums, for
/// each kGemmSumRows rows one row after the other: bits do not depend on the tiles. `row`: the
/// part's first row in the block; `c`: its first element, in column `column` of C's `n`. Nothing if
/// the task has no sums or does not complete C.
template <class T>
void sum_columns(const GemmTarget<T>& target, const GemmTask& task, const T* c, std::int64_t n,
                 std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  if (task.column_sums == nullptr || !task.is_last) return;
  const T one = 1;
  const std::int64_t whole = columns / target.lanes * target.lanes;
  for (std::int64_t i = 0; i < rows; i += kGemmSumRows, c += kGemmSumRows * n) {
    T* const to = reinterpret_cast<T*>(task.column_sums) + (row + i) / kGemmSumRows * n + column;
    const std::int64_t count = std::min(kGemmSumRows, rows - i);
    // A product with a row of ones.
    if (whole > 0) {
      run_tiles_of(target, GemmTile<T>{.a = &one, .b = c, .b_step = n, .c = to, .steps = count}, 1,
                   whole);
    }
    for (std::int64_t j = whole; j < columns; ++j) {
      to[j] = 0;
      for (std::int64_t r = 0; r < count; ++r) to[j] += c[r * n + j];
    }
  }
}

/// A part of C, the buffer of its sums and their destination.
template <class T>
struct GemmBuffer {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
  T* sums = nullptr;
  std::ptrdiff_t sums_row = 0;
  T* c = nullptr;  ///< C[0, 0], or where that would be of a block kept for a consumer
  std::ptrdiff_t c_row = 0;
};

/// Completes a part of a task's block: c = finish(alpha * sums + addends), scaled, to C or the
/// consumer; the sums are overwritten. The first steps of k add the addends of the GEMM, at most
/// kGemmMaxMore, the others add to `c`.
template <class T>
void end_buffer(const GemmProblem<T>& gemm, const GemmOperands& operands, const GemmTask& task,
                const GemmBuffer<T>& buffer) {
  GemmExtras<T> extras;
  if (task.is_first) {
    set_more(gemm, operands, extras);
    if (gemm.start != GemmStart::kZero) {
      extras.more[extras.more_count] = static_cast<const T*>(operands.start);
      extras.more_row[extras.more_count++] = gemm.start == GemmStart::kMatrix ? gemm.n : 0;
    }
  } else {
    extras.more[0] = buffer.c;
    extras.more_row[0] = buffer.c_row;
    extras.more_count = 1;
  }
  const T scale = gemm.alpha * static_cast<T>(operands.factor);
  for (std::int64_t i = 0; scale != 1 && i < buffer.rows; ++i) {
    T* const row = buffer.sums + i * buffer.sums_row;
    for (std::int64_t j = 0; j < buffer.columns; ++j) row[j] *= scale;
  }
  const bool is_relu = task.is_last && gemm.finish == GemmFinish::kRelu;
  const bool is_consumed = task.is_last && gemm.has_consumer;
  // Tiles of 0 steps.
  GemmTile<T> top{.start = buffer.sums, .start_row = buffer.sums_row};
  top.finish = is_relu ? GemmFinish::kRelu : GemmFinish::kAdd;
  top.extras = &extras;
  top.row = buffer.row;
  top.column = buffer.column;
  if (is_consumed) {
    top.c = buffer.sums;
    top.c_row = buffer.sums_row;
    if (is_relu || extras.more_count > 0) {
      run_tiles_of(*gemm.target, top, buffer.rows, buffer.columns);
    }
    return operands.finished(operands.context, {.c = top.c,
                                                .c_row = top.c_row,
                                                .row = buffer.row,
                                                .rows = buffer.rows,
                                                .column = buffer.column,
                                                .columns = buffer.columns});
  }
  if (task.is_last && gemm.is_scaled) {
    extras.scales = static_cast<const T*>(operands.scales);
    extras.scales_row = gemm.n;
  }
  top.c = buffer.c + buffer.row * buffer.c_row + buffer.column;
  top.c_row = buffer.c_row;
  run_tiles_of(*gemm.target, top, buffer.rows, buffer.columns);
  sum_columns(*gemm.target, task, top.c, gemm.n, buffer.row - task.rows.row, buffer.rows,
              buffer.column, buffer.columns);
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_EPILOGUE_H_

#ifndef ONNXGRAD_DEVICE_CPU_GEMM_BUFFER_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_plan.h"

// Epilogue of GEMMs whose sums are in a buffer in the cache instead of a tile's registers.

namespace onnxgrad::device {

/// A part of C and the buffer of its sums.
template <class T>
struct GemmBuffer {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
  const T* sums = nullptr;
  std::ptrdiff_t sums_row = 0;
};

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

/// c = finish(sums + extras.more), multiplied by extras.scales and summed by column, computed by
/// tiles of 0 steps; the sums have been multiplied by alpha. `finish`: kAdd or kRelu. `c` is at the
/// part's first element, and may be the buffer.
template <class T>
void end_buffer(const GemmPlan<T>& plan, const GemmBuffer<T>& buffer, const GemmExtras<T>& extras,
                GemmFinish finish, T* c, std::ptrdiff_t c_row) {
  GemmTile<T> top{.finish = finish, .extras = &extras};
  top.start = buffer.sums;
  top.start_row = buffer.sums_row;
  top.c = c;
  top.c_row = c_row;
  top.row = buffer.row;
  top.column = buffer.column;
  run_tiles_of(*plan.target, top, buffer.rows, buffer.columns);
}

/// Adds `start` and the other addends to `extras`: at most kGemmMaxMore together.
template <class T>
void add_addends(const GemmPlan<T>& plan, const GemmOperands& operands, GemmExtras<T>& extras) {
  set_more(plan, operands, extras);
  if (plan.start == GemmStart::kZero) return;
  extras.more[extras.more_count] = static_cast<const T*>(operands.start);
  extras.more_row[extras.more_count++] = plan.start == GemmStart::kMatrix ? plan.n : 0;
}

/// Whether `start` and the other addends are at most kGemmMaxMore.
inline bool has_few_addends(const GemmSpec& spec) {
  return spec.more[kGemmMaxMore - 1] == GemmStart::kZero;
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_BUFFER_H_

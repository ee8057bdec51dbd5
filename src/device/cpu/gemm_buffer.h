#ifndef ONNXGRAD_DEVICE_CPU_GEMM_BUFFER_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_plan.h"

// Sums that others than tiles have computed, in a buffer that is in the cache.

namespace onnxgrad::device {

/// A part of C whose sums are in a buffer.
template <class T>
struct GemmBuffer {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
  const T* sums = nullptr;
  std::ptrdiff_t sums_row = 0;
};

/// c = finish(sums + extras.more), scaled and summed as `extras` says: by tiles whose sums have no
/// steps. `c` is at the part's first element, and may be the buffer.
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
  const ColumnSplit<T> columns = split_columns(buffer.columns, *plan.target);
  const std::int64_t count = columns.wide_count + columns.narrow_count;
  for (std::int64_t p = 0; p < count; ++p) {
    const int vectors = p < columns.wide_count ? columns.wide : columns.wide - 1;
    GemmTile<T> tile = top;
    tile.tail = p + 1 == count ? columns.tail : plan.target->lanes;
    const RowSplit<T> rows = split_rows(buffer.rows, *plan.target, vectors);
    tile.blocks = rows.big_count;
    rows.big_fn(tile);
    if (rows.small_count > 0) {
      move_down(tile, rows.big_count * rows.big);
      tile.blocks = rows.small_count;
      rows.small_fn(tile);
    }
    move_right(top, static_cast<std::int64_t>(vectors) * plan.target->lanes, 1);
  }
}

/// Adds `start` and the further addends to `extras`. At most kGemmMaxMore together.
template <class T>
void add_addends(const GemmPlan<T>& plan, const GemmOperands& operands, GemmExtras<T>& extras) {
  set_more(plan, operands, extras);
  if (plan.start == GemmStart::kZero) return;
  extras.more[extras.more_count] = static_cast<const T*>(operands.start);
  extras.more_row[extras.more_count++] = plan.start == GemmStart::kMatrix ? plan.n : 0;
}

/// Whether they are so few.
inline bool has_few_addends(const GemmSpec& spec) {
  return spec.more[kGemmMaxMore - 1] == GemmStart::kZero;
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_BUFFER_H_

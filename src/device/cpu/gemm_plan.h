#ifndef ONNXGRAD_DEVICE_CPU_GEMM_PLAN_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/cpu/even_split.h"
#include "device/cpu/gemm.h"
#include "device/cpu/gemm_tile.h"

// A GEMM as prepare_gemm passes it to the implementations, and arithmetic of tiles that these
// share.

namespace onnxgrad::device {

/// Rows of C in tiles, and the functions that compute these.
template <class T>
struct RowSplit : EvenSplit {
  GemmTileFn<T> big_fn = nullptr;
  GemmTileFn<T> small_fn = nullptr;
};

/// Splits `total` rows among `tiles` by [rows - 1], of at most `max_rows` rows.
template <class T>
RowSplit<T> split_rows(std::int64_t total, const GemmTileFn<T>* tiles, int max_rows);

/// Splits rows among the target's tiles of `vectors` vectors of columns. Empty without rows or
/// vectors.
template <class T>
RowSplit<T> split_rows(std::int64_t total, const GemmTarget<T>& target, std::int64_t vectors) {
  return total == 0 || vectors == 0
             ? RowSplit<T>{}
             : split_rows(total, target.tile[vectors - 1], target.max_rows[vectors - 1]);
}

/// Columns of C in B panels; the last vector has `tail` columns.
struct ColumnSplit : EvenSplit {
  int tail = 0;
};

ColumnSplit split_columns(std::int64_t total, int lanes, int max_vectors);

/// Splits columns for tiles that read A in place.
template <class T>
ColumnSplit split_columns(std::int64_t total, const GemmTarget<T>& target) {
  return split_columns(total, target.lanes, target.max_vectors);
}

/// A GEMM as all implementations read it; each has a plan of its own besides.
template <class T>
struct GemmProblem {
  const GemmTarget<T>* target = nullptr;
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  /// Types of A and B in memory if they are converted.
  GemmSource a_source = {}, b_source = {};
  std::int64_t a_line = 0;  ///< row stride of A in memory, in elements
  GemmStart start = GemmStart::kZero;
  std::array<GemmStart, kGemmMoreAddends> more = {};
  int more_count = 0;
  GemmFinish finish = GemmFinish::kStore;
  T alpha = 1;
  bool is_scaled = false, sums_columns = false, has_consumer = false;
  int threads = 1;
};

/// Moves the tile's pointers down by `rows` rows of C.
template <class T>
void move_down(GemmTile<T>& tile, std::int64_t rows) {
  tile.a += rows * tile.a_row;
  tile.c += rows * tile.c_row;
  tile.start += rows * tile.start_row;
  tile.row += rows;
}

/// Runs the tiles of all rows, from `tile` on down.
template <class T>
void run_rows(GemmTile<T>& tile, const RowSplit<T>& rows) {
  tile.blocks = rows.big_count;
  tile.a_block = rows.big * tile.a_row;
  rows.big_fn(tile);
  if (rows.small_count == 0) return;
  move_down(tile, rows.big_count * rows.big);
  tile.blocks = rows.small_count;
  tile.a_block -= tile.a_row;
  rows.small_fn(tile);
}

/// Moves the tile's pointers right by `columns` columns of C, but not `b`, which may be packed.
template <class T>
void move_right(GemmTile<T>& tile, std::int64_t columns, std::ptrdiff_t start_column) {
  tile.c += columns;
  tile.start += columns * start_column;
  tile.column += columns;
}

/// Sets the addends besides `start`.
template <class T>
void set_more(const GemmProblem<T>& gemm, const GemmOperands& operands, GemmExtras<T>& extras) {
  extras.more_count = gemm.more_count;
  for (int i = 0; i < gemm.more_count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    extras.more[i] = static_cast<const T*>(operands.more[at]);
    extras.more_row[i] = gemm.more[at] == GemmStart::kMatrix ? gemm.n : 0;
  }
}

/// Makes tiles prefetch C and the addends that are matrices other than C. `start` is at
/// C[0, 0].
template <class T>
void set_reads_next(const GemmProblem<T>& gemm, const T* c, const T* start,
                    std::ptrdiff_t start_row, GemmExtras<T>& extras) {
  extras.reads_next_row = gemm.n;
  extras.reads_next[0] = c;
  extras.reads_next_count = 1;
  const auto touch = [&](const T* matrix, std::ptrdiff_t row) {
    if (row != 0 && matrix != c) extras.reads_next[extras.reads_next_count++] = matrix;
  };
  touch(start, start_row);
  for (int i = 0; i < extras.more_count; ++i) touch(extras.more[i], extras.more_row[i]);
}

/// Writes op(B)[k0 : k0 + steps, j0 : j0 + columns] to `to` as [steps, to_step], padded with zero
/// columns.
template <class T>
void pack_b(const GemmProblem<T>& gemm, const T* b, std::int64_t k0, std::int64_t steps,
            std::int64_t j0, std::int64_t columns, T* to, std::ptrdiff_t to_step);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_PLAN_H_

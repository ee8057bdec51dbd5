#ifndef ONNXGRAD_DEVICE_CPU_GEMM_PLAN_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/cpu/even_split.h"
#include "device/cpu/gemm.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/scratch_layout.h"

// The plan of a GEMM, which prepare_gemm makes and the drivers in gemm.cpp and the
// kernels in gemm_fma.cpp and gemm_split.cpp read.

namespace onnxgrad::device {

struct SplitTarget;  // gemm_split.h

/// Steps of a block, at most: a B panel of 2 vectors of 256 bits is half of an L1 cache then.
inline constexpr std::int64_t kBlockSteps = 256;

/// Maximum of k with a consumer, whose blocks of C are completed one after the other.
inline constexpr std::int64_t kMaxConsumerSteps = 8192;

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

template <class T>
struct GemmPlan {
  const GemmTarget<T>* target = nullptr;
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  GemmStart start = GemmStart::kZero;
  std::array<GemmStart, kGemmMoreAddends> more = {};
  int more_count = 0;
  GemmFinish finish = GemmFinish::kStore;
  T alpha = 1;
  int threads = 1;

  // Fields of kTiles, whose tiles cover all of C: a tile without its pointers, and the stride of
  // `start` from column to column.
  GemmTile<T> tile = {};
  std::ptrdiff_t start_column = 0;
  bool pack_b = false;
  ColumnSplit columns = {};
  RowSplit<T> wide_rows = {}, narrow_rows = {};
  bool fetches = false;      ///< long sums prefetch C and A
  bool shares_rows = false;  ///< threads share the tiles of a B panel, not the B panels

  // Fields of large products: sizes of the blocks.
  std::int64_t block_m = 0, block_n = 0, block_k = 0;
  bool has_consumer = false;
  bool packs_a = false;      ///< packs A into A panels as high as a tile
  bool b_is_packed = false;  ///< all of B is packed, in the B panels of `columns`
  /// Types of A and B in memory if they are converted; `source_row`: row stride of A in elements.
  GemmSource a_source = {}, b_source = {};
  std::int64_t source_row = 0;
  bool is_scaled = false;
  bool sums_columns = false;
  const SplitTarget* split = nullptr;
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
void set_more(const GemmPlan<T>& plan, const GemmOperands& operands, GemmExtras<T>& extras) {
  extras.more_count = plan.more_count;
  for (int i = 0; i < plan.more_count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    extras.more[i] = static_cast<const T*>(operands.more[at]);
    extras.more_row[i] = plan.more[at] == GemmStart::kMatrix ? plan.n : 0;
  }
}

/// Makes tiles prefetch C and the addends that are matrices other than C. `start` is at
/// C[0, 0].
template <class T>
void set_reads_next(const GemmPlan<T>& plan, const T* c, const T* start, std::ptrdiff_t start_row,
                    GemmExtras<T>& extras) {
  extras.reads_next_row = plan.n;
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
void pack_b(const GemmPlan<T>& plan, const T* b, std::int64_t k0, std::int64_t steps,
            std::int64_t j0, std::int64_t columns, T* to, std::ptrdiff_t to_step);

/// Returns the order of elements in packed A panels.
inline GemmPackedA a_panel_of(bool transposed) {
  return transposed ? GemmPackedA::kStepAPanel : GemmPackedA::kRowAPanel;
}

/// Number of elements of a packed A panel of `height` rows.
inline std::int64_t a_panel_elements(bool transposed, std::int64_t height, std::int64_t steps) {
  return height * (transposed ? steps : round_up(steps, kGemmChunk));
}

/// Packs `a_panels` A panels of `height` rows each. `a_row`: row stride in memory in elements;
/// rows in memory are steps of k if `transposed`.
template <class T>
void pack_a_panels(const GemmTarget<T>& target, const T* a, std::ptrdiff_t a_row, bool transposed,
                   std::int64_t a_panels, std::int64_t height, std::int64_t steps, T* to) {
  (transposed ? target.pack_steps : target.pack_rows)(a, a_row, to, a_panels, height, steps);
}

/// Plans a split GEMM (gemm_split.h) of a plan whose `split` is set: all fields but the label.
PreparedGemm prepare_split_gemm(const GemmPlan<float>& gemm);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_PLAN_H_

#ifndef ONNXGRAD_DEVICE_CPU_GEMM_BLOCKED_RUN_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_BLOCKED_RUN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_blocked.h"
#include "device/cpu/gemm_column_sums.h"
#include "device/cpu/gemm_plan.h"

namespace onnxgrad::device {

/// One thread's chunk of a blocked GEMM: the loops over its blocks and over each block's B panels.
template <class T>
class BlockedGemm {
 public:
  /// Rows and columns of C that one thread computes.
  struct Part {
    std::int64_t row = 0, rows = 0, column = 0, columns = 0;
    std::int64_t b_panel = 0, b_panels = 0;  ///< instead of columns if B is packed
  };

  BlockedGemm(const GemmPlan<T>& plan, const GemmOperands& operands, std::byte* scratch);
  void run(const Part& part);

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);

  /// A block of C and the range of k from `k` on.
  struct Block {
    std::int64_t row = 0, rows = 0;
    std::int64_t k = 0;
    T* b = nullptr;        ///< packed B panels of these steps
    bool packs_b = false;  ///< the first block that reads them packs them
  };

  /// Tiles [at, at + count) of `all`: the same fraction of a matrix is prefetched with them.
  struct Progress {
    std::int64_t at = 0, count = 0, all = 0;
  };

  void run_packed(const Part& part);
  void run_steps(const Part& part, std::int64_t j);
  void run_whole_sums(const Part& part, std::int64_t j);
  void pack_block(std::int64_t k, std::int64_t j, T* to);
  void pack_b_panels(std::int64_t k, std::int64_t column, std::int64_t count, std::int64_t width,
                     T* to) const;
  void copy_b_panels(const T* from, T* to) const;
  void convert_b_panels(std::int64_t k, std::int64_t column, std::int64_t count, std::int64_t width,
                        T* to) const;
  void convert_a(std::int64_t row, std::int64_t rows, std::int64_t k);
  void pack_a(std::int64_t k, std::int64_t row, const RowSplit<T>& split);
  void run_block(const Block& block, std::int64_t column, const Block& next);
  void set_prefetch(const Block& next, std::int64_t column, const Progress& b_panels);
  void set_b_panel_prefetch(const Block& block, std::int64_t column, std::int64_t p,
                            const T* packed);
  bool has_a_panel_tiles() const;
  void set_height(GemmTile<T>& tile, std::int64_t height) const;
  void skip_tiles(GemmTile<T>& tile, std::int64_t blocks, std::int64_t height) const;
  void consume(GemmTile<T>& tile, const RowSplit<T>& split);
  void run_b_panel(GemmTile<T>& tile, const RowSplit<T>& rows);
  void set_addends(GemmTile<T>& tile, std::int64_t row, std::int64_t column);
  void set_end();

  std::int64_t columns_of(std::int64_t p) const { return split_.size(p) * plan_.target->lanes; }

  void begin_steps(std::int64_t k) {
    steps_ = steps_from(k);
    is_first_ = k == 0;
    is_last_ = k + steps_ == plan_.k;
  }

  std::int64_t steps_from(std::int64_t k) const { return std::min(plan_.block_k, plan_.k - k); }

  std::int64_t rows_from(const Part& part, std::int64_t row) const {
    return std::min(plan_.block_m, part.row + part.rows - row);
  }

  GemmTile<T> begin_tile() const {
    GemmTile<T> tile{.steps = steps_, .scale = scale_};
    tile.c_row = c_row_;
    // The first block of k adds `start`, the others add to C.
    tile.finish = is_last_ ? plan_.finish : GemmFinish::kAdd;
    if (!is_first_ && tile.finish == GemmFinish::kStore) tile.finish = GemmFinish::kAdd;
    return tile;
  }

  /// Elements of the unpacked A and B for a row or a column of C and step k.
  const T* a_at(std::int64_t row, std::int64_t k) const {
    const std::int64_t line = plan_.transpose_a ? k - a_begin_k_ : row - a_begin_row_;
    return a_ + line * a_line_ + (plan_.transpose_a ? row - a_begin_row_ : k - a_begin_k_);
  }
  const T* b_at(std::int64_t column, std::int64_t k) const {
    return plan_.transpose_b ? b_ + column * plan_.k + k : b_ + k * plan_.n + column;
  }

  void set_a_in_place(GemmTile<T>& tile, std::int64_t k, std::int64_t row) const {
    tile.a = a_at(row, k);
    tile.a_row = plan_.transpose_a ? 1 : a_line_;
    tile.a_step = plan_.transpose_a ? a_line_ : 1;
  }

  /// Splits rows of a packed A among tiles.
  RowSplit<T> a_panels(std::int64_t rows) const {
    const GemmTarget<T>& target = *plan_.target;
    const auto form = static_cast<int>(a_panel_of(plan_.transpose_a));
    if (split_.big == target.a_panel_vectors) {
      return split_rows(rows, target.a_panel[form], target.a_panel_rows);
    }
    return split_rows(rows, target.wide_a_panel[form], target.max_rows[split_.big - 1]);
  }

  std::int64_t a_panel_size(std::int64_t height) const {
    return a_panel_elements(plan_.transpose_a, height, steps_);
  }

  /// Steps from k on of the packed B panel of `width` columns that begins at `column`. They are
  /// read in order, which the hardware prefetcher foresees.
  const T* packed_steps(std::int64_t column, std::int64_t k, std::int64_t width) const {
    return b_ + column * plan_.k + k * width;
  }

  /// Cache lines of `count` elements of each of `rows` rows: one more per row if rows begin within
  /// a line.
  static GemmPrefetch<T> lines_of(const T* from, std::int64_t rows, std::ptrdiff_t row,
                                  std::int64_t count) {
    const bool are_whole = reinterpret_cast<std::uintptr_t>(from) % 64 == 0 && row % kLine == 0;
    return {from, rows, row, ceil_div(count, kLine) + (are_whole ? 0 : 1)};
  }

  /// The part for `now` of a matrix of `all` rows with `each` elements.
  static GemmPrefetch<T> share_of(const Progress& now, const T* from, std::int64_t all,
                                  std::ptrdiff_t row, std::int64_t each) {
    const std::int64_t first = all * now.at / now.all;
    const std::int64_t end = all * (now.at + now.count) / now.all;
    return lines_of(from + first * row, end - first, row, each);
  }

  /// The part for `now` of A's elements for `rows` rows of C from `row` on and `steps` steps from
  /// k.
  GemmPrefetch<T> chunk_of_a(const Progress& now, std::int64_t row, std::int64_t rows,
                             std::int64_t k, std::int64_t steps) const {
    const std::int64_t all = plan_.transpose_a ? steps : rows;
    const std::int64_t each = plan_.transpose_a ? rows : steps;
    if (!plan_.a_source) return share_of(now, a_at(row, k), all, a_line_, each);
    return chunk_of_source(now, plan_.a_source, operands_.a, source_of_a(row, k), all,
                           plan_.source_row, each);
  }

  /// Index of A's element in memory for a row of C and step k.
  std::int64_t source_of_a(std::int64_t row, std::int64_t k) const {
    return plan_.transpose_a ? k * plan_.source_row + row : row * plan_.source_row + k;
  }

  /// The part for `now` of B's elements for `columns` columns of C and `steps` steps from k.
  GemmPrefetch<T> chunk_of_b(const Progress& now, std::int64_t column, std::int64_t columns,
                             std::int64_t k, std::int64_t steps) const {
    const std::int64_t all = plan_.transpose_b ? columns : steps;
    const std::int64_t each = plan_.transpose_b ? steps : columns;
    const std::int64_t row = plan_.transpose_b ? plan_.k : plan_.n;
    if (!plan_.b_source) return share_of(now, b_at(column, k), all, row, each);
    return chunk_of_source(now, plan_.b_source, b_, source_of_b(column, k), all, row, each);
  }

  std::int64_t source_of_b(std::int64_t column, std::int64_t k) const {
    return plan_.transpose_b ? column * plan_.k + k : k * plan_.n + column;
  }

  /// The part for `now` of a matrix of another element type, counted in elements of T.
  static GemmPrefetch<T> chunk_of_source(const Progress& now, const GemmSource& source,
                                         const void* matrix, std::int64_t first, std::int64_t all,
                                         std::int64_t row, std::int64_t each) {
    constexpr std::int64_t kSize = sizeof(T);
    const auto* from = reinterpret_cast<const T*>(source.at(matrix, first));
    return share_of(now, from, all, row * source.size / kSize, ceil_div(each * source.size, kSize));
  }

  const GemmPlan<T>& plan_;
  // A from a_begin_row_ and a_begin_k_ on: all of it, or the converted block.
  const T* a_;
  std::ptrdiff_t a_line_;  // row stride in memory
  std::int64_t a_begin_row_ = 0, a_begin_k_ = 0;
  const T* b_;
  T* c_;  // C, or the block of it that the consumer gets
  T* consumed_ = nullptr;
  std::ptrdiff_t c_row_;
  const T* start_;
  T scale_;
  const GemmOperands& operands_;
  T* packed_b_;
  T* packed_a_;               // of a block
  bool a_is_packed_ = false;  // for the B panel that is computed
  T* converted_a_;
  T* lines_;  // rows of B while they are converted
  GemmExtras<T> extras_ = {};
  ColumnSplit split_ = {};
  ColumnSums<T> sums_;
  std::int64_t steps_ = 0;
  std::int64_t columns_ = 0;  // columns of the block
  bool is_first_ = false, is_last_ = false;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_BLOCKED_RUN_H_

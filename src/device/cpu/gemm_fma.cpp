#include "device/cpu/gemm_fma.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "device/cpu/gemm_driver.h"
#include "device/cpu/gemm_epilogue.h"
#include "device/cpu/scratch_layout.h"

// The GEMM kernel of vector multiply-adds. A B panel is as wide as a tile (gemm_tile.h) and is
// multiplied by all rows of a block, tile below tile; A is read in place, or in panels as high as a
// tile. While tiles run, they prefetch the rows of C and of its addends. Operands of another type
// (GemmSpec::a_source) are converted as they are packed. A consumer gets the results of a few tiles
// at a time from a buffer in the L1 cache.

namespace onnxgrad::device {
namespace {

// Steps of a block, at most: a B panel of 2 vectors of 256 bits is half of an L1 cache then.
constexpr std::int64_t kBlockSteps = 256;
constexpr std::int64_t kLoneBlockM = 192;  // rows of a block that is the only one
constexpr std::int64_t kBlockM = 64;       // rows of blocks that threads share
constexpr std::int64_t kBlockN = 512;
constexpr std::int64_t kBlockNOfAPanels = 1024;  // with a packed A, which more columns then use
// Columns of C per thread from which packing A panels pays, beside a B that was packed once.
constexpr std::int64_t kWideAPanelColumns = 384;
constexpr std::int64_t kConsumedBytes = 512;  // of C that the consumer gets per row
// Maximum bytes of a block of B with all k, as for a C with a consumer, unless that leaves fewer
// than kLeastBlockN columns.
constexpr std::int64_t kWholeBytes = std::int64_t{2} << 20;
constexpr std::int64_t kLeastBlockN = 128;

/// Number of elements of a packed A panel of `height` rows.
std::int64_t a_panel_elements(bool transposed, std::int64_t height, std::int64_t steps) {
  return height * (transposed ? steps : round_up(steps, kGemmChunk));
}

/// Sizes and scratch of a kernel.
template <class T>
struct FmaPlan : GemmProblem<T> {
  std::int64_t block_m = 0, block_n = 0, block_k = 0;
  bool packs_a = false;       ///< into A panels as high as a tile
  ColumnSplit packed_b = {};  ///< B panels if all of B was packed in advance
  bool b_is_packed() const { return packed_b.count() > 0; }
  int panel_vectors = 1;                            ///< of the widest B panel
  ScratchArray<T> lines = {};                       ///< rows of B while they are converted
  ScratchArray<T> consumed = {};                    ///< complete elements of a few tiles
  ScratchArray<T> c = {};                           ///< sums of the steps before the last ones
  ScratchArray<T> converted_a = {}, packed_a = {};  ///< in a packed block of A

  std::int64_t panel_columns() const {
    return static_cast<std::int64_t>(this->target->lanes) * panel_vectors;
  }
  /// Number of tiles, one below the other, that C's consumer gets at once.
  std::int64_t consumed_tiles() const {
    return kConsumedBytes / (panel_columns() * static_cast<std::int64_t>(sizeof(T)));
  }
  /// Row stride, in elements, of a converted block of A.
  std::int64_t converted_row() const {
    return round_up(this->transpose_a ? this->block_m : this->block_k, 64 / sizeof(T));
  }
};

/// Elements of A, in memory or in a converted block, from a row of C and a step of k on.
template <class T>
struct RowsOfA {
  const T* from = nullptr;
  std::ptrdiff_t line = 0;  ///< row stride in memory
};

template <class T>
class FmaKernel final : public GemmKernel {
 public:
  explicit FmaKernel(const FmaPlan<T>& plan) : plan_(plan) {}

  void pack_a(const GemmOperands& operands, const GemmRows& rows, std::byte* to,
              std::byte* scratch) const override;
  void pack_b(const GemmOperands& operands, const GemmColumns& columns, std::byte* to,
              std::byte* scratch) const override;
  void compute(const GemmOperands& operands, const GemmTask& task) const override;

 private:
  RowsOfA<T> rows_of_a(const GemmOperands& operands, const GemmRows& rows,
                       const std::byte* packed) const;
  RowSplit<T> a_panels(std::int64_t rows) const;
  void pack_panel(const GemmOperands& operands, std::int64_t column, std::int64_t count,
                  std::int64_t width, std::int64_t k, std::int64_t steps, T* to,
                  std::byte* scratch) const;

  FmaPlan<T> plan_;
};

// ---- packing ----

template <class T>
RowsOfA<T> FmaKernel<T>::rows_of_a(const GemmOperands& operands, const GemmRows& rows,
                                   const std::byte* packed) const {
  if (plan_.a_source) return {plan_.converted_a.in(packed), plan_.converted_row()};
  const std::int64_t line = plan_.a_line;
  const std::int64_t at = plan_.transpose_a ? rows.k * line + rows.row : rows.row * line + rows.k;
  return {static_cast<const T*>(operands.a) + at, line};
}

/// Splits rows of a packed A among tiles.
template <class T>
RowSplit<T> FmaKernel<T>::a_panels(std::int64_t rows) const {
  const GemmTarget<T>& target = *plan_.target;
  const auto form =
      static_cast<int>(plan_.transpose_a ? GemmPackedA::kStepAPanel : GemmPackedA::kRowAPanel);
  if (plan_.panel_vectors == target.a_panel_vectors) {
    return split_rows(rows, target.a_panel[form], target.a_panel_rows);
  }
  return split_rows(rows, target.wide_a_panel[form], target.max_rows[plan_.panel_vectors - 1]);
}

template <class T>
void FmaKernel<T>::pack_a(const GemmOperands& operands, const GemmRows& rows, std::byte* to,
                          std::byte* /*scratch*/) const {
  if constexpr (std::is_same_v<T, float>) {
    if (plan_.a_source) {
      const std::int64_t line = plan_.a_line;
      const std::int64_t first =
          plan_.transpose_a ? rows.k * line + rows.row : rows.row * line + rows.k;
      plan_.a_source.convert(plan_.converted_a.in(to), plan_.converted_row(),
                             plan_.a_source.at(operands.a, first), line,
                             plan_.transpose_a ? rows.steps : rows.rows,
                             plan_.transpose_a ? rows.rows : rows.steps);
    }
  }
  if (!plan_.packs_a) return;
  const RowsOfA<T> a = rows_of_a(operands, rows, to);
  const RowSplit<T> split = a_panels(rows.rows);
  const auto pack = [&](std::int64_t first, std::int64_t panels, std::int64_t height) {
    const T* from = a.from + first * (plan_.transpose_a ? 1 : a.line);
    T* panel = plan_.packed_a.in(to) + a_panel_elements(plan_.transpose_a, first, rows.steps);
    if (plan_.transpose_a) {
      plan_.target->pack_steps(from, a.line, panel, panels, height, rows.steps);
    } else {
      plan_.target->pack_rows(from, a.line, panel, panels, height, rows.steps);
    }
  };
  pack(0, split.big_count, split.big);
  if (split.small_count > 0) pack(split.big_count * split.big, split.small_count, split.big - 1);
}

template <class T>
void FmaKernel<T>::pack_b(const GemmOperands& operands, const GemmColumns& columns, std::byte* to,
                          std::byte* scratch) const {
  T* const panels = reinterpret_cast<T*>(to);
  for (std::int64_t p = columns.first; p < columns.last; ++p) {
    const GemmPanels::Panel panel = columns.panels->panel(p, plan_.target->lanes);
    pack_panel(operands, columns.panels->column + panel.offset, panel.count, panel.width, columns.k,
               columns.steps, panels + panel.offset * columns.steps, scratch);
  }
}

/// Packs `count` columns of B as a panel of `width` columns, converted.
template <class T>
void FmaKernel<T>::pack_panel(const GemmOperands& operands, std::int64_t column, std::int64_t count,
                              std::int64_t width, std::int64_t k, std::int64_t steps, T* to,
                              std::byte* scratch) const {
  if constexpr (std::is_same_v<T, float>) {
    if (const GemmSource& source = plan_.b_source; source) {
      if (plan_.transpose_b) {
        transpose_source(source, {operands.b, column * plan_.k + k, plan_.k, count, steps}, width,
                         *plan_.target, to, width, plan_.lines.in(scratch));
      } else {
        source.block(to, width, {operands.b, k * plan_.n + column, plan_.n, steps, count});
      }
      return;
    }
  }
  device::pack_b(plan_, static_cast<const T*>(operands.b), k, steps, column, count, to, width);
}

// ---- products ----

/// Multiplication of one block.
template <class T>
class FmaBlock {
 public:
  FmaBlock(const FmaPlan<T>& plan, const GemmOperands& operands, const GemmTask& task,
           const RowsOfA<T>& a, const RowSplit<T>& a_panels)
      : plan_(plan), operands_(operands), task_(task), a_(a), a_panels_(a_panels) {}

  /// Prefetches a part of what run_panel() reads of A for the next block, with panels
  /// [at, at + 1) of `all`: columns of a transposed A are pages apart.
  void set_next_a(std::int64_t at, std::int64_t all) {
    next_a_ = {};
    if (!plan_.transpose_a || plan_.a_source) return;
    GemmRows next = task_.rows;
    if (plan_.has_consumer && !task_.is_last) {
      next.k += next.steps;
    } else {
      if (plan_.has_consumer) next.k = 0;
      next.row += next.rows;
    }
    next.steps = std::min(plan_.block_k, plan_.k - next.k);
    next.rows = std::min(next.rows, plan_.m - next.row);
    if (next.rows <= 0) return;
    constexpr std::int64_t kLine = 64 / sizeof(T);
    const std::int64_t first = next.steps * at / all;
    const T* const a = static_cast<const T*>(operands_.a);
    next_a_ = {.from = a + (next.k + first) * plan_.a_line + next.row,
               .rows = next.steps * (at + 1) / all - first,
               .row = plan_.a_line,
               .lines = ceil_div(next.rows, kLine) + 1};
  }

  /// Multiplies B panel `b` of `panel` columns, of `vectors` vectors.
  void run_panel(const GemmPanels::Panel& panel, int vectors, const T* b) {
    const GemmRows& rows = task_.rows;
    GemmTile<T> tile{.steps = rows.steps, .scale = plan_.alpha * static_cast<T>(operands_.factor)};
    // The first block of k adds `start`, the others add to C.
    tile.finish = task_.is_last ? plan_.finish : GemmFinish::kAdd;
    if (!task_.is_first && tile.finish == GemmFinish::kStore) tile.finish = GemmFinish::kAdd;
    reads_a_panels_ = plan_.packs_a && vectors == plan_.panel_vectors;
    if (reads_a_panels_) {
      tile.a = plan_.packed_a.in(task_.a);
      tile.a_row = 1;
    } else {
      tile.a = a_.from;
      tile.a_row = plan_.transpose_a ? 1 : a_.line;
      tile.a_step = plan_.transpose_a ? a_.line : 1;
    }
    tile.b = b;
    tile.b_step = panel.width;
    const std::int64_t lanes = plan_.target->lanes;
    tile.tail = panel.count - (vectors - 1) * lanes;
    set_addends(tile, panel);
    const RowSplit<T> split =
        reads_a_panels_ ? a_panels_ : split_rows(rows.rows, *plan_.target, vectors);
    if (plan_.has_consumer && task_.is_last) {
      consume(tile, split, panel.count);
    } else {
      run_tiles(tile, split);
    }
  }

 private:
  /// Sets C, `start`, the other addends and the prefetches of the panel's first tile.
  void set_addends(GemmTile<T>& tile, const GemmPanels::Panel& panel) {
    alignas(64) static constexpr T kZeros[64] = {};
    const std::int64_t row = task_.rows.row;
    const std::int64_t column = task_.columns.panels->column + panel.offset;
    T* const c = static_cast<T*>(operands_.c);
    const T* const start = static_cast<const T*>(operands_.start);
    if (plan_.has_consumer) {
      tile.c = plan_.c.in(task_.scratch) + panel.offset;
      tile.c_row = plan_.block_n;
    } else {
      tile.c = c + row * plan_.n + column;
      tile.c_row = plan_.n;
    }
    tile.start = kZeros;
    if (!task_.is_first) {
      tile.start = tile.c;
      tile.start_row = tile.c_row;
    } else if (plan_.start == GemmStart::kRow) {
      tile.start = start + column;
    } else if (plan_.start == GemmStart::kMatrix) {
      tile.start = start + row * plan_.n + column;
      tile.start_row = plan_.n;
    }
    tile.extras = &extras_;
    tile.row = row;
    tile.column = column;
    extras_ = {};
    if (task_.is_first) set_more(plan_, operands_, extras_);  // before C, which one may be
    if (!plan_.has_consumer) {
      set_reads_next(plan_, c, task_.is_first ? start : c, tile.start_row, extras_);
      return set_scales();
    }
    if (!task_.is_last) {
      extras_.reads_next_row = tile.c_row;
      extras_.reads_next[0] = tile.c - row * tile.c_row - column;
      extras_.reads_next_count = task_.is_first ? 0 : 1;
      return;
    }
    extras_.reads_next_row = plan_.n;
    if (operands_.reads_next_size > 0) extras_.reads_next_size = operands_.reads_next_size;
    for (const void* matrix : operands_.reads_next) {
      if (matrix != nullptr) extras_.reads_next[extras_.reads_next_count++] = matrix;
    }
  }

  /// Sets the scales of complete elements of C.
  void set_scales() {
    if (!task_.is_last || !plan_.is_scaled) return;
    extras_.scales = static_cast<const T*>(operands_.scales);
    extras_.scales_row = plan_.n;
    extras_.reads_next[extras_.reads_next_count++] = extras_.scales;
  }

  /// Sets the distance in A between tiles of `height` rows, one below the other.
  void set_height(GemmTile<T>& tile, std::int64_t height) const {
    tile.a_block = reads_a_panels_ ? a_panel_elements(plan_.transpose_a, height, task_.rows.steps)
                                   : height * tile.a_row;
  }

  /// Moves `tile` down by `blocks` tiles of `height` rows.
  static void skip_tiles(GemmTile<T>& tile, std::int64_t blocks, std::int64_t height) {
    const T* a = tile.a + blocks * tile.a_block;
    move_down(tile, blocks * height);
    tile.a = a;
  }

  void run_tiles(GemmTile<T>& tile, const RowSplit<T>& rows) {
    extras_.prefetch = next_a_;
    tile.blocks = rows.big_count;
    set_height(tile, rows.big);
    rows.big_fn(tile);
    if (rows.small_count == 0) return;
    skip_tiles(tile, rows.big_count, rows.big);
    extras_.prefetch = {};
    tile.blocks = rows.small_count;
    set_height(tile, rows.big - 1);
    rows.small_fn(tile);
  }

  /// Runs a few tiles at a time and passes them to the consumer; while tiles run, the rows that it
  /// reads next are prefetched into the L1 cache.
  void consume(GemmTile<T>& tile, const RowSplit<T>& split, std::int64_t columns) {
    const std::int64_t together = plan_.consumed_tiles();
    const std::int64_t tiles = split.count();
    std::int64_t done = 0;
    const auto prefetch_for = [&](std::int64_t blocks) {
      const std::int64_t first = next_a_.rows * done / tiles;
      done += blocks;
      extras_.prefetch = {.from = next_a_.from + first * next_a_.row,
                          .rows = next_a_.rows * done / tiles - first,
                          .row = next_a_.row,
                          .lines = next_a_.lines};
    };
    T* const buffer = plan_.consumed.in(task_.scratch);
    tile.c_row = tile.b_step;
    const auto run_part = [&](GemmTileFn<T> fn, std::int64_t blocks, std::int64_t height) {
      set_height(tile, height);
      for (std::int64_t i = 0; i < blocks; i += together) {
        tile.blocks = std::min(together, blocks - i);
        tile.c = buffer;
        prefetch_for(tile.blocks);
        fn(tile);
        operands_.finished(operands_.context, {.c = buffer,
                                               .c_row = tile.c_row,
                                               .row = tile.row,
                                               .rows = tile.blocks * height,
                                               .column = tile.column,
                                               .columns = columns});
        skip_tiles(tile, tile.blocks, height);
      }
    };
    run_part(split.big_fn, split.big_count, split.big);
    if (split.small_count > 0) run_part(split.small_fn, split.small_count, split.big - 1);
  }

  const FmaPlan<T>& plan_;
  const GemmOperands& operands_;
  const GemmTask& task_;
  RowsOfA<T> a_;
  RowSplit<T> a_panels_;
  bool reads_a_panels_ = false;
  GemmPrefetch<T> next_a_ = {};
  GemmExtras<T> extras_ = {};
};

template <class T>
void FmaKernel<T>::compute(const GemmOperands& operands, const GemmTask& task) const {
  const GemmPanels& panels = *task.columns.panels;
  const GemmRows& rows = task.rows;
  const std::int64_t lanes = plan_.target->lanes;
  FmaBlock<T> block(plan_, operands, task, rows_of_a(operands, rows, task.a),
                    plan_.packs_a ? a_panels(rows.rows) : RowSplit<T>{});
  for (std::int64_t p = task.columns.first; p < task.columns.last; ++p) {
    const GemmPanels::Panel panel = panels.panel(p, lanes);
    const std::int64_t column = panels.column + panel.offset;
    const T* b = nullptr;
    if (plan_.b_is_packed()) {
      b = static_cast<const T*>(operands.b) + column * plan_.k + rows.k * panel.width;
    } else {
      b = reinterpret_cast<const T*>(task.b) + panel.offset * rows.steps;
    }
    block.set_next_a(p - task.columns.first, task.columns.last - task.columns.first);
    block.run_panel(panel, static_cast<int>(panels.split.size(p)), b);
    sum_columns(*plan_.target, task,
                static_cast<const T*>(operands.c) + rows.row * plan_.n + column, plan_.n, 0,
                rows.rows, column, panel.count);
  }
}

// ---- plans ----

/// Steps of equal blocks of k, rather than a small last one.
std::int64_t equal_steps(std::int64_t k) {
  return ceil_div(k, std::max<std::int64_t>(ceil_div(k, kBlockSteps), 1));
}

/// Rows of a block: all of them if they are few.
std::int64_t rows_of_block(std::int64_t m) { return m <= kLoneBlockM ? m : kBlockM; }

template <class T>
PreparedGemm drive(FmaPlan<T>& plan) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t lanes = plan.target->lanes;
  ScratchLayout own, a;
  if (plan.a_source) {
    plan.converted_a =
        a.reserve<T>(plan.converted_row() * (plan.transpose_a ? plan.block_k : plan.block_m));
  }
  if (plan.packs_a) {
    plan.packed_a = a.reserve<T>(
        round_up(a_panel_elements(plan.transpose_a, plan.block_m, plan.block_k), lanes));
  }
  if (plan.b_source && plan.transpose_b) plan.lines = own.reserve<T>(kSourceLines * kSourceSteps);
  if (plan.has_consumer) {
    plan.consumed = own.reserve<T>(plan.consumed_tiles() * kGemmMaxRows * plan.panel_columns());
    plan.c = own.reserve<T>(plan.block_k < plan.k ? plan.block_m * plan.block_n : 0);
  }
  GemmBlocking blocking{.m = plan.block_m, .n = plan.block_n, .k = plan.block_k};
  blocking.row_unit = kBlockM;
  blocking.unit = lanes;
  blocking.panel_units = plan.panel_vectors;
  if (plan.b_is_packed()) blocking.packed_b = plan.packed_b;
  blocking.a_bytes = a.size_bytes();
  blocking.b_unit_bytes = plan.b_is_packed() ? 0 : lanes * plan.block_k * kSize;
  blocking.sum_bytes = plan.sums_columns ? kSize : 0;
  blocking.scratch_bytes = own.size_bytes();
  blocking.has_consumer = plan.has_consumer;
  return drive_gemm(plan.m, plan.n, plan.k, plan.threads, blocking,
                    std::make_unique<FmaKernel<T>>(plan));
}

}  // namespace

template <class T>
PreparedGemm prepare_fma_gemm(const GemmProblem<T>& gemm, bool packs_a) {
  FmaPlan<T> plan{gemm};
  const GemmTarget<T>& target = *plan.target;
  plan.packs_a = packs_a;
  plan.panel_vectors = packs_a ? target.a_panel_vectors : target.max_vectors;
  plan.block_k = equal_steps(plan.k);
  plan.block_m = rows_of_block(plan.m);
  std::int64_t most = packs_a ? kBlockNOfAPanels : kBlockN;
  if (plan.has_consumer) {
    const std::int64_t fitting = kWholeBytes / (plan.k * static_cast<std::int64_t>(sizeof(T)));
    most = std::clamp(fitting, kLeastBlockN, most);
  }
  plan.block_n = round_up(ceil_div(plan.n, ceil_div(plan.n, most)), target.lanes);
  return drive(plan);
}

template <class T>
PreparedGemm prepare_packed_fma_gemm(const GemmProblem<T>& gemm, GemmChoice choice) {
  FmaPlan<T> plan{gemm};
  const GemmTarget<T>& target = *plan.target;
  plan.packed_b = split_columns(plan.n, target);
  plan.panel_vectors = static_cast<int>(plan.packed_b.big);
  const bool is_wide = target.a_panel_vectors < target.max_vectors;
  plan.packs_a =
      choice == GemmChoice::kBlockedPackedA &&
      (!is_wide || plan.n >= kWideAPanelColumns * plan.threads) &&
      (plan.panel_vectors == target.a_panel_vectors || plan.panel_vectors == target.max_vectors);
  plan.block_k = choice == GemmChoice::kTiles ? plan.k : equal_steps(plan.k);
  plan.block_m = rows_of_block(plan.m);
  plan.block_n = plan.packs_a ? kBlockNOfAPanels : kBlockN;
  return drive(plan);
}

template PreparedGemm prepare_fma_gemm(const GemmProblem<float>&, bool);
template PreparedGemm prepare_fma_gemm(const GemmProblem<double>&, bool);
template PreparedGemm prepare_packed_fma_gemm(const GemmProblem<float>&, GemmChoice);
template PreparedGemm prepare_packed_fma_gemm(const GemmProblem<double>&, GemmChoice);

}  // namespace onnxgrad::device

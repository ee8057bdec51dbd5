#include "device/cpu/gemm_blocked.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "device/cpu/gemm_blocked_run.h"
#include "device/cpu/threads.h"

// GEMM whose operands do not fit into the L1 cache. Loops, outermost first: blocks of
// columns (block_n) and of k (block_k), whose part of B is packed into B panels as wide as a tile;
// blocks of rows (block_m); B panels; tiles. So a B panel stays in the L2 cache while the rows
// of A's block are traversed, and A's block, which is read in place or packed into A panels as high
// as a tile, for all B panels. While a block is computed, tiles prefetch
// the operands of the next one (GemmExtras::prefetch). With a packed A, each B panel is packed
// when its first tiles need it; if there is only one block of rows and a B panel is small, always
// at the same address, and all of its tiles find it in the L1 cache. If C has a consumer
// (GemmOperands::finished), B stays packed for all k and the loop over k is inside that over
// rows: a block of C is complete before the next one begins. Its last steps go to a buffer of a few
// tiles, which the consumer finds in the L1 cache; with one block of k, C needs no block in memory.
// Operands of another type (GemmSpec::a_source) are converted: a block of A before its B panels,
// which find it in place, B as it is packed.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kPrefetchDistance = 16;  // rows: enough time for one to come from memory
constexpr std::int64_t kFetchingRows = 64;  // rows that use a B panel while the next is prefetched

}  // namespace

template <class T>
BlockedGemm<T>::BlockedGemm(const GemmPlan<T>& plan, const GemmOperands& operands,
                            std::byte* scratch)
    : plan_(plan),
      a_(static_cast<const T*>(operands.a)),
      a_line_(plan.transpose_a ? plan.m : plan.k),
      b_(static_cast<const T*>(operands.b)),
      c_(static_cast<T*>(operands.c)),
      c_row_(plan.n),
      start_(static_cast<const T*>(operands.start)),
      scale_(plan.alpha * static_cast<T>(operands.factor)),
      operands_(operands),
      packed_b_(plan.blocked.packed_b.in(scratch)),
      packed_a_(plan.blocked.packed_a.in(scratch)),
      converted_a_(plan.blocked.converted_a.in(scratch)),
      lines_(plan.blocked.lines.in(scratch)) {
  if (plan.a_source) {
    a_ = converted_a_;
    a_line_ = converted_row(plan);
  }
  if (plan.sums_columns) sums_ = ColumnSums<T>(plan, scratch);
  if (!plan.has_consumer) return;
  consumed_ = plan.blocked.consumed.in(scratch);
  c_ = plan.blocked.c.in(scratch);
  c_row_ = plan.block_n;
}

template <class T>
void BlockedGemm<T>::run(const Part& part) {
  if (plan_.b_is_packed) return run_packed(part);
  if (plan_.sums_columns) sums_.begin(part.column, part.columns);
  for (std::int64_t j = part.column; j < part.column + part.columns; j += plan_.block_n) {
    columns_ = std::min(plan_.block_n, part.column + part.columns - j);
    split_ = split_columns(columns_, plan_.target->lanes, b_panel_vectors(plan_));
    if (plan_.has_consumer) {
      run_whole_sums(part, j);
    } else {
      run_steps(part, j);
    }
  }
}

/// Computes a part with a B that was packed in advance, in blocks of whole B panels.
template <class T>
void BlockedGemm<T>::run_packed(const Part& part) {
  const ColumnSplit& all = plan_.columns;
  const std::int64_t wide = all.big * plan_.target->lanes;
  const std::int64_t most = std::max<std::int64_t>(most_columns(plan_) / wide, 1);
  const std::int64_t last = all.count();
  for (std::int64_t p = part.b_panel; p < part.b_panel + part.b_panels; p += most) {
    const std::int64_t b_panels = std::min(most, part.b_panel + part.b_panels - p);
    split_ = all;
    split_.big_count = std::clamp<std::int64_t>(all.big_count - p, 0, b_panels);
    split_.small_count = b_panels - split_.big_count;
    if (p + b_panels < last) split_.tail = plan_.target->lanes;
    run_steps(part, all.first(p) * plan_.target->lanes);
  }
}

/// Computes columns [j, j + columns_) of C: all rows for a block of k, then for the next one.
template <class T>
void BlockedGemm<T>::run_steps(const Part& part, std::int64_t j) {
  const std::int64_t end = part.row + part.rows;
  for (std::int64_t k = 0; k < plan_.k; k += plan_.block_k) {
    begin_steps(k);
    pack_block(k, j, packed_b_);
    for (std::int64_t i = part.row; i < end; i += plan_.block_m) {
      const std::int64_t below = i + plan_.block_m;
      const Block next = below < end ? Block{below, rows_from(part, below), k, packed_b_, false}
                                     : Block{part.row, rows_from(part, part.row), k + plan_.block_k,
                                             packed_b_, true};
      run_block({i, rows_from(part, i), k, packed_b_, i == part.row}, j, next);
      if (is_last_ && plan_.sums_columns) sums_.end_block(j, columns_);
    }
  }
}

/// Computes a block of columns, block of rows by block of rows, each with all steps of k. The first
/// block of rows packs B.
template <class T>
void BlockedGemm<T>::run_whole_sums(const Part& part, std::int64_t j) {
  const std::int64_t padded = round_up(columns_, plan_.target->lanes);
  const auto packed = [&](std::int64_t k) {
    return plan_.packs_in_turn ? packed_b_ : packed_b_ + k * padded;
  };
  for (std::int64_t i = part.row; i < part.row + part.rows; i += plan_.block_m) {
    const bool is_top = i == part.row;
    const std::int64_t rows = rows_from(part, i);
    for (std::int64_t k = 0; k < plan_.k; k += plan_.block_k) {
      begin_steps(k);
      if (is_top) pack_block(k, j, packed(k));
      const std::int64_t below = i + plan_.block_m;
      Block next{.k = plan_.k};
      if (!is_last_) {
        next = {i, rows, k + steps_, packed(k + steps_), is_top};
      } else if (below < part.row + part.rows) {
        next = {below, rows_from(part, below), 0, packed(0), false};
      }
      run_block({i, rows, k, packed(k), is_top}, j, next);
    }
  }
}

/// Packs all B panels of a block, unless they are packed one by one.
template <class T>
void BlockedGemm<T>::pack_block(std::int64_t k, std::int64_t j, T* to) {
  if (plan_.b_is_packed || plan_.packs_in_turn || plan_.packs_a) return;
  if (!plan_.transpose_b && !plan_.b_source && !has_small_b_panels(plan_)) {
    return copy_b_panels(b_at(j, k), to);
  }
  for (std::int64_t at = 0, p = 0; at < columns_; ++p) {
    const std::int64_t width = columns_of(p);
    pack_b_panels(k, j + at, std::min(width, columns_ - at), width, to);
    to += width * steps_;
    at += width;
  }
}

/// Packs `count` columns of B from `column` on as B panels of `width` columns.
template <class T>
void BlockedGemm<T>::pack_b_panels(std::int64_t k, std::int64_t column, std::int64_t count,
                                   std::int64_t width, T* to) const {
  if (plan_.b_source) return convert_b_panels(k, column, count, width, to);
  for (std::int64_t i = 0; i < count; i += width) {
    pack_b(plan_, b_, k, steps_, column + i, std::min(width, count - i), to + i * steps_, width);
  }
}

/// Packs `count` columns of a B of another type as B panels, converted.
template <class T>
void BlockedGemm<T>::convert_b_panels(std::int64_t k, std::int64_t column, std::int64_t count,
                                      std::int64_t width, T* to) const {
  if constexpr (std::is_same_v<T, float>) {
    const GemmSource& source = plan_.b_source;
    for (std::int64_t i = 0; i < count; i += width) {
      const std::int64_t columns = std::min(width, count - i);
      const std::int64_t first = source_of_b(column + i, k);
      T* b_panel = to + i * steps_;
      if (plan_.transpose_b) {
        transpose_source(source, {b_, first, plan_.k, columns, steps_}, width, *plan_.target,
                         b_panel, width, lines_);
      } else {
        source.block(b_panel, width, {b_, first, plan_.n, steps_, columns});
      }
    }
  }
}

/// Converts a block of A, which tiles then read in place.
template <class T>
void BlockedGemm<T>::convert_a(std::int64_t row, std::int64_t rows, std::int64_t k) {
  if constexpr (std::is_same_v<T, float>) {
    const GemmSource& source = plan_.a_source;
    source.convert(converted_a_, a_line_, source.at(operands_.a, source_of_a(row, k)),
                   plan_.source_row, plan_.transpose_a ? steps_ : rows,
                   plan_.transpose_a ? rows : steps_);
    a_begin_row_ = row;
    a_begin_k_ = k;
  }
}

/// Packs B panels row by row, in the order of memory: a row of wide B panels is several cache
/// lines.
template <class T>
void BlockedGemm<T>::copy_b_panels(const T* from, T* to) const {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  const std::int64_t b_panels = split_.count();
  for (std::int64_t k = 0; k < steps_; ++k) {
    for (std::int64_t j = 0; j < columns_; j += kLine) {
      __builtin_prefetch(from + kPrefetchDistance * plan_.n + j);
    }
    T* row = to;
    std::int64_t at = 0;
    for (std::int64_t p = 0; p < b_panels; ++p) {
      const std::int64_t width = columns_of(p);
      const std::int64_t count = std::min(width, columns_ - at);
      T* place = row + k * width;
      std::memcpy(place, from + at, static_cast<std::size_t>(count) * sizeof(T));
      if (count < width) std::fill(place + count, place + width, T(0));
      row += width * steps_;
      at += width;
    }
    from += plan_.n;
  }
}

template <class T>
void BlockedGemm<T>::run_block(const Block& block, std::int64_t column, const Block& next) {
  const auto [row, rows, k, b, packs_b] = block;
  const std::int64_t first_column = column;
  const std::int64_t b_panels = split_.count();
  if (plan_.a_source) convert_a(row, rows, k);
  GemmTile<T> tile = begin_tile();
  const bool packs_a = plan_.packs_a && has_a_panel_tiles() && split_.big_count > 0;
  const RowSplit<T> packed = packs_a ? a_panels(rows) : RowSplit<T>{};
  if (packs_a) pack_a(k, row, packed);
  T* c = plan_.has_consumer ? c_ : c_ + row * plan_.n + column;
  for (std::int64_t p = 0; p < b_panels; ++p) {
    const std::int64_t width = columns_of(p);
    const std::int64_t vectors = split_.size(p);
    a_is_packed_ = packs_a && split_.is_big(p);
    if (a_is_packed_) {
      tile.a = packed_a_;
      tile.a_row = 1;
    } else {
      set_a_in_place(tile, k, row);
    }
    T* b_panel = plan_.packs_in_turn ? packed_b_ : b + (column - first_column) * steps_;
    if (plan_.packs_in_turn || (plan_.packs_a && packs_b && !plan_.b_is_packed)) {
      pack_b_panels(k, column, std::min(width, first_column + columns_ - column), width, b_panel);
    }
    tile.b = plan_.b_is_packed ? packed_steps(column, k, width) : b_panel;
    tile.b_step = width;
    tile.tail = p + 1 == b_panels ? split_.tail : plan_.target->lanes;
    tile.c = c;
    set_addends(tile, row, column);
    for (GemmPrefetch<T>& part : extras_.prefetch) part = {};
    if (next.k < plan_.k && !plan_.b_is_packed) {
      set_prefetch(next, first_column, {p, 1, b_panels});
    }
    if (p + 1 < b_panels) {
      set_b_panel_prefetch(block, column + width, p + 1, b_panel + width * steps_);
    }
    extras_.prefetch_rows = std::max(extras_.prefetch[0].rows, extras_.prefetch[1].rows);
    const RowSplit<T> split = a_is_packed_ ? packed : split_rows(rows, *plan_.target, vectors);
    if (plan_.has_consumer && is_last_) {
      consume(tile, split);
    } else {
      run_b_panel(tile, split);
    }
    column += width;
    c += width;
  }
}

/// Sets the prefetches of the operands of the next block, spread over the B panels of this one.
template <class T>
void BlockedGemm<T>::set_prefetch(const Block& next, std::int64_t column,
                                  const Progress& b_panels) {
  const std::int64_t steps = steps_from(next.k);
  if (plan_.packs_a || plan_.transpose_a || plan_.a_source) {
    extras_.prefetch[0] = chunk_of_a(b_panels, next.row, next.rows, next.k, steps);
  }
  if (next.packs_b && !plan_.transpose_b && !plan_.packs_in_turn) {
    extras_.prefetch[1] = chunk_of_b(b_panels, column, columns_, next.k, steps);
  }
}

/// Sets the prefetch of B panel `p`, at `column`, which the rows of `block` use next, where B
/// exceeds the L2 cache (packed panel by panel, packed in advance, or with all steps of k for a
/// consumer): else the prefetch costs more than it brings. `packed`: the B panel's address in a
/// packed block.
template <class T>
void BlockedGemm<T>::set_b_panel_prefetch(const Block& block, std::int64_t column, std::int64_t p,
                                          const T* packed) {
  const std::int64_t width = columns_of(p);
  if (plan_.packs_in_turn) {
    const std::int64_t count = std::min(width, plan_.n - column);
    extras_.prefetch[1] = chunk_of_b({0, 1, 1}, column, count, block.k, steps_);
    return;
  }
  if (!plan_.packs_a || block.rows < kFetchingRows) return;
  if (plan_.b_is_packed) {
    extras_.prefetch[1] = lines_of(packed_steps(column, block.k, width), steps_, width, width);
  } else if (plan_.has_consumer && !block.packs_b && extras_.prefetch[1].rows == 0) {
    extras_.prefetch[1] = lines_of(packed, steps_, width, width);
  }
}

/// Whether tiles of the wide B panels read A panels: the columns of a small block are one vector.
template <class T>
bool BlockedGemm<T>::has_a_panel_tiles() const {
  const GemmTarget<T>& target = *plan_.target;
  return split_.big == target.a_panel_vectors || split_.big == target.max_vectors;
}

/// Sets the distance in A between tiles of `height` rows, one below the other.
template <class T>
void BlockedGemm<T>::set_height(GemmTile<T>& tile, std::int64_t height) const {
  tile.a_block = a_is_packed_ ? a_panel_size(height) : height * tile.a_row;
}

/// Moves `tile` down by `blocks` tiles of `height` rows.
template <class T>
void BlockedGemm<T>::skip_tiles(GemmTile<T>& tile, std::int64_t blocks, std::int64_t height) const {
  const T* a = tile.a + blocks * tile.a_block;
  move_down(tile, blocks * height);
  tile.a = a;
}

template <class T>
void BlockedGemm<T>::pack_a(std::int64_t k, std::int64_t row, const RowSplit<T>& split) {
  const auto pack = [&](std::int64_t first, std::int64_t a_panels, std::int64_t height) {
    pack_a_panels(*plan_.target, a_at(row + first, k), a_line_, plan_.transpose_a, a_panels, height,
                  steps_, packed_a_ + a_panel_size(first));
  };
  pack(0, split.big_count, split.big);
  if (split.small_count > 0) pack(split.big_count * split.big, split.small_count, split.big - 1);
}

/// Sets `start`, the other addends and the prefetches of the tile of C at `tile.c`.
template <class T>
void BlockedGemm<T>::set_addends(GemmTile<T>& tile, std::int64_t row, std::int64_t column) {
  alignas(64) static constexpr T kZeros[64] = {};
  tile.start = kZeros;
  tile.start_row = 0;
  if (!is_first_) {
    tile.start = tile.c;
    tile.start_row = c_row_;
  } else if (plan_.start == GemmStart::kRow) {
    tile.start = start_ + column;
  } else if (plan_.start == GemmStart::kMatrix) {
    tile.start = start_ + row * plan_.n + column;
    tile.start_row = plan_.n;
  }
  tile.extras = &extras_;
  tile.row = row;
  tile.column = column;
  extras_.more_count = 0;
  if (is_first_) set_more(plan_, operands_, extras_);  // before anything is written: one may be C
  if (!plan_.has_consumer) {
    set_reads_next(plan_, c_, is_first_ ? start_ : c_, tile.start_row, extras_);
    return set_end();
  }
  if (!is_last_) {
    extras_.reads_next_row = c_row_;
    extras_.reads_next_size = sizeof(T);
    extras_.reads_next[0] = tile.c - row * c_row_ - column;
    extras_.reads_next_count = is_first_ ? 0 : 1;
    return;
  }
  extras_.reads_next_row = plan_.n;
  if (operands_.reads_next_size > 0) extras_.reads_next_size = operands_.reads_next_size;
  extras_.reads_next_count = 0;
  for (const void* matrix : operands_.reads_next) {
    if (matrix != nullptr) extras_.reads_next[extras_.reads_next_count++] = matrix;
  }
}

/// Sets the epilogue for complete elements of C: scales and column sums.
template <class T>
void BlockedGemm<T>::set_end() {
  extras_.scales = nullptr;
  extras_.column_sums = nullptr;
  if (!is_last_) return;
  extras_.column_sums = sums_.of_block();
  if (!plan_.is_scaled) return;
  extras_.scales = static_cast<const T*>(operands_.scales);
  extras_.scales_row = plan_.n;
  extras_.reads_next[extras_.reads_next_count++] = extras_.scales;
}

/// Runs a few tiles at a time and passes them to the consumer; while tiles run, the rows that
/// it reads next are prefetched into the L1 cache.
template <class T>
void BlockedGemm<T>::consume(GemmTile<T>& tile, const RowSplit<T>& split) {
  const std::int64_t together = consumed_tiles(plan_);
  const std::int64_t columns = tile.b_step - plan_.target->lanes + tile.tail;
  const GemmExtras<T> whole = extras_;
  const std::int64_t tiles = split.count();
  std::int64_t done = 0;
  const auto fetch_chunk = [&](std::int64_t blocks) {
    const std::int64_t first = whole.prefetch_rows * done / tiles;
    done += blocks;
    extras_.prefetch_rows = whole.prefetch_rows * done / tiles - first;
    for (std::size_t part = 0; part < std::size(extras_.prefetch); ++part) {
      extras_.prefetch[part].from = whole.prefetch[part].from + first * whole.prefetch[part].row;
      extras_.prefetch[part].rows =
          std::min(whole.prefetch[part].rows - first, extras_.prefetch_rows);
    }
  };
  tile.c_row = tile.b_step;
  const auto run_part = [&](GemmTileFn<T> fn, std::int64_t blocks, std::int64_t height) {
    set_height(tile, height);
    for (std::int64_t i = 0; i < blocks; i += together) {
      tile.blocks = std::min(together, blocks - i);
      tile.c = consumed_;
      fetch_chunk(tile.blocks);
      fn(tile);
      operands_.finished(operands_.context, {.c = consumed_,
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

template <class T>
void BlockedGemm<T>::run_b_panel(GemmTile<T>& tile, const RowSplit<T>& rows) {
  tile.blocks = rows.big_count;
  set_height(tile, rows.big);
  rows.big_fn(tile);
  if (rows.small_count == 0) return;
  skip_tiles(tile, rows.big_count, rows.big);
  extras_.prefetch_rows = 0;
  tile.blocks = rows.small_count;
  set_height(tile, rows.big - 1);
  rows.small_fn(tile);
}

template <class T>
void run_blocked(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  const std::int64_t b_panels = plan.columns.count();
  if (plan.threads == 1) {
    BlockedGemm<T>(plan, operands, operands.scratch).run({0, plan.m, 0, plan.n, 0, b_panels});
    if (plan.sums_columns) ColumnSums<T>::write(plan, operands, 0, 1, 0, plan.n);
    return;
  }
  on_threads(plan.threads, [&](const Chunk& chunk) {
    const std::int64_t unit = plan.split_m ? kGemmMaxRows : plan.target->lanes;
    const std::int64_t units = ceil_div(plan.split_m ? plan.m : plan.n, unit);
    const std::int64_t first = chunk.first(units) * unit;
    const std::int64_t last = chunk.last(units) * unit;
    typename BlockedGemm<T>::Part part{0, plan.m, 0, plan.n, 0, b_panels};
    if (plan.split_m) {
      part.row = first;
      part.rows = std::min(last, plan.m) - first;
    } else {
      part.column = first;
      part.columns = std::min(last, plan.n) - first;
      part.b_panel = chunk.first(b_panels);
      part.b_panels = chunk.last(b_panels) - part.b_panel;
    }
    BlockedGemm<T>(plan, operands, plan.thread_scratch.in(operands.scratch, chunk.index)).run(part);
    if (plan.sums_columns && !plan.split_m) {
      ColumnSums<T>::write(plan, operands, chunk.index, 1, part.column, part.column + part.columns);
    }
  });
  if (!plan.sums_columns || !plan.split_m) return;
  on_threads(plan.threads, [&](const Chunk& chunk) {
    ColumnSums<T>::write(plan, operands, 0, chunk.count, chunk.first(plan.n), chunk.last(plan.n));
  });
}

template class BlockedGemm<float>;
template class BlockedGemm<double>;
template void run_blocked<float>(const void* data, const GemmOperands& operands);
template void run_blocked<double>(const void* data, const GemmOperands& operands);

}  // namespace onnxgrad::device

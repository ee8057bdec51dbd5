#include "device/cpu/gemm_small.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "device/cpu/threads.h"

// GEMMs without blocks: tiles cover all of C, each with all of k.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kWidestBPanel = 64;  // columns of the widest tile of any instruction set
// Bytes of operands and result together from which long sums prefetch: an L1 cache.
constexpr std::int64_t kFetchedBytes = std::int64_t{32} << 10;
// Largest block of C, in bytes, that is still in the L2 cache when it is complete.
constexpr std::int64_t kCachedBlock = std::int64_t{256} << 10;

template <class T>
struct SmallPlan : GemmProblem<T> {
  GemmTile<T> tile = {};            ///< without its pointers
  std::ptrdiff_t start_column = 0;  ///< stride of `start` from column to column
  bool pack_b = false;
  ColumnSplit columns = {};
  RowSplit<T> wide_rows = {}, narrow_rows = {};  ///< of wide and narrow B panels
  bool fetches = false;                          ///< long sums prefetch C and A
  /// Chunks for threads: each has a part of the rows of tiles in a part of the B panels.
  std::int64_t row_parts = 1, panel_parts = 1;
};

/// Calls run(tile, rows) for B panels [first, last); `tile` is at C[0, 0].
template <class T, class F>
void visit_b_panels(const SmallPlan<T>& plan, GemmTile<T> top, std::int64_t first,
                    std::int64_t last, const F& run) {
  const ColumnSplit& columns = plan.columns;
  const std::int64_t lanes = plan.target->lanes;
  const std::int64_t count = columns.count();
  std::int64_t width = columns.first(first) * lanes;
  for (std::int64_t p = first; p < last; ++p) {
    top.b += width;
    move_right(top, width, plan.start_column);
    GemmTile<T> tile = top;
    tile.tail = p + 1 == count ? columns.tail : lanes;
    run(tile, columns.is_big(p) ? plan.wide_rows : plan.narrow_rows);
    width = columns.size(p) * lanes;
  }
}

/// Runs all B panels, with all rows in each.
template <class T>
inline void run_all_b_panels(const SmallPlan<T>& plan, GemmTile<T>& tile) {
  const std::int64_t count = plan.columns.count();
  if (count > 1) {
    return visit_b_panels(plan, tile, 0, count,
                          [](GemmTile<T>& top, const RowSplit<T>& rows) { run_rows(top, rows); });
  }
  tile.tail = plan.columns.tail;
  run_rows(tile, plan.wide_rows);
}

template <class T>
const T* zeros() {
  alignas(64) static constexpr T kZeros[kWidestBPanel] = {};
  return kZeros;
}

template <class T>
GemmTile<T> first_tile(const SmallPlan<T>& plan, const GemmOperands& operands) {
  GemmTile<T> tile = plan.tile;
  tile.a = static_cast<const T*>(operands.a);
  tile.b = static_cast<const T*>(operands.b);
  tile.c = static_cast<T*>(operands.c);
  tile.start = plan.start == GemmStart::kZero ? zeros<T>() : static_cast<const T*>(operands.start);
  tile.scale = plan.alpha * static_cast<T>(operands.factor);
  return tile;
}

/// Rows of C.
struct RowRange {
  std::int64_t first = 0, count = 0;
  bool operator==(const RowRange&) const = default;
};

template <class T>
RowRange rows_of(const RowSplit<T>& rows, const Chunk& chunk) {
  const std::int64_t first = rows.first(chunk.first(rows.count()));
  return {.first = first, .count = rows.first(chunk.last(rows.count())) - first};
}

/// Runs one thread's chunk of the tiles of run_rows().
template <class T>
void run_row_chunk(GemmTile<T>& tile, const RowSplit<T>& rows, const Chunk& chunk) {
  const std::int64_t count = rows.count();
  std::int64_t first = chunk.first(count);
  const std::int64_t last = chunk.last(count);
  move_down(tile, rows.first(first));
  if (first < rows.big_count) {
    tile.blocks = std::min(last, rows.big_count) - first;
    tile.a_block = rows.big * tile.a_row;
    if (tile.blocks > 0) rows.big_fn(tile);
    move_down(tile, tile.blocks * rows.big);
    first += tile.blocks;
  }
  if (first >= last) return;
  tile.blocks = last - first;
  tile.a_block = (rows.big - 1) * tile.a_row;
  rows.small_fn(tile);
}

/// Says that rows of tiles in the B panels [first, last) are complete: in all of these at once, if
/// they have the same rows.
template <class T>
void pass_on(const SmallPlan<T>& plan, const GemmOperands& operands, const Chunk& rows,
             std::int64_t first, std::int64_t last) {
  const std::int64_t lanes = plan.target->lanes;
  const auto pass = [&](const RowRange& range, std::int64_t begin, std::int64_t end) {
    const std::int64_t column = plan.columns.first(begin) * lanes;
    const std::int64_t columns = std::min(plan.columns.first(end) * lanes, plan.n) - column;
    if (columns <= 0) return;
    operands.finished(operands.context, {.c_row = plan.n,
                                         .row = range.first,
                                         .rows = range.count,
                                         .column = column,
                                         .columns = columns,
                                         .part = rows.index,
                                         .thread = rows.thread});
  };
  const RowRange wide = rows_of(plan.wide_rows, rows);
  const RowRange narrow = rows_of(plan.narrow_rows, rows);
  const std::int64_t middle = std::clamp(plan.columns.big_count, first, last);
  if (middle == last || wide == narrow) return pass(wide, first, last);
  pass(wide, first, middle);
  pass(narrow, middle, last);
}

template <class T>
void multiply_on_threads(const SmallPlan<T>& plan, const GemmOperands& operands,
                         GemmTile<T>& tile) {
  T* const packed = reinterpret_cast<T*>(operands.scratch);
  if (plan.pack_b) {
    parallel_blocks(plan.threads, plan.k, plan.target->lanes,
                    [&](std::int64_t first, std::int64_t last) {
                      pack_b(plan, tile.b, first, last - first, 0, plan.n,
                             packed + first * tile.b_step, tile.b_step);
                    });
    tile.b = packed;
  }
  const std::int64_t parts = plan.row_parts * plan.panel_parts;
  on_threads(plan.threads, parts, [&](const Chunk& chunk) {
    const Chunk rows{
        .index = chunk.index / plan.panel_parts, .count = plan.row_parts, .thread = chunk.thread};
    const Chunk panels{.index = chunk.index % plan.panel_parts, .count = plan.panel_parts};
    const std::int64_t count = plan.columns.count();
    const std::int64_t first = panels.first(count);
    const std::int64_t last = panels.last(count);
    visit_b_panels(plan, tile, first, last, [&](GemmTile<T>& top, const RowSplit<T>& all) {
      rows.count > 1 ? run_row_chunk(top, all, rows) : run_rows(top, all);
    });
    if (operands.finished != nullptr) pass_on(plan, operands, rows, first, last);
  });
}

template <class T>
inline void multiply(const SmallPlan<T>& plan, const GemmOperands& operands, GemmTile<T>& tile) {
  if (plan.threads > 1) return multiply_on_threads(plan, operands, tile);
  if (plan.pack_b) {
    T* const packed = reinterpret_cast<T*>(operands.scratch);
    pack_b(plan, tile.b, 0, plan.k, 0, plan.n, packed, tile.b_step);
    tile.b = packed;
  }
  run_all_b_panels(plan, tile);
}

/// Multiplies with addends besides `start`, or prefetches: apart, since small GEMMs need no extras.
template <class T>
void multiply_with_extras(const SmallPlan<T>& plan, const GemmOperands& operands,
                          GemmTile<T>& tile) {
  GemmExtras<T> extras;
  set_more(plan, operands, extras);
  if (plan.fetches) set_reads_next(plan, tile.c, tile.start, tile.start_row, extras);
  tile.extras = &extras;
  multiply(plan, operands, tile);
}

template <class T>
void run_tiles(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const SmallPlan<T>*>(data);
  GemmTile<T> tile = first_tile(plan, operands);
  if (plan.fetches || plan.more_count > 0) return multiply_with_extras(plan, operands, tile);
  multiply(plan, operands, tile);
}

/// Computes a C of one column, [m] = op(A) b, as one row of its transpose: A^T takes the role of B.
template <class T>
void run_column_of_transposed_a(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const SmallPlan<T>*>(data);
  GemmTile<T> tile = first_tile(plan, operands);
  std::swap(tile.a, tile.b);
  alignas(64) T filled[kWidestBPanel];
  if (plan.start == GemmStart::kRow) {
    std::fill(filled, filled + kWidestBPanel, *tile.start);
    tile.start = filled;
  }
  run_all_b_panels(plan, tile);
}

template <class T>
void run_column(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const SmallPlan<T>*>(data);
  GemmTile<T> tile = first_tile(plan, operands);
  run_rows(tile, plan.wide_rows);
}

/// Computes C = A B^T with dot products of rows.
template <class T>
void run_dots(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const SmallPlan<T>*>(data);
  const GemmTile<T> tile = first_tile(plan, operands);
  const T* b = tile.b;
  if (plan.pack_b) {  // B^T, [n, k]
    T* packed = reinterpret_cast<T*>(operands.scratch);
    plan.target->transpose(b, plan.n, packed, plan.k, plan.k, plan.n);
    b = packed;
  }
  const GemmDots<T> all{.a = tile.a,
                        .b = b,
                        .rows = plan.m,
                        .columns = plan.n,
                        .steps = plan.k,
                        .c = tile.c,
                        .start = tile.start,
                        .start_row = tile.start_row,
                        .start_column = plan.start_column,
                        .scale = tile.scale,
                        .finish = tile.finish};
  on_threads(plan.threads, [&](const Chunk& chunk) {
    GemmDots<T> dots = all;
    if (plan.m == 1) {
      const std::int64_t first = chunk.first(plan.n);
      dots.columns = chunk.last(plan.n) - first;
      dots.b += first * plan.k;
      dots.c += first;
      dots.start += first * dots.start_column;
    } else {
      const std::int64_t units = ceil_div(plan.m, kGemmMaxRows);
      const std::int64_t first = chunk.first(units) * kGemmMaxRows;
      dots.rows =
          std::max(std::min(chunk.last(units) * kGemmMaxRows, plan.m) - first, std::int64_t{0});
      dots.a += first * plan.k;
      dots.c += first * plan.n;
      dots.start += first * dots.start_row;
    }
    if (dots.rows > 0 && dots.columns > 0) plan.target->dots(dots);
    if (operands.finished == nullptr || dots.columns <= 0) return;
    const std::int64_t at = dots.c - all.c;
    operands.finished(operands.context, {.c_row = plan.n,
                                         .row = at / plan.n,
                                         .rows = dots.rows,
                                         .column = at % plan.n,
                                         .columns = dots.columns,
                                         .part = plan.m == 1 ? 0 : chunk.index,
                                         .thread = chunk.thread});
  });
}

/// Cuts C for threads, which read all of what they do not share: all of B if they share rows. That
/// should not be a large B, often a weight: the thread that updates it then takes lines away from
/// all others.
template <class T>
void plan_parts(SmallPlan<T>& plan) {
  constexpr double kEven = 1.15;  // largest ratio of the longest chunk to the average
  const std::int64_t threads = plan.threads;
  const std::int64_t tiles = plan.wide_rows.count();
  const std::int64_t panels = plan.columns.count();
  const bool shares_rows = tiles >= panels && (plan.n <= plan.m || panels % threads != 0);
  plan.row_parts = shares_rows ? threads : 1;
  plan.panel_parts = shares_rows ? 1 : threads;
  const std::int64_t longest = ceil_div(tiles, plan.row_parts) * ceil_div(panels, plan.panel_parts);
  if (static_cast<double>(longest * threads) <= kEven * static_cast<double>(tiles * panels)) return;
  plan.panel_parts = std::min(panels, kChunksPerThread * threads);
  plan.row_parts = std::min(tiles, ceil_div(kChunksPerThread * threads, plan.panel_parts));
}

/// Returns the parts in which threads complete C: rows, or blocks that stay in the cache.
template <class T>
opdef::BlockCut cut_of(const SmallPlan<T>& plan) {
  const bool has_all_columns = plan.panel_parts == 1;
  const bool is_even = plan.columns.small_count == 0 || plan.wide_rows.big == plan.narrow_rows.big;
  if (has_all_columns && is_even) return opdef::BlockCut::kRows;
  const std::int64_t elements =
      ceil_div(plan.m, plan.row_parts) * ceil_div(plan.n, plan.panel_parts);
  const bool is_cached = elements * static_cast<std::int64_t>(sizeof(T)) <= kCachedBlock;
  return is_cached ? opdef::BlockCut::kAny : opdef::BlockCut::kNone;
}

template <class T>
void plan_b_panels(SmallPlan<T>& plan, std::int64_t rows, std::int64_t columns) {
  const GemmTarget<T>& target = *plan.target;
  plan.columns = split_columns(columns, target);
  plan.wide_rows = split_rows(rows, target, plan.columns.big);
  plan.narrow_rows = split_rows(rows, target, plan.columns.big - 1);
}

}  // namespace

template <class T>
PreparedGemm prepare_small_gemm(const GemmProblem<T>& gemm, bool by_dots) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  auto plan = std::make_shared<SmallPlan<T>>(SmallPlan<T>{gemm});
  const std::int64_t m = gemm.m, n = gemm.n, k = gemm.k;
  const std::int64_t lanes = gemm.target->lanes;
  plan->fetches = n > 1 && k >= kGemmLongSum && (m * k + k * n + m * n) * kSize > kFetchedBytes;
  GemmTile<T>& tile = plan->tile;
  tile.a_row = gemm.transpose_a ? 1 : gemm.a_line;
  tile.a_step = gemm.transpose_a ? gemm.a_line : 1;
  tile.b_step = tile.c_row = n;
  tile.start_row = gemm.start == GemmStart::kMatrix ? n : 0;
  tile.steps = k;
  tile.finish = gemm.finish;
  plan->start_column = gemm.start == GemmStart::kZero ? 0 : 1;
  PreparedGemm prepared;
  const auto finish = [&](auto fn, const char* name) {
    prepared.fn = fn;
    prepared.threads = gemm.threads;
    prepared.label = name;
    prepared.data = plan;
    return prepared;
  };
  if (by_dots) {
    plan->pack_b = !gemm.transpose_b && n != 1 && k != 1;
    if (plan->pack_b) prepared.scratch_bytes = n * k * kSize;
    if (plan->threads > 1) {
      prepared.completes = m > 1 ? opdef::BlockCut::kRows : opdef::BlockCut::kAny;
      prepared.parts = m > 1 ? plan->threads : 1;
    }
    return finish(run_dots<T>, "dots");
  }
  if (n == 1 && gemm.transpose_a && (!gemm.target->needs_padding || m % lanes == 0)) {
    tile.a_row = tile.c_row = tile.start_row = 0;
    tile.a_step = 1;
    tile.b_step = m;
    plan->start_column = gemm.start == GemmStart::kMatrix ? 1 : 0;
    plan_b_panels(*plan, 1, m);
    return finish(run_column_of_transposed_a<T>, "row");
  }
  if (n == 1) {
    plan->wide_rows = split_rows(m, gemm.target->column, kGemmMaxRows);
    return finish(run_column<T>, "column");
  }
  plan->pack_b = gemm.transpose_b || (gemm.target->needs_padding && n % lanes != 0);
  if (plan->pack_b) {
    tile.b_step = round_up(n, lanes);
    prepared.scratch_bytes = tile.b_step * std::max<std::int64_t>(k, 1) * kSize;
  }
  plan_b_panels(*plan, m, n);
  plan_parts(*plan);
  if (plan->threads > 1) {
    prepared.completes = cut_of(*plan);
    prepared.parts = plan->row_parts;
  }
  return finish(run_tiles<T>, "tiles");
}

template PreparedGemm prepare_small_gemm(const GemmProblem<float>&, bool);
template PreparedGemm prepare_small_gemm(const GemmProblem<double>&, bool);

}  // namespace onnxgrad::device

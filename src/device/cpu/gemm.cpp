#include "device/cpu/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "device/cpu/amx_target.h"
#include "device/cpu/gemm_cost.h"
#include "device/cpu/gemm_fma.h"
#include "device/cpu/gemm_plan.h"
#include "device/cpu/packed_gemm.h"
#include "device/cpu/threads.h"

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kWidestBPanel = 64;  // columns of the widest tile of any instruction set
// Multiply-adds from which threads share a GEMM: some ten microseconds, ten times their barrier.
constexpr std::int64_t kSharedGemm = std::int64_t{1} << 19;
// Bytes of operands and result together from which long sums prefetch: an L1 cache.
constexpr std::int64_t kFetchedBytes = std::int64_t{32} << 10;
// Columns of C per thread from which packing A panels pays, beside a B that was packed once.
constexpr std::int64_t kWideAPanelColumns = 384;
// Rows of multiply-adds that take as long as to read an element of B from beyond the L2 cache.
constexpr std::int64_t kRowsOfRead = 4;

template <class T>
const T* zeros() {
  alignas(64) static constexpr T kZeros[kWidestBPanel] = {};
  return kZeros;
}

/// Runs all B panels, with all rows in each. `tile` is at C[0, 0].
template <class T>
void run_b_panels(const GemmPlan<T>& plan, GemmTile<T>& tile) {
  const ColumnSplit& columns = plan.columns;
  if (columns.count() == 1) {
    tile.tail = columns.tail;
    run_rows(tile, plan.wide_rows);
    return;
  }
  const std::int64_t count = columns.count();
  GemmTile<T> top = tile;
  for (std::int64_t p = 0; p < count; ++p) {
    tile = top;
    tile.tail = p + 1 == count ? columns.tail : plan.target->lanes;
    run_rows(tile, columns.is_big(p) ? plan.wide_rows : plan.narrow_rows);
    const std::int64_t width = columns.size(p) * plan.target->lanes;
    top.b += width;
    move_right(top, width, plan.start_column);
  }
}

template <class T>
GemmTile<T> first_tile(const GemmPlan<T>& plan, const GemmOperands& operands) {
  GemmTile<T> tile = plan.tile;
  tile.a = static_cast<const T*>(operands.a);
  tile.b = static_cast<const T*>(operands.b);
  tile.c = static_cast<T*>(operands.c);
  tile.start = plan.start == GemmStart::kZero ? zeros<T>() : static_cast<const T*>(operands.start);
  tile.scale = plan.alpha * static_cast<T>(operands.factor);
  return tile;
}

/// Returns the extras of a GEMM whose first tile is `tile`.
template <class T>
GemmExtras<T> make_extras(const GemmPlan<T>& plan, const GemmOperands& operands,
                          const GemmTile<T>& tile) {
  GemmExtras<T> extras;
  set_more(plan, operands, extras);
  if (plan.fetches) set_reads_next(plan, tile.c, tile.start, tile.start_row, extras);
  return extras;
}

template <class T>
void run_tiles(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  GemmTile<T> tile = first_tile(plan, operands);
  if (plan.pack_b) {
    T* packed = reinterpret_cast<T*>(operands.scratch);
    pack_b(plan, tile.b, 0, plan.k, 0, plan.n, packed, tile.b_step);
    tile.b = packed;
  }
  if (!plan.fetches && plan.more_count == 0) return run_b_panels(plan, tile);
  const GemmExtras<T> extras = make_extras(plan, operands, tile);
  tile.extras = &extras;
  run_b_panels(plan, tile);
}

/// Runs one thread's chunk of the tiles of run_rows().
template <class T>
void run_row_chunk(GemmTile<T> tile, const RowSplit<T>& rows, const Chunk& chunk) {
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

/// Runs one thread's chunk of run_b_panels(): some tiles of each B panel, or some B panels.
template <class T>
void run_b_panel_chunk(const GemmPlan<T>& plan, const GemmTile<T>& start, const Chunk& chunk) {
  const ColumnSplit& columns = plan.columns;
  const std::int64_t count = columns.count();
  const std::int64_t first = plan.shares_rows ? 0 : chunk.first(count);
  const std::int64_t last = plan.shares_rows ? count : chunk.last(count);
  for (std::int64_t p = first; p < last; ++p) {
    const std::int64_t column = columns.first(p) * plan.target->lanes;
    GemmTile<T> tile = start;
    tile.b += column;
    move_right(tile, column, plan.start_column);
    tile.tail = p + 1 == count ? columns.tail : plan.target->lanes;
    const RowSplit<T>& rows = columns.is_big(p) ? plan.wide_rows : plan.narrow_rows;
    if (plan.shares_rows) {
      run_row_chunk(tile, rows, chunk);
    } else {
      run_rows(tile, rows);
    }
  }
}

template <class T>
void run_shared_tiles(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  GemmTile<T> tile = first_tile(plan, operands);
  const GemmExtras<T> extras = make_extras(plan, operands, tile);
  if (plan.fetches || plan.more_count > 0) tile.extras = &extras;
  const T* b = tile.b;
  T* packed = reinterpret_cast<T*>(operands.scratch);
  if (plan.pack_b) tile.b = packed;
  if (plan.pack_b) {
    parallel_blocks(plan.threads, plan.k, plan.target->lanes,
                    [&](std::int64_t first, std::int64_t last) {
                      pack_b(plan, b, first, last - first, 0, plan.n, packed + first * tile.b_step,
                             tile.b_step);
                    });
  }
  on_threads(plan.threads, [&](const Chunk& chunk) { run_b_panel_chunk(plan, tile, chunk); });
}

/// Computes a C of one column, [m] = op(A) b, as one row of its transpose: A^T takes the role of B.
template <class T>
void run_column_of_transposed_a(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  GemmTile<T> tile = first_tile(plan, operands);
  std::swap(tile.a, tile.b);
  alignas(64) T filled[kWidestBPanel];
  if (plan.start == GemmStart::kRow) {
    std::fill(filled, filled + kWidestBPanel, *tile.start);
    tile.start = filled;
  }
  run_b_panels(plan, tile);
}

template <class T>
void run_column(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  GemmTile<T> tile = first_tile(plan, operands);
  run_rows(tile, plan.wide_rows);
}

/// Computes C = A B^T with dot products of rows.
template <class T>
void run_dots(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  const GemmTile<T> tile = first_tile(plan, operands);
  const T* b = tile.b;
  if (plan.pack_b) {  // B^T, [n, k]
    T* packed = reinterpret_cast<T*>(operands.scratch);
    plan.target->transpose(b, plan.n, packed, plan.k, plan.k, plan.n);
    b = packed;
  }
  GemmDots<T> dots{.a = tile.a,
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
  on_threads(plan.threads, [&plan, all = dots](const Chunk& chunk) {
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
      dots.rows = std::min(chunk.last(units) * kGemmMaxRows, plan.m) - first;
      dots.a += first * plan.k;
      dots.c += first * plan.n;
      dots.start += first * dots.start_row;
    }
    if (dots.rows > 0 && dots.columns > 0) plan.target->dots(dots);
  });
}

void run_nothing(const void* /*data*/, const GemmOperands& /*operands*/) {}

template <class T>
void plan_b_panels(GemmPlan<T>& plan, std::int64_t rows, std::int64_t columns) {
  const GemmTarget<T>& target = *plan.target;
  plan.columns = split_columns(columns, target);
  plan.wide_rows = split_rows(rows, target, plan.columns.big);
  plan.narrow_rows = split_rows(rows, target, plan.columns.big - 1);
}

template <class T>
PreparedGemm prepare(const GemmSpec& spec) {
  auto plan = std::make_shared<GemmPlan<T>>();
  plan->target = &gemm_target<T>(spec.cpu.isa);
  plan->m = spec.m, plan->n = spec.n, plan->k = spec.k;
  // A matrix with one row or one column has the same bytes as its transpose.
  const bool is_part = spec.a_row_length != 0;
  ONNXGRAD_ASSERT(!is_part || spec.a_source || (spec.choice == GemmChoice::kTiles && spec.n > 1));
  ONNXGRAD_ASSERT(!spec.a_source || spec.b_source);
  plan->a_source = spec.a_source, plan->b_source = spec.b_source;
  plan->transpose_a = spec.transpose_a && (is_part || (spec.m != 1 && spec.k != 1));
  plan->transpose_b =
      spec.transpose_b && (spec.b_source.read != nullptr || (spec.n != 1 && spec.k != 1));
  plan->source_row = is_part ? spec.a_row_length : plan->transpose_a ? spec.m : spec.k;
  plan->start = spec.start;
  plan->more = spec.more;
  while (static_cast<std::size_t>(plan->more_count) < kGemmMoreAddends &&
         spec.more[static_cast<std::size_t>(plan->more_count)] != GemmStart::kZero) {
    ++plan->more_count;
  }
  ONNXGRAD_ASSERT(plan->more_count == 0 || (spec.start != GemmStart::kZero && spec.n > 1));
  ONNXGRAD_ASSERT(!spec.has_consumer || can_have_consumer(spec));
  plan->has_consumer = spec.has_consumer;
  ONNXGRAD_ASSERT((!spec.is_scaled && !spec.sums_columns) || can_scale(spec));
  plan->is_scaled = spec.is_scaled;
  plan->sums_columns = spec.sums_columns;
  const std::int64_t elements = spec.m * spec.k + spec.k * spec.n + spec.m * spec.n;
  plan->fetches = spec.n > 1 && spec.k >= kGemmLongSum &&
                  elements * static_cast<std::int64_t>(sizeof(T)) > kFetchedBytes;
  plan->alpha = static_cast<T>(spec.alpha);
  plan->threads = spec.threads;
  const bool simple =
      spec.start == GemmStart::kZero && spec.alpha == 1 && !spec.has_run_time_factor;
  plan->finish = spec.relu ? GemmFinish::kRelu : simple ? GemmFinish::kStore : GemmFinish::kAdd;
  GemmTile<T>& tile = plan->tile;
  tile.a_row = plan->transpose_a ? 1 : is_part ? spec.a_row_length : spec.k;
  tile.a_step = !plan->transpose_a ? 1 : is_part ? spec.a_row_length : spec.m;
  tile.b_step = spec.n;
  tile.c_row = spec.n;
  tile.start_row = spec.start == GemmStart::kMatrix ? spec.n : 0;
  tile.steps = spec.k;
  tile.finish = plan->finish;
  plan->start_column = spec.start == GemmStart::kZero ? 0 : 1;

  PreparedGemm prepared;
  const std::int64_t lanes = plan->target->lanes;
  const auto named = [&](PreparedGemm gemm, const char* name) {
    gemm.label = fmt::format("{} {} {}x{}x{}", name, plan->target->name, spec.m, spec.n, spec.k);
    return gemm;
  };
  const auto finish = [&](auto fn, const char* name) {
    prepared.fn = fn;
    prepared.data = plan;
    return named(prepared, name);
  };
  if (spec.m == 0 || spec.n == 0) return finish(run_nothing, "empty");
  const bool is_large = std::max(spec.m, kRowsOfRead) * spec.n * spec.k >= kSharedGemm;
  if (spec.b_is_packed) {
    ONNXGRAD_ASSERT(can_pack_b(spec));
    if (!is_large) plan->threads = 1;
    plan->b_is_packed = true;
    plan->columns = split_columns(spec.n, *plan->target);
    GemmSpec read = spec;
    read.transpose_b = false;
    const GemmChoice choice = choose_gemm(read, *plan->target);
    const bool is_wide = plan->target->a_panel_vectors < plan->target->max_vectors;
    plan->packs_a = choice == GemmChoice::kBlockedPackedA &&
                    (!is_wide || spec.n >= kWideAPanelColumns * spec.threads);
    return named(prepare_packed_fma_gemm(*plan, choice != GemmChoice::kTiles), "packed");
  }
  switch (choose_gemm(spec, *plan->target)) {
    case GemmChoice::kBlockedPackedA:
      plan->packs_a = true;
      [[fallthrough]];
    case GemmChoice::kBlocked:
      return named(prepare_fma_gemm(*plan), plan->packs_a ? "packed A" : "blocked");
    case GemmChoice::kSplit:
      if constexpr (std::is_same_v<T, float>) {
        plan->split = &spec.cpu.amx->split;
        return named(prepare_split_gemm(*plan), "split");
      }
      break;
    case GemmChoice::kDots:
      if (!is_large) plan->threads = 1;
      plan->pack_b = !plan->transpose_b && spec.n != 1 && spec.k != 1;
      if (plan->pack_b)
        prepared.scratch_bytes = spec.n * spec.k * static_cast<std::int64_t>(sizeof(T));
      return finish(run_dots<T>, "dots");
    default:
      break;
  }
  if (spec.n == 1 && plan->transpose_a) {
    if (!plan->target->needs_padding || spec.m % lanes == 0) {
      tile.a_row = tile.c_row = tile.start_row = 0;
      tile.a_step = 1;
      tile.b_step = spec.m;
      plan->start_column = spec.start == GemmStart::kMatrix ? 1 : 0;
      plan_b_panels(*plan, 1, spec.m);
      return finish(run_column_of_transposed_a<T>, "row");
    }
  }
  if (spec.n == 1) {
    plan->wide_rows = split_rows(spec.m, plan->target->column, kGemmMaxRows);
    return finish(run_column<T>, "column");
  }
  plan->pack_b = plan->transpose_b || (plan->target->needs_padding && spec.n % lanes != 0);
  if (plan->pack_b) {
    tile.b_step = round_up(spec.n, lanes);
    prepared.scratch_bytes =
        tile.b_step * std::max<std::int64_t>(spec.k, 1) * static_cast<std::int64_t>(sizeof(T));
  }
  plan_b_panels(*plan, spec.m, spec.n);
  const std::int64_t b_panels = plan->columns.count();
  plan->shares_rows = plan->wide_rows.count() >= b_panels;
  // A thread reads all of what is not shared. That should not be a large B, often a weight: the
  // thread that updates it then takes lines away from all others.
  if (spec.n > spec.m && b_panels % spec.threads == 0) plan->shares_rows = false;
  const bool is_shared = plan->threads > 1 && is_large;
  return finish(is_shared ? run_shared_tiles<T> : run_tiles<T>, "tiles");
}

}  // namespace

template <class T>
RowSplit<T> split_rows(std::int64_t total, const GemmTileFn<T>* tiles, int max_rows) {
  RowSplit<T> split{split_evenly(total, max_rows)};
  if (total > 0) split.big_fn = tiles[split.big - 1];
  if (split.small_count > 0) split.small_fn = tiles[split.big - 2];
  return split;
}

ColumnSplit split_columns(std::int64_t total, int lanes, int max_vectors) {
  const std::int64_t vectors = ceil_div(total, lanes);
  return {split_evenly(vectors, max_vectors), static_cast<int>(total - (vectors - 1) * lanes)};
}

template <class T>
void pack_b(const GemmPlan<T>& plan, const T* b, std::int64_t k0, std::int64_t steps,
            std::int64_t j0, std::int64_t columns, T* to, std::ptrdiff_t to_step) {
  if (!plan.transpose_b) {
    plan.target->copy(b + k0 * plan.n + j0, plan.n, to, to_step, steps, columns);
    return;
  }
  plan.target->transpose(b + j0 * plan.k + k0, plan.k, to, to_step, columns, steps);
  const std::int64_t padded = round_up(columns, plan.target->lanes);
  if (padded == columns) return;
  for (std::int64_t k = 0; k < steps; ++k) {
    std::fill(to + k * to_step + columns, to + k * to_step + padded, T(0));
  }
}

namespace {

GemmChoice choice_of(const GemmSpec& spec) {
  return spec.dtype == DataType::kFloat64 ? choose_gemm(spec, gemm_target<double>(spec.cpu.isa))
                                          : choose_gemm(spec, gemm_target<float>(spec.cpu.isa));
}

/// Whether a split GEMM, which packs B's parts each time, pays even if float32 GEMM could read a B
/// packed once (measured with AMX on layers of BERT, when each thread packed A as well).
bool packs_parts_anew(const GemmSpec& spec) {
  constexpr std::int64_t kManyRows = 256;
  constexpr std::int64_t kManyColumns = 256;
  return spec.m >= kManyRows || (spec.threads == 1 && spec.n >= kManyColumns);
}

bool runs_in_blocks(const GemmSpec& spec) {
  const GemmChoice choice = choice_of(spec);
  return choice == GemmChoice::kBlocked || choice == GemmChoice::kBlockedPackedA ||
         choice == GemmChoice::kSplit;
}

}  // namespace

bool can_have_consumer(const GemmSpec& spec) {
  if (spec.m == 0 || spec.n <= 1 || spec.k > kMaxConsumerSteps) return false;
  return runs_in_blocks(spec);
}

bool can_scale(const GemmSpec& spec) {
  if (spec.m == 0 || spec.n <= 1 || spec.has_consumer || spec.b_is_packed) return false;
  return runs_in_blocks(spec);
}

bool can_pack_b(const GemmSpec& spec) {
  GemmSpec read = spec;
  read.transpose_b = false;
  if (spec.m == 0 || spec.n <= 1 || spec.k == 0 || spec.transpose_a || spec.has_consumer ||
      spec.a_row_length != 0) {
    return false;
  }
  GemmChoice choice = choice_of(read);
  if (choice == GemmChoice::kSplit) {
    if (packs_parts_anew(spec)) return false;
    read.b_is_packed = true;
    choice = choice_of(read);
  }
  return choice != GemmChoice::kDots;
}

std::int64_t packed_b_elements(const GemmSpec& spec) {
  return spec.dtype == DataType::kFloat64
             ? PackedGemm<double>::prepare(spec.cpu.isa, spec.k, spec.n).packed_size()
             : PackedGemm<float>::prepare(spec.cpu.isa, spec.k, spec.n).packed_size();
}

void pack_gemm_b(const GemmSpec& spec, const void* b, void* packed) {
  const auto pack = [&]<class T>(const T* from, T* to) {
    const auto b_panels = PackedGemm<T>::prepare(spec.cpu.isa, spec.k, spec.n);
    b_panels.pack(from, spec.transpose_b ? spec.k : spec.n, spec.transpose_b, to);
  };
  if (spec.dtype == DataType::kFloat64) {
    return pack(static_cast<const double*>(b), static_cast<double*>(packed));
  }
  pack(static_cast<const float*>(b), static_cast<float*>(packed));
}

PreparedGemm prepare_gemm(const GemmSpec& spec) {
  ONNXGRAD_ASSERT(spec.m >= 0 && spec.n >= 0 && spec.k >= 0);
  if (spec.dtype == DataType::kFloat64) return prepare<double>(spec);
  ONNXGRAD_ASSERT(spec.dtype == DataType::kFloat32);
  return prepare<float>(spec);
}

template RowSplit<float> split_rows(std::int64_t, const GemmTileFn<float>*, int);
template RowSplit<double> split_rows(std::int64_t, const GemmTileFn<double>*, int);
template void pack_b(const GemmPlan<float>&, const float*, std::int64_t, std::int64_t, std::int64_t,
                     std::int64_t, float*, std::ptrdiff_t);
template void pack_b(const GemmPlan<double>&, const double*, std::int64_t, std::int64_t,
                     std::int64_t, std::int64_t, double*, std::ptrdiff_t);

}  // namespace onnxgrad::device

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "device/cpu/gemm_plan.h"

// Products whose operands do not fit into the L1 cache. Loops, outermost first: blocks of
// columns (block_n) and of k (block_k), whose part of B is packed into panels as wide as a tile;
// blocks of rows (block_m), whose part of A is packed if it is transposed; panels; tiles. So a
// panel of B stays in the L1 cache while the rows of A's block are traversed, and A's block stays
// in the L2 cache.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kBlockK = 192;
constexpr std::int64_t kBlockM = 192;
constexpr std::int64_t kBlockN = 512;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t align64(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// A part of C that one thread computes.
struct Part {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
};

/// `count` strips of kWidth columns next to each other, [steps, count kWidth], as [count, steps,
/// kWidth]. Row by row: columns would have too many cache lines.
template <class T, int kWidth>
void copy_strips(const T* from, std::ptrdiff_t from_row, std::int64_t steps, std::int64_t count,
                 T* to) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  constexpr std::int64_t kAhead = 4;  // rows: the hardware does not predict the next one
  for (std::int64_t k = 0; k < steps; ++k) {
    for (std::int64_t j = 0; j < count * kWidth; j += kLine) {
      __builtin_prefetch(from + kAhead * from_row + j);
    }
    T* at = to + k * kWidth;
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(at, from + i * kWidth, kWidth * sizeof(T));
      at += steps * kWidth;
    }
    from += from_row;
  }
}

/// By width, from 1 on.
template <class T, int... kBefore>
constexpr auto strip_copies(std::integer_sequence<int, kBefore...> /*widths*/) {
  return std::array{copy_strips<T, kBefore + 1>...};
}

template <class T>
class Blocked {
 public:
  Blocked(const GemmPlan<T>& plan, const GemmOperands& operands, std::byte* scratch)
      : plan_(plan),
        a_(static_cast<const T*>(operands.a)),
        b_(static_cast<const T*>(operands.b)),
        c_(static_cast<T*>(operands.c)),
        start_(static_cast<const T*>(operands.start)),
        scale_(plan.alpha * static_cast<T>(operands.factor)),
        packed_b_(reinterpret_cast<T*>(scratch)),
        packed_a_(packed_b_ + plan.block_n * plan.block_k) {}

  void run(const Part& part) {
    for (std::int64_t j = part.column; j < part.column + part.columns; j += plan_.block_n) {
      const std::int64_t columns = std::min(plan_.block_n, part.column + part.columns - j);
      split_ = split_columns(columns, *plan_.target);
      for (std::int64_t k = 0; k < plan_.k; k += plan_.block_k) {
        steps_ = std::min(plan_.block_k, plan_.k - k);
        is_first_ = k == 0;
        is_last_ = k + steps_ == plan_.k;
        pack_panels(k, j, columns);
        for (std::int64_t i = part.row; i < part.row + part.rows; i += plan_.block_m) {
          run_block(i, std::min(plan_.block_m, part.row + part.rows - i), k, j);
        }
      }
    }
  }

 private:
  std::int64_t panel_columns(std::int64_t p) const {
    return static_cast<std::int64_t>(p < split_.wide_count ? split_.wide : split_.wide - 1) *
           plan_.target->lanes;
  }

  void pack_panels(std::int64_t k, std::int64_t j, std::int64_t columns) {
    T* to = packed_b_;
    for (std::int64_t at = 0, p = 0; at < columns; ++p) {
      const std::int64_t width = panel_columns(p);
      pack_b(plan_, b_, k, steps_, j + at, std::min(width, columns - at), to, width);
      to += width * steps_;
      at += width;
    }
  }

  void run_block(std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t column) {
    GemmTile<T> tile{.steps = steps_, .scale = scale_};
    tile.a_row = plan_.pack_a ? 1 : plan_.k;
    tile.a_step = 1;
    packed_split_ = {};
    tile.c_row = plan_.n;
    // The first block of k starts from the requested start, the others add to C.
    tile.finish = is_last_ ? plan_.finish : GemmFinish::kAdd;
    if (!is_first_ && tile.finish == GemmFinish::kStore) tile.finish = GemmFinish::kAdd;
    const std::int64_t panels = split_.wide_count + split_.narrow_count;
    const T* b = packed_b_;
    for (std::int64_t p = 0; p < panels; ++p) {
      const std::int64_t width = panel_columns(p);
      const int vectors = static_cast<int>(width / plan_.target->lanes);
      tile.a = a_ + row * plan_.k + k;
      tile.b = b;
      tile.b_step = width;
      tile.tail = p + 1 == panels ? split_.tail : plan_.target->lanes;
      tile.c = c_ + row * plan_.n + column;
      set_start(tile, row, column);
      const RowSplit<T> split =
          split_rows(rows, plan_.target->tile[vectors - 1], plan_.target->max_rows[vectors - 1]);
      if (plan_.pack_a) {
        pack_block(split, row, k);
        tile.a = packed_a_;
      }
      run_panel(tile, split);
      b += width * steps_;
      column += width;
    }
  }

  void set_start(GemmTile<T>& tile, std::int64_t row, std::int64_t column) const {
    alignas(64) static constexpr T kZeros[64] = {};
    tile.start = kZeros;
    tile.start_row = 0;
    if (!is_first_) {
      tile.start = tile.c;
      tile.start_row = plan_.n;
    } else if (plan_.start == GemmStart::kRow) {
      tile.start = start_ + column;
    } else if (plan_.start == GemmStart::kMatrix) {
      tile.start = start_ + row * plan_.n + column;
      tile.start_row = plan_.n;
    }
  }

  void run_panel(GemmTile<T>& tile, const RowSplit<T>& rows) const {
    const std::ptrdiff_t step = plan_.pack_a ? steps_ : plan_.k;  // from row to row of a
    const auto run_part = [&](GemmTileFn<T> fn, std::int64_t blocks, std::int64_t height) {
      tile.blocks = blocks;
      tile.a_block = height * step;
      if (plan_.pack_a) tile.a_step = height;
      fn(tile);
      tile.a += blocks * tile.a_block;
      tile.c += blocks * height * tile.c_row;
      tile.start += blocks * height * tile.start_row;
    };
    run_part(rows.big_fn, rows.big_count, rows.big);
    if (rows.small_count > 0) run_part(rows.small_fn, rows.small_count, rows.big - 1);
  }

  /// The rows of a block as tiles [steps, height], one after another. Panels of a different width
  /// may have tiles of a different height.
  void pack_block(const RowSplit<T>& rows, std::int64_t row, std::int64_t k) {
    if (packed_split_.big == rows.big && packed_split_.big_count == rows.big_count) return;
    packed_split_ = rows;
    static constexpr auto kCopies =
        strip_copies<T>(std::make_integer_sequence<int, kGemmMaxRows>());
    const T* from = a_ + k * plan_.m + row;
    const std::int64_t done = rows.big_count * rows.big;
    const auto big = static_cast<std::size_t>(rows.big);
    kCopies[big - 1](from, plan_.m, steps_, rows.big_count, packed_a_);
    if (rows.small_count == 0) return;
    kCopies[big - 2](from + done, plan_.m, steps_, rows.small_count, packed_a_ + done * steps_);
  }

  const GemmPlan<T>& plan_;
  const T* a_;
  const T* b_;
  T* c_;
  const T* start_;
  T scale_;
  T* packed_b_;
  T* packed_a_;
  ColumnSplit<T> split_ = {};
  RowSplit<T> packed_split_ = {};  // of what is in packed_a_
  std::int64_t steps_ = 0;
  bool is_first_ = false, is_last_ = false;
};

}  // namespace

template <class T>
std::int64_t plan_blocked(GemmPlan<T>& plan) {
  const std::int64_t lanes = plan.target->lanes;
  plan.block_k = std::min(plan.k, kBlockK);
  // Equal blocks rather than a small last one.
  plan.block_k = ceil_div(plan.k, ceil_div(plan.k, std::max<std::int64_t>(plan.block_k, 1)));
  plan.block_n = ceil_div(std::min(plan.n, kBlockN), lanes) * lanes;
  plan.block_m = std::min(plan.m, kBlockM);
  plan.pack_a = plan.transpose_a;
  plan.split_m = plan.m > plan.n;
  const std::int64_t elements =
      plan.block_n * plan.block_k + (plan.pack_a ? plan.block_m * plan.block_k : 0);
  plan.thread_scratch = align64(elements * static_cast<std::int64_t>(sizeof(T)));
  return plan.thread_scratch * plan.threads;
}

template <class T>
void run_blocked(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  if (plan.threads == 1) {
    Blocked<T>(plan, operands, operands.scratch).run({0, plan.m, 0, plan.n});
    return;
  }
#pragma omp parallel num_threads(plan.threads)
  {
    const Share share;
    const std::int64_t unit = plan.split_m ? kGemmMaxRows : plan.target->lanes;
    const std::int64_t units = ceil_div(plan.split_m ? plan.m : plan.n, unit);
    const std::int64_t first = share.first(units) * unit;
    const std::int64_t last = share.last(units) * unit;
    Part part{0, plan.m, 0, plan.n};
    if (plan.split_m) {
      part.row = first;
      part.rows = std::min(last, plan.m) - first;
    } else {
      part.column = first;
      part.columns = std::min(last, plan.n) - first;
    }
    Blocked<T>(plan, operands, operands.scratch + share.thread * plan.thread_scratch).run(part);
  }
}

template std::int64_t plan_blocked(GemmPlan<float>& plan);
template std::int64_t plan_blocked(GemmPlan<double>& plan);
template void run_blocked<float>(const void* data, const GemmOperands& operands);
template void run_blocked<double>(const void* data, const GemmOperands& operands);

}  // namespace onnxgrad::device

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/cpu/amx_target.h"
#include "device/cpu/f16_gemm_plan.h"
#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_plan.h"
#include "device/cpu/threads.h"
#include "device/cpu/vnni_gemm.h"

// Loops, outermost first: blocks of columns and of k, whose part of B is packed into B panels;
// blocks of rows; B panels. A C of 16-bit floats has one block of k, so that it is rounded once:
// blocks of columns and rows are then smaller where k is large. A C with a consumer has one block
// of k too; the consumer gets it B panel by B panel. Threads split rows, and pack B together, or
// columns.

namespace onnxgrad::device {
namespace {

using f16_gemm::F16Plan;
using f16_gemm::kBPanelColumns;
using f16_gemm::kLanes;

/// Splits columns into B panels.
EvenSplit split_columns(std::int64_t columns) {
  return split_evenly(ceil_div(columns, kLanes), kVnniMaxVectors);
}

/// Blocks of a GEMM in the scratch of one thread.
class F16Blocks {
 public:
  F16Blocks(const F16Plan& plan, const GemmOperands& operands, const Chunk& chunk)
      : plan_(plan),
        spec_(plan.spec),
        a_(static_cast<const std::uint16_t*>(operands.a)),
        b_(operands.b),
        c_(static_cast<std::byte*>(operands.c)),
        start_(static_cast<const std::byte*>(operands.start)),
        operands_(operands),
        scale_(static_cast<float>(spec_.alpha * operands.factor)) {
    std::byte* own = plan.thread_scratch.in(operands.scratch, chunk.thread);
    packed_b_ = plan.packed_b.in(plan.shares_b ? operands.scratch : own);
    packed_a_ = plan.packed_a.in(own);
    sums_ = plan.sums.in(own);
    line_ = plan.line.in(own);
  }

  /// Begins the block of B at [k, column], which ends before column `end`.
  void begin_block(std::int64_t k, std::int64_t column, std::int64_t end) {
    k_ = k;
    steps_ = std::min(plan_.block_k, spec_.k - k);
    pairs_ = ceil_div(steps_, 2);
    if (plan_.is_amx) pairs_ = round_up(pairs_, kAmxVnni);
    j_ = column;
    block_columns_ = std::min(plan_.block_n, end - column);
  }

  /// Packs the panels of the block of B that belong to `chunk`.
  void pack_b_panels(const Chunk& chunk) {
    const EvenSplit b_panels = split_columns(block_columns_);
    for (std::int64_t p = chunk.first(b_panels.count()); p < chunk.last(b_panels.count()); ++p) {
      const std::int64_t at = b_panels.first(p) * kLanes;
      const std::int64_t width = b_panels.size(p) * kLanes;
      const std::int64_t count = std::min(width, block_columns_ - at);
      vnni_panel(j_ + at, count, width, vnni_panel_at(at));
    }
  }

  /// Multiplies rows [first, last) of A by the block.
  void multiply(std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; i += plan_.block_m) {
      run_rows(i, std::min(plan_.block_m, last - i));
    }
  }

 private:
  // ---- B ----

  std::uint32_t* vnni_panel_at(std::int64_t column) const {
    return reinterpret_cast<std::uint32_t*>(packed_b_) + column * pairs_;
  }

  const std::uint16_t* f16_of_b() const { return static_cast<const std::uint16_t*>(b_); }

  void vnni_panel(std::int64_t column, std::int64_t count, std::int64_t width,
                  std::uint32_t* to) const {
    const std::int64_t pairs = ceil_div(steps_, 2);
    std::fill(to + pairs * width, to + pairs_ * width, 0U);
    if (!spec_.transpose_b) {
      const std::int64_t at = k_ * spec_.n + column;
      if (spec_.rounds_b) {
        pack_vnni(static_cast<const float*>(b_) + at, spec_.n, steps_, count, to, width);
      } else {
        pack_vnni(f16_of_b() + at, spec_.n, steps_, count, to, width);
      }
      return;
    }
    const std::uint16_t* from = f16_of_b() + column * spec_.k + k_;
    auto* out = reinterpret_cast<float*>(to);  // a transpose moves bits only
    if (spec_.k % 2 == 0 && !spec_.rounds_b) {
      plan_.target->transpose(reinterpret_cast<const float*>(from), spec_.k / 2, out, width, count,
                              pairs);
    } else {
      auto* lines = reinterpret_cast<std::uint16_t*>(line_);
      for (std::int64_t j = 0; j < count; j += kLanes) {
        const std::int64_t rows = std::min(count - j, kLanes);
        if (spec_.rounds_b) {
          round_rows(static_cast<const float*>(b_) + (column + j) * spec_.k + k_, rows, pairs,
                     lines);
        } else {
          pad_rows(from + j * spec_.k, spec_.k, rows, steps_, 2 * pairs, lines);
        }
        plan_.target->transpose(reinterpret_cast<const float*>(lines), pairs, out + j, width, rows,
                                pairs);
      }
    }
    if (count == width) return;
    for (std::int64_t p = 0; p < pairs; ++p) {
      std::fill(to + p * width + count, to + (p + 1) * width, 0U);
    }
  }

  void round_rows(const float* from, std::int64_t rows, std::int64_t pairs,
                  std::uint16_t* to) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      plan_.narrow(to, from + i * spec_.k, steps_);
      std::fill(to + steps_, to + 2 * pairs, std::uint16_t{0});
      to += 2 * pairs;
    }
  }

  // ---- A ----

  struct PackedA {
    const std::byte* at;
    std::ptrdiff_t row, step;  // bytes
  };

  /// Returns rows of A, packed anew unless they are the rows that are packed already.
  const PackedA& take_a(std::int64_t row, std::int64_t rows, int vectors) {
    const int height = has_a_panels() ? kVnniRows[vectors - 1] : 0;
    if (taken_row_ == row && taken_k_ == k_ && taken_height_ == height) return taken_;
    taken_ = make_a(row, rows, vectors);
    taken_row_ = row;
    taken_k_ = k_;
    taken_height_ = height;
    return taken_;
  }

  bool has_a_panels() const { return plan_.packs_a && spec_.transpose_a && !plan_.is_amx; }

  PackedA make_a(std::int64_t row, std::int64_t rows, int vectors) {
    const std::int64_t first = spec_.transpose_a ? k_ * plan_.a_row + row : row * plan_.a_row + k_;
    const std::uint16_t* from = a_ + first;
    const std::ptrdiff_t padded_row = pairs_ * 4;
    if (!plan_.packs_a) {
      return {reinterpret_cast<const std::byte*>(from), plan_.a_row * 2, 4};
    }
    if (!spec_.transpose_a) {
      pad_rows(from, plan_.a_row, rows, steps_, 2 * pairs_,
               reinterpret_cast<std::uint16_t*>(packed_a_));
      return {packed_a_, padded_row, 4};
    }
    if (has_a_panels()) return a_panels_of_a(from, rows, vectors);
    pad_columns(spec_.cpu.isa, from, plan_.a_row, rows, steps_,
                reinterpret_cast<std::uint16_t*>(packed_a_),
                reinterpret_cast<std::uint32_t*>(line_));
    return {packed_a_, padded_row, 4};
  }

  PackedA a_panels_of_a(const std::uint16_t* from, std::int64_t rows, int vectors) const {
    const std::int64_t height = kVnniRows[vectors - 1];
    auto* line = reinterpret_cast<std::uint32_t*>(line_);
    auto* to = reinterpret_cast<std::uint32_t*>(packed_a_);
    for (std::int64_t p = 0; p < pairs_; ++p) {
      pack_vnni(from + 2 * p * plan_.a_row, plan_.a_row, std::min<std::int64_t>(2, steps_ - 2 * p),
                rows, line, 0);
      std::uint32_t* at = to + p * height;
      for (std::int64_t i = 0; i < rows; i += height) {
        if (height == 6) {
          std::memcpy(at, line + i, 6 * sizeof(std::uint32_t));
        } else {
          std::memcpy(at, line + i, 8 * sizeof(std::uint32_t));
        }
        at += height * pairs_;
      }
    }
    return {packed_a_, 4, height * 4};
  }

  // ---- results ----

  F16End end_at(std::int64_t row, std::int64_t column) const {
    const bool is_first = k_ == 0;
    const bool is_last = k_ + steps_ >= spec_.k;
    F16End end{.scale = scale_};
    const bool writes_f16 = is_f16(spec_.c_dtype);
    if (writes_f16) {
      end.f16_c = reinterpret_cast<std::uint16_t*>(c_) + row * spec_.n + column;
      end.c_row = spec_.n;
    } else {
      end.c = reinterpret_cast<float*>(c_) + row * spec_.n + column;
      end.c_row = spec_.n;
    }
    if (!is_first) {
      end.start = end.c;
      end.start_row = end.c_row;
    } else if (spec_.start != GemmStart::kZero) {
      const bool is_row = spec_.start == GemmStart::kRow;
      const std::int64_t at = (is_row ? 0 : row * spec_.n) + column;
      if (is_f16(spec_.start_dtype)) {
        end.f16_start = reinterpret_cast<const std::uint16_t*>(start_) + at;
      } else {
        end.start = reinterpret_cast<const float*>(start_) + at;
      }
      end.start_row = is_row ? 0 : spec_.n;
    }
    end.relu = spec_.relu && is_last;
    return end;
  }

  void run_rows(std::int64_t row, std::int64_t rows) {
    const EvenSplit b_panels = split_columns(block_columns_);
    for (std::int64_t p = 0; p < b_panels.count(); ++p) {
      const std::int64_t at = b_panels.first(p) * kLanes;
      const auto vectors = static_cast<int>(b_panels.size(p));
      const PackedA& a = take_a(row, rows, vectors);
      const std::int64_t columns = std::min(vectors * kLanes, block_columns_ - at);
      if (spec_.has_consumer) {
        consume(a, row, rows, at, vectors, columns);
      } else {
        run_vnni_panel(a, rows, at, vectors, columns, end_at(row, j_ + at));
      }
    }
  }

  /// Passes sums to the consumer, a few rows at a time, and prefetches matrices that it reads.
  void consume(PackedA a, std::int64_t row, std::int64_t rows, std::int64_t column, int vectors,
               std::int64_t columns) const {
    const F16End end{.c = sums_, .c_row = kBPanelColumns, .scale = scale_};
    for (std::int64_t i = 0; i < rows; i += plan_.consumer_rows) {
      const std::int64_t count = std::min(plan_.consumer_rows, rows - i);
      prefetch_reads_next(row + i, count, j_ + column, columns);
      run_vnni_panel(a, count, column, vectors, columns, end);
      operands_.finished(operands_.context, {.c = sums_,
                                             .c_row = kBPanelColumns,
                                             .row = row + i,
                                             .rows = count,
                                             .column = j_ + column,
                                             .columns = columns});
      a.at += has_a_panels() ? count * 4 * pairs_ : count * a.row;
    }
  }

  void prefetch_reads_next(std::int64_t row, std::int64_t rows, std::int64_t column,
                           std::int64_t columns) const {
    for (const void* matrix : operands_.reads_next) {
      if (matrix == nullptr) continue;
      const float* from = static_cast<const float*>(matrix) + row * spec_.n + column;
      for (std::int64_t i = 0; i < rows; ++i, from += spec_.n) {
        for (std::int64_t j = 0; j < columns; j += kLanes) __builtin_prefetch(from + j, 1, 2);
      }
    }
  }

  void run_vnni_panel(const PackedA& a, std::int64_t rows, std::int64_t column, int vectors,
                      std::int64_t columns, const F16End& end) const {
    const VnniPanel b_panel{.a = a.at,
                            .a_row = a.row,
                            .a_step = a.step,
                            .b = vnni_panel_at(column),
                            .rows = rows,
                            .pairs = pairs_,
                            .vectors = vectors,
                            .columns = columns,
                            .end = end};
    if (!plan_.is_amx) {
      run_vnni(b_panel);
    } else {
      spec_.cpu.amx->run_b_panel(b_panel);
    }
  }

  const F16Plan& plan_;
  const F16GemmSpec& spec_;
  const std::uint16_t* a_;
  const void* b_;  // bfloat16, or float32 with rounds_b
  std::byte* c_;
  const std::byte* start_;
  const GemmOperands& operands_;
  float scale_;
  std::byte* packed_b_;
  std::byte* packed_a_;
  float* sums_;
  std::byte* line_;
  PackedA taken_ = {};  ///< the packed rows of A: for taken_row_, taken_k_, taken_height_
  std::int64_t taken_row_ = -1, taken_k_ = -1;
  int taken_height_ = 0;
  std::int64_t j_ = 0, k_ = 0, steps_ = 0, pairs_ = 0, block_columns_ = 0;
};

}  // namespace

namespace {

/// Calls f(k, column) for the blocks of B in columns [first, last).
template <class F>
void visit_blocks(const F16Plan& plan, std::int64_t first, std::int64_t last, const F& f) {
  for (std::int64_t j = first; j < last; j += plan.block_n) {
    for (std::int64_t k = 0; k == 0 || k < plan.spec.k; k += plan.block_k) f(k, j);
  }
}

}  // namespace

void f16_gemm::run(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const F16Plan*>(data);
  const F16GemmSpec& spec = plan.spec;
  if (plan.shares_b) {
    const std::int64_t unit = plan.is_amx ? kLanes : 8;
    visit_blocks(plan, 0, spec.n, [&](std::int64_t k, std::int64_t j) {
      const auto blocks_of = [&](const Chunk& chunk) {
        F16Blocks blocks(plan, operands, chunk);
        blocks.begin_block(k, j, spec.n);
        return blocks;
      };
      on_threads(spec.threads, [&](const Chunk& chunk) { blocks_of(chunk).pack_b_panels(chunk); });
      on_threads(spec.threads, [&](const Chunk& chunk) {
        const std::int64_t units = ceil_div(spec.m, unit);
        blocks_of(chunk).multiply(std::min(chunk.first(units) * unit, spec.m),
                                  std::min(chunk.last(units) * unit, spec.m));
      });
    });
    return;
  }
  on_threads(spec.threads, [&](const Chunk& chunk) {
    const std::int64_t units = ceil_div(spec.n, kLanes);
    const std::int64_t first = std::min(chunk.first(units) * kLanes, spec.n);
    const std::int64_t last = std::min(chunk.last(units) * kLanes, spec.n);
    F16Blocks blocks(plan, operands, chunk);
    visit_blocks(plan, first, last, [&](std::int64_t k, std::int64_t j) {
      blocks.begin_block(k, j, last);
      blocks.pack_b_panels(Chunk{});
      blocks.multiply(0, spec.m);
    });
  });
}

}  // namespace onnxgrad::device

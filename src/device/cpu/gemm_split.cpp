#include "device/cpu/gemm_split.h"

#include <algorithm>
#include <array>

#include "device/cpu/gemm_buffer.h"
#include "device/cpu/gemm_column_sums.h"
#include "device/cpu/gemm_split_operand.h"
#include "device/cpu/threads.h"

// Loops, outermost first: blocks of k; blocks of columns, or of rows, which threads split; A panels
// of 32 rows; a few steps; 32 columns. The operand that has the blocks is packed block by block,
// the other one whole before them, by each thread for itself if it is small. A few steps of an
// A panel stay in the L1 cache while tiles multiply them by all columns of the block. Their sums
// are added up in a buffer, from which they go to C (gemm_buffer.h) or to C's consumer.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kMostSteps = 1024;        // maximum of block_k
constexpr std::int64_t kMostBytesOfC = 1 << 20;  // with a consumer and several blocks of k
constexpr std::int64_t kSmallWhole = 800 << 10;  // bytes: leaves room for blocks in an L2 cache
constexpr std::int64_t kBlockBytes = 800 << 10;
constexpr std::int64_t kSmallBlockBytes = 384 << 10;
constexpr std::int64_t kMostColumns = 1024;  // maximum per block, and of a row of the buffer
constexpr std::int64_t kLeastGroups = 4;     // minimum per block: several cache lines of a row
constexpr std::int64_t kChunkSteps = 128;
constexpr std::int64_t kBufferRow = kMostColumns + kSplitGroup;  // not pages apart
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kMostEach = 3;  // maximum of lines per tile product

std::int64_t groups_of(std::int64_t count) { return ceil_div(count, kSplitGroup); }

int parts_of(const GemmPlan<float>& plan) { return plan.a_source ? plan.a_source.parts : 3; }

/// Bytes from group to group, which are no whole pages: groups do not compete for sets of a cache.
std::int64_t group_bytes(const GemmPlan<float>& plan) {
  return plan.block_k / kSplitSteps * split_slice(parts_of(plan)) + 128;
}

std::int64_t whole_groups(const GemmPlan<float>& plan) {
  return groups_of(plan.split_m ? plan.n : plan.m);
}

/// Whether each thread packs it for itself: faster than to read what other cores have written.
bool has_own_whole(const GemmPlan<float>& plan) { return plan.whole_bytes <= kSmallWhole; }

/// Lays out the scratch and returns its bytes.
std::int64_t lay_out(GemmPlan<float>& plan) {
  SplitScratch& parts = plan.parts;
  const std::int64_t groups = groups_of(plan.split_m ? plan.block_m : plan.block_n);
  ScratchLayout own;
  parts.packed = own.reserve<std::byte>(groups * group_bytes(plan));
  parts.flags = own.reserve<std::uint8_t>(groups);
  parts.buffer = own.reserve<float>(kSplitBlock * kBufferRow);
  parts.a_lines = own.reserve<float>(SplitOperand::kLines);
  parts.b_lines = own.reserve<float>(SplitOperand::kLines);
  parts.b_panel = own.reserve<float>(SplitOperand::kLines);
  if (plan.sums_columns) ColumnSums<float>::reserve(plan, own);
  const auto reserve_whole = [&](ScratchLayout& layout) {
    parts.whole_flags = layout.reserve<std::uint8_t>(whole_groups(plan));
    parts.whole = layout.reserve<std::byte>(plan.whole_bytes);
  };
  if (has_own_whole(plan)) reserve_whole(own);
  ScratchLayout all;
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  if (plan.has_consumer && plan.block_k < plan.k) parts.c = all.reserve<float>(plan.m * plan.n);
  if (!has_own_whole(plan)) reserve_whole(all);
  return all.size_bytes();
}

/// One thread's part of a product.
class SplitBlocks {
 public:
  SplitBlocks(const GemmPlan<float>& plan, const GemmOperands& operands, const Chunk& chunk)
      : plan_(plan),
        target_(*plan.split),
        operands_(operands),
        chunk_(chunk),
        a_{.matrix = operands.a,
           .source = plan.a_source,
           .row = plan.source_row,
           .are_steps_adjacent = !plan.transpose_a,
           .pack_fn = plan.split->pack_a[plan.transpose_a ? 1 : 0],
           .parts = parts_of(plan)},
        b_{.matrix = operands.b,
           .source = plan.b_source,
           .row = plan.transpose_b ? plan.k : plan.n,
           .are_steps_adjacent = plan.transpose_b,
           .pack_fn = plan.split->pack_b[plan.transpose_b ? 1 : 0],
           .parts = parts_of(plan)},
        c_(static_cast<float*>(operands.c)),
        scale_(plan.alpha * static_cast<float>(operands.factor)) {
    const SplitScratch& parts = plan.parts;
    std::byte* own = plan.thread_scratch.in(operands.scratch, chunk.index);
    packed_ = parts.packed.in(own);
    flags_ = parts.flags.in(own);
    buffer_ = parts.buffer.in(own);
    a_.lines = parts.a_lines.in(own);
    b_.lines = parts.b_lines.in(own);
    b_panel_ = parts.b_panel.in(own);
    if (parts.c) c_ = parts.c.in(operands.scratch);
    std::byte* with_whole = has_own_whole(plan) ? own : operands.scratch;
    whole_flags_ = parts.whole_flags.in(with_whole);
    whole_ = parts.whole.in(with_whole);
    if (plan.sums_columns) sums_ = ColumnSums<float>(plan, own);
  }

  /// Packs this chunk's part of the whole operand, a block of k from `k` on.
  void pack_whole(std::int64_t k) {
    begin_block(k);
    const std::int64_t all = plan_.split_m ? plan_.n : plan_.m;
    const std::int64_t groups = groups_of(all);
    const std::int64_t first = chunk_.first(groups);
    const std::int64_t last = std::min(chunk_.last(groups) * kSplitGroup, all);
    if (first * kSplitGroup >= last) return;
    pack(!plan_.split_m, first * kSplitGroup, last - first * kSplitGroup,
         whole_ + first * group_bytes(plan_), whole_flags_ + first);
  }

  /// Computes rows [first, last) of C, or columns if chunks have these, for a block of k.
  void run_block_of_k(std::int64_t k, std::int64_t first, std::int64_t last) {
    begin_block(k);
    if (plan_.sums_columns && is_first()) {
      plan_.split_m ? sums_.begin(0, plan_.n) : sums_.begin(first, last - first);
    }
    if (first == last) return;
    target_.begin();
    if (has_own_whole(plan_)) {
      pack(!plan_.split_m, 0, plan_.split_m ? plan_.n : plan_.m, whole_, whole_flags_);
    }
    for (std::int64_t i = first; i < last; i += block()) {
      const std::int64_t count = std::min(block(), last - i);
      pack(plan_.split_m, i, count, packed_, flags_);
      plan_.split_m ? run_rows(i, count) : run_columns(i, count);
    }
    target_.end();
    if (plan_.sums_columns && !plan_.split_m && is_last()) {
      ColumnSums<float>::write(plan_, operands_, chunk_.index, 1, first, last);
    }
  }

 private:
  struct Packed {
    const std::byte* groups = nullptr;
    const std::uint8_t* flags = nullptr;
  };

  void begin_block(std::int64_t k) {
    k_ = k;
    steps_ = std::min(plan_.block_k, plan_.k - k_);
  }
  std::int64_t block() const { return plan_.split_m ? plan_.block_m : plan_.block_n; }
  bool is_first() const { return k_ == 0; }
  bool is_last() const { return k_ + steps_ == plan_.k; }

  // ---- packing ----

  /// Packs `count` rows of A, or columns of B, from `first` on.
  void pack(bool is_a, std::int64_t first, std::int64_t count, std::byte* to,
            std::uint8_t* flags) const {
    (is_a ? a_ : b_).pack({first, count, k_, steps_}, to, group_bytes(plan_), flags);
  }

  // ---- products ----

  /// Multiplies a block of rows by all columns.
  void run_rows(std::int64_t row, std::int64_t rows) {
    Packed b = {whole_, whole_flags_};
    for (std::int64_t j = 0; j < plan_.n; j += plan_.block_n) {
      run_block(row, rows, {packed_, flags_}, j, std::min(plan_.block_n, plan_.n - j), b);
      skip(b, plan_.block_n / kSplitGroup);
    }
  }

  /// Multiplies all rows by a block of columns.
  void run_columns(std::int64_t column, std::int64_t columns) {
    Packed b = {packed_, flags_};
    for (std::int64_t j = 0; j < columns; j += kMostColumns) {
      run_block(0, plan_.m, {whole_, whole_flags_}, column + j, std::min(kMostColumns, columns - j),
                b);
      skip(b, kMostColumns / kSplitGroup);
    }
  }

  void run_block(std::int64_t row, std::int64_t rows, Packed a, std::int64_t column,
                 std::int64_t columns, const Packed& b) {
    for (std::int64_t i = 0; i < rows; i += kSplitBlock) {
      Packed next = a;
      skip(next, i + kSplitBlock < rows ? 2 : 0);
      run_a_panel({row + i, std::min(kSplitBlock, rows - i), column, columns, buffer_, kBufferRow},
                  a, next.groups, b);
      a = next;
    }
  }

  void skip(Packed& packed, std::int64_t groups) const {
    packed.groups += groups * group_bytes(plan_);
    packed.flags += groups;
  }

  /// Multiplies an A panel by the block, a few steps at a time, which stay in the L1 cache. `next`:
  /// the next A panel.
  void run_a_panel(const GemmBuffer<float>& buffer, const Packed& a, const std::byte* next,
                   const Packed& b) {
    for (std::int64_t k = 0; k < steps_; k += kChunkSteps) {
      set_fetched(buffer, a.groups, next, k);
      run_chunk(buffer, a, b, k);
    }
    end_a_panel(buffer);
  }

  /// Sets the prefetches while steps of the block from k on are multiplied: the A panel's next
  /// steps, or those of the A panel after it; and, if there is time, the matrices that the A
  /// panel's epilogue reads and writes.
  void set_fetched(const GemmBuffer<float>& buffer, const std::byte* a_panel, const std::byte* next,
                   std::int64_t k) {
    const std::int64_t b_panels = ceil_div(buffer.columns, kSplitBlock);
    const std::int64_t slices = ceil_div(std::min(kChunkSteps, steps_ - k), kSplitSteps);
    const std::int64_t turns = b_panels * slices * split_gemms(parts_of(plan_));
    std::int64_t count = 0;
    std::int64_t lines = 0;
    const auto add = [&](const SplitLines& piece) {
      pieces_[count++] = piece;
      lines += piece.rows * piece.lines;
    };
    const std::int64_t after = k + kChunkSteps;
    if (!plan_.split_m && !has_own_whole(plan_)) {
      const bool is_end = after >= steps_;
      const std::int64_t steps = std::min(kChunkSteps, is_end ? steps_ : steps_ - after);
      add({is_end ? next : a_panel + after / kSplitSteps * split_slice(parts_of(plan_)),
           buffer.rows > kSplitGroup ? 2 : 1,
           ceil_div(steps, kSplitSteps) * split_slice(parts_of(plan_)) / kLine,
           group_bytes(plan_)});
    }
    std::int64_t size = sizeof(float);
    const auto matrices = matrices_at_end(size);
    const std::int64_t first = buffer.rows * k / steps_;
    const std::int64_t rows = buffer.rows * std::min(after, steps_) / steps_ - first;
    const std::int64_t at = ((buffer.row + first) * plan_.n + buffer.column) * size;
    const std::int64_t row_lines = ceil_div(buffer.columns * size, kLine);
    for (const void* matrix : matrices) {
      if (matrix == nullptr || lines + rows * row_lines > turns * kMostEach) continue;
      add({static_cast<const std::byte*>(matrix) + at, rows, row_lines, plan_.n * size});
    }
    fetch_ = SplitFetch{};
    fetch_.next = pieces_;
    fetch_.end = pieces_ + count;
    fetch_.each = ceil_div(lines, turns);
  }

  /// Matrices shaped like C that an A panel's epilogue reads or writes, with elements of `size`
  /// bytes.
  std::array<const void*, kGemmMoreAddends> matrices_at_end(std::int64_t& size) const {
    if (plan_.has_consumer) {
      if (!is_last()) return {c_};
      if (operands_.reads_next_size > 0) size = operands_.reads_next_size;
      return operands_.reads_next;
    }
    const bool adds = is_first() && plan_.start == GemmStart::kMatrix && operands_.start != c_;
    return {c_, adds ? operands_.start : nullptr,
            is_last() && plan_.is_scaled ? operands_.scales : nullptr};
  }

  /// Adds kChunkSteps steps of the block, from k on, to the sums.
  void run_chunk(const GemmBuffer<float>& buffer, const Packed& a, Packed b, std::int64_t k) {
    const std::int64_t steps = std::min(kChunkSteps, steps_ - k);
    const std::ptrdiff_t offset = k / kSplitSteps * split_slice(parts_of(plan_));
    SplitGemm product{.a = a.groups + offset,
                      .a_group = group_bytes(plan_),
                      .b_group = group_bytes(plan_),
                      .slices = ceil_div(steps, kSplitSteps),
                      .parts = parts_of(plan_),
                      .has_lower = buffer.rows > kSplitGroup,
                      .adds = k > 0,
                      .c_row = buffer.sums_row,
                      .fetch = &fetch_};
    for (std::int64_t j = 0; j < buffer.columns; j += kSplitBlock) {
      const std::int64_t count = std::min(kSplitBlock, buffer.columns - j);
      product.is_wide = count > kSplitGroup;
      product.b = b.groups + offset;
      product.c = buffer_ + j;
      const bool is_flagged = a.flags[0] != 0 || (product.has_lower && a.flags[1] != 0) ||
                              b.flags[0] != 0 || (product.is_wide && b.flags[1] != 0);
      if (!is_flagged) {
        target_.multiply(product);
      } else if (k == 0) {
        multiply_numbers(buffer.row, buffer.rows, buffer.column + j, count, product.c);
      }
      skip(b, 2);
    }
  }

  /// Multiplies float32 elements instead of parts, which would give NaN instead of infinity.
  void multiply_numbers(std::int64_t row, std::int64_t rows, std::int64_t column,
                        std::int64_t columns, float* c) const {
    const GemmTarget<float>& target = *plan_.target;
    for (std::int64_t k = 0; k < steps_; k += SplitOperand::kNumberSteps) {
      const std::int64_t steps = std::min(SplitOperand::kNumberSteps, steps_ - k);
      const SplitOperand::Numbers a = a_.numbers({row, rows, k_ + k, steps});
      const SplitOperand::Numbers b = b_.numbers({column, columns, k_ + k, steps});
      if (plan_.transpose_b) {
        target.transpose(b.from, b.row, b_panel_, kSplitBlock, columns, steps);
      } else {
        target.copy(b.from, b.step, b_panel_, kSplitBlock, steps, columns);
      }
      GemmTile<float> tile{.a = a.from,
                           .a_row = a.row,
                           .a_step = a.step,
                           .b = b_panel_,
                           .b_step = kSplitBlock,
                           .c = c,
                           .c_row = kBufferRow,
                           .start = c,
                           .start_row = kBufferRow,
                           .steps = steps,
                           .finish = k == 0 ? GemmFinish::kStore : GemmFinish::kAdd};
      run_tiles_of(target, tile, rows, columns);
    }
  }

  // ---- results ----

  void end_a_panel(const GemmBuffer<float>& buffer) {
    if (scale_ != 1) scale(buffer);
    GemmExtras<float> extras;
    if (is_first()) {
      add_addends(plan_, operands_, extras);
    } else {
      extras.more[0] = c_;
      extras.more_row[0] = plan_.n;
      extras.more_count = 1;
    }
    const bool is_relu = is_last() && plan_.finish == GemmFinish::kRelu;
    const GemmFinish finish = is_relu ? GemmFinish::kRelu : GemmFinish::kAdd;
    if (plan_.has_consumer && is_last()) {
      if (is_relu || extras.more_count > 0) {
        end_buffer(plan_, buffer, extras, finish, buffer_, buffer.sums_row);
      }
      operands_.finished(operands_.context, {.c = buffer_,
                                             .c_row = buffer.sums_row,
                                             .row = buffer.row,
                                             .rows = buffer.rows,
                                             .column = buffer.column,
                                             .columns = buffer.columns});
      return;
    }
    if (is_last()) {
      extras.column_sums = sums_.of_block();
      if (plan_.is_scaled) {
        extras.scales = static_cast<const float*>(operands_.scales);
        extras.scales_row = plan_.n;
      }
    }
    end_buffer(plan_, buffer, extras, finish, c_ + buffer.row * plan_.n + buffer.column, plan_.n);
    if (is_last() && plan_.sums_columns) sums_.end_block(buffer.column, buffer.columns);
  }

  void scale(const GemmBuffer<float>& buffer) {
    for (std::int64_t i = 0; i < buffer.rows; ++i) {
      float* row = buffer_ + i * buffer.sums_row;
      for (std::int64_t j = 0; j < buffer.columns; ++j) row[j] *= scale_;
    }
  }

  const GemmPlan<float>& plan_;
  const SplitTarget& target_;
  const GemmOperands& operands_;
  Chunk chunk_;
  SplitOperand a_, b_;
  float* c_;
  float scale_;
  std::byte* packed_;    // groups of a block
  std::uint8_t* flags_;  // per group: 1 if an element is infinite
  std::byte* whole_;     // groups of the other operand
  std::uint8_t* whole_flags_;
  float* buffer_;
  float* b_panel_;
  ColumnSums<float> sums_;
  SplitLines pieces_[1 + kGemmMoreAddends];
  SplitFetch fetch_;
  std::int64_t k_ = 0, steps_ = 0;
};

/// Whether threads split the rows of C instead of the columns. Blocks of columns are wide, so that
/// an A panel stays in the L1 cache for all of them. But a small B is packed faster by each thread
/// than a large A, and C is then written, or passed to its consumer, in whole rows; and few columns
/// are not enough for all threads.
bool shares_rows(const GemmPlan<float>& plan) {
  constexpr std::int64_t kMuchMore = 8;
  constexpr std::int64_t kFewSteps = 512;
  constexpr std::int64_t kLeastRows = 64;   // rows per thread
  constexpr std::int64_t kLeastBlocks = 4;  // blocks per thread, so that all have about as many
  const bool has_more_rows = plan.m > plan.n;
  const bool is_b_small = groups_of(plan.n) * group_bytes(plan) <= kSmallWhole;
  if ((has_more_rows || plan.has_consumer) && is_b_small && plan.k <= kFewSteps &&
      plan.m >= kLeastRows * plan.threads) {
    return true;
  }
  if (!has_more_rows) return false;
  return plan.m >= kMuchMore * plan.n || plan.n < kLeastBlocks * kSplitBlock * plan.threads;
}

}  // namespace

std::int64_t plan_split(GemmPlan<float>& plan) {
  // Blocks that a consumer gets are complete: sums of several blocks need a C of their own.
  const bool has_one_block =
      plan.has_consumer && aligned_bytes<float>(plan.m * plan.n) > kMostBytesOfC;
  const std::int64_t blocks = has_one_block ? 1 : ceil_div(plan.k, kMostSteps);
  plan.block_k = round_up(ceil_div(plan.k, blocks), kSplitSteps);
  plan.split_m = shares_rows(plan);
  plan.whole_bytes = whole_groups(plan) * group_bytes(plan);
  const auto even_groups = [&](std::int64_t bytes) {
    return std::max<std::int64_t>(bytes / group_bytes(plan) / 2 * 2, kLeastGroups);
  };
  // Splits a thread's chunk into equal blocks.
  const std::int64_t pairs = ceil_div(plan.split_m ? plan.m : plan.n, kSplitBlock);
  const std::int64_t of_thread = 2 * ceil_div(pairs, plan.threads);
  const std::int64_t most = even_groups(has_own_whole(plan) ? kSmallBlockBytes : kBlockBytes);
  const std::int64_t count = ceil_div(of_thread, most);
  const std::int64_t block = round_up(ceil_div(of_thread, count), 2) * kSplitGroup;
  if (plan.split_m) {
    plan.block_m = block;
    const std::int64_t columns = even_groups(kSmallBlockBytes) * kSplitGroup;
    plan.block_n = has_own_whole(plan) ? kMostColumns : std::min(columns, kMostColumns);
  } else {
    plan.block_m = plan.m;
    plan.block_n = block;
  }
  return lay_out(plan);
}

void run_split(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<float>*>(data);
  const std::int64_t all = plan.split_m ? plan.m : plan.n;
  const std::int64_t pairs = ceil_div(all, kSplitBlock);
  // Calls f(blocks, first, last) for the rows or columns of each chunk.
  const auto visit_chunks = [&](const auto& f) {
    on_threads(plan.threads, [&](const Chunk& chunk) {
      const std::int64_t first = std::min(chunk.first(pairs) * kSplitBlock, all);
      const std::int64_t last = std::min(chunk.last(pairs) * kSplitBlock, all);
      f(SplitBlocks(plan, operands, chunk), first, last);
    });
  };
  if (has_own_whole(plan)) {
    visit_chunks([&](SplitBlocks blocks, std::int64_t first, std::int64_t last) {
      for (std::int64_t k = 0; k < plan.k; k += plan.block_k) blocks.run_block_of_k(k, first, last);
    });
  } else {
    for (std::int64_t k = 0; k < plan.k; k += plan.block_k) {
      on_threads(plan.threads,
                 [&](const Chunk& chunk) { SplitBlocks(plan, operands, chunk).pack_whole(k); });
      visit_chunks([&](SplitBlocks blocks, std::int64_t first, std::int64_t last) {
        blocks.run_block_of_k(k, first, last);
      });
    }
  }
  if (!plan.sums_columns || !plan.split_m) return;
  on_threads(plan.threads, [&](const Chunk& chunk) {
    ColumnSums<float>::write(plan, operands, 0, chunk.count, chunk.first(plan.n),
                             chunk.last(plan.n));
  });
}

}  // namespace onnxgrad::device

#include "device/cpu/gemm_split.h"

#include <algorithm>
#include <array>
#include <memory>

#include "device/cpu/gemm_driver.h"
#include "device/cpu/gemm_epilogue.h"
#include "device/cpu/gemm_split_operand.h"
#include "device/cpu/scratch_layout.h"

// The GEMM kernel of split operands (gemm_driver.h has the loop nest). Loops of a block, outermost
// first: A panels of 32 rows; a few steps; 32 columns. A few steps of an A panel stay in the L1
// cache while tiles multiply them by all columns of the block. Their sums are added up in a buffer,
// from which they go to C (gemm_epilogue.h) or to C's consumer. A is packed once for all columns.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kMostSteps = 1024;  // maximum of a block
constexpr std::int64_t kBlockM = 128;
constexpr double kBlockOfL2 = 25.0 / 64;     // of an L2 cache, for a packed block of B
constexpr std::int64_t kMostColumns = 1024;  // maximum per block, and of a row of the buffer
constexpr std::int64_t kLeastGroups = 4;     // minimum per block: several cache lines of a row
constexpr std::int64_t kChunkSteps = 128;
constexpr std::int64_t kBufferRow = kMostColumns + kSplitGroup;  // not pages apart
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kMostEach = 3;  // maximum of lines per tile product

std::int64_t groups_of(std::int64_t count) { return ceil_div(count, kSplitGroup); }

int parts_of(const GemmProblem<float>& gemm) { return gemm.a_source ? gemm.a_source.parts : 3; }

/// Sizes and scratch of a kernel.
struct SplitPlan : GemmProblem<float> {
  SplitTarget split;
  std::int64_t block_m = 0, block_n = 0, block_k = 0;
  ScratchArray<float> buffer = {};
  ScratchArray<float> lines = {};    ///< of an operand while it is converted
  ScratchArray<float> b_lines = {};  ///< the same for B while `lines` has A
  ScratchArray<float> b_panel = {};
  ScratchArray<float> c = {};  ///< sums of the steps before the last ones, for a consumer

  /// Bytes from group to group, which are no whole pages: groups do not compete for sets of a
  /// cache. The last one says whether an element is infinite.
  std::int64_t group_bytes() const {
    return block_k / kSplitSteps * split_slice(parts_of(*this)) + 128;
  }
};

bool is_flagged(const std::byte* group, std::int64_t group_bytes) {
  return group[group_bytes - 1] != std::byte{0};
}

SplitOperand operand_a(const SplitPlan& plan, const GemmOperands& operands, float* lines) {
  return {.matrix = operands.a,
          .source = plan.a_source,
          .row = plan.a_line,
          .are_steps_adjacent = !plan.transpose_a,
          .pack_fn = plan.split.pack_a[plan.transpose_a ? 1 : 0],
          .lines = lines,
          .parts = parts_of(plan)};
}

SplitOperand operand_b(const SplitPlan& plan, const GemmOperands& operands, float* lines) {
  return {.matrix = operands.b,
          .source = plan.b_source,
          .row = plan.transpose_b ? plan.k : plan.n,
          .are_steps_adjacent = plan.transpose_b,
          .pack_fn = plan.split.pack_b[plan.transpose_b ? 1 : 0],
          .lines = lines,
          .parts = parts_of(plan)};
}

/// Multiplication of one block.
class SplitBlock {
 public:
  SplitBlock(const SplitPlan& plan, const GemmOperands& operands, const GemmTask& task)
      : plan_(plan),
        target_(plan.split),
        operands_(operands),
        task_(task),
        group_(plan.group_bytes()),
        steps_(task.rows.steps),
        buffer_(plan.buffer.in(task.scratch)),
        c_(static_cast<float*>(operands.c)),
        c_row_(plan.n) {
    if (plan.has_consumer) {  // C's block, as if it were part of a whole C
      c_row_ = plan.block_n;
      c_ = plan.c.in(task.scratch) - task.rows.row * c_row_ - task.columns.panels->column;
    }
  }

  void run() {
    const GemmPanels& panels = *task_.columns.panels;
    const std::int64_t first = panels.split.first(task_.columns.first);  // groups
    const std::int64_t offset = first * kSplitGroup;
    const std::int64_t columns =
        std::min(panels.split.first(task_.columns.last) * kSplitGroup, panels.columns) - offset;
    const std::byte* b = task_.b + first * group_;
    target_.begin();
    for (std::int64_t i = 0; i < task_.rows.rows; i += kSplitBlock) {
      const std::byte* a = task_.a + i / kSplitGroup * group_;
      const bool is_end = i + kSplitBlock >= task_.rows.rows;
      run_a_panel({task_.rows.row + i, std::min(kSplitBlock, task_.rows.rows - i),
                   panels.column + offset, columns, buffer_, kBufferRow, c_, c_row_},
                  a, is_end ? a : a + 2 * group_, b);
    }
    target_.end();
  }

 private:
  /// Multiplies an A panel by the block, a few steps at a time, which stay in the L1 cache. `next`:
  /// the next A panel.
  void run_a_panel(const GemmBuffer<float>& buffer, const std::byte* a, const std::byte* next,
                   const std::byte* b) {
    for (std::int64_t k = 0; k < steps_; k += kChunkSteps) {
      set_fetched(buffer, a, next, k);
      run_chunk(buffer, a, b, k);
    }
    end_buffer(plan_, operands_, task_, buffer);
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
    const bool is_end = after >= steps_;
    const std::int64_t steps = std::min(kChunkSteps, is_end ? steps_ : steps_ - after);
    add({is_end ? next : a_panel + after / kSplitSteps * split_slice(parts_of(plan_)),
         buffer.rows > kSplitGroup ? 2 : 1,
         ceil_div(steps, kSplitSteps) * split_slice(parts_of(plan_)) / kLine, group_});
    std::int64_t size = sizeof(float);
    const auto matrices = matrices_at_end(size);
    const std::int64_t first = buffer.rows * k / steps_;
    const std::int64_t rows = buffer.rows * std::min(after, steps_) / steps_ - first;
    const std::int64_t row = plan_.has_consumer && !task_.is_last ? c_row_ : plan_.n;
    const std::int64_t at = ((buffer.row + first) * row + buffer.column) * size;
    const std::int64_t row_lines = ceil_div(buffer.columns * size, kLine);
    for (const void* matrix : matrices) {
      if (matrix == nullptr || lines + rows * row_lines > turns * kMostEach) continue;
      add({static_cast<const std::byte*>(matrix) + at, rows, row_lines, row * size});
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
      if (!task_.is_last) return {c_};
      if (operands_.reads_next_size > 0) size = operands_.reads_next_size;
      return operands_.reads_next;
    }
    const bool adds = task_.is_first && plan_.start == GemmStart::kMatrix && operands_.start != c_;
    return {c_, adds ? operands_.start : nullptr,
            task_.is_last && plan_.is_scaled ? operands_.scales : nullptr};
  }

  /// Adds kChunkSteps steps of the block, from k on, to the sums.
  void run_chunk(const GemmBuffer<float>& buffer, const std::byte* a, const std::byte* b,
                 std::int64_t k) {
    const std::int64_t steps = std::min(kChunkSteps, steps_ - k);
    const std::ptrdiff_t offset = k / kSplitSteps * split_slice(parts_of(plan_));
    SplitGemm product{.a = a + offset,
                      .a_group = group_,
                      .b_group = group_,
                      .slices = ceil_div(steps, kSplitSteps),
                      .parts = parts_of(plan_),
                      .has_lower = buffer.rows > kSplitGroup,
                      .adds = k > 0,
                      .c_row = buffer.sums_row,
                      .fetch = &fetch_};
    const bool is_a_flagged =
        is_flagged(a, group_) || (product.has_lower && is_flagged(a + group_, group_));
    for (std::int64_t j = 0; j < buffer.columns; j += kSplitBlock) {
      const std::int64_t count = std::min(kSplitBlock, buffer.columns - j);
      product.is_wide = count > kSplitGroup;
      product.b = b + offset;
      product.c = buffer_ + j;
      if (!is_a_flagged && !is_flagged(b, group_) &&
          !(product.is_wide && is_flagged(b + group_, group_))) {
        target_.multiply(product);
      } else if (k == 0) {
        multiply_numbers(buffer.row, buffer.rows, buffer.column + j, count, product.c);
      }
      b += 2 * group_;
    }
  }

  /// Multiplies float32 elements instead of parts, which would give NaN instead of infinity.
  void multiply_numbers(std::int64_t row, std::int64_t rows, std::int64_t column,
                        std::int64_t columns, float* c) const {
    const GemmTarget<float>& target = *plan_.target;
    const SplitOperand all_a = operand_a(plan_, operands_, plan_.lines.in(task_.scratch));
    const SplitOperand all_b = operand_b(plan_, operands_, plan_.b_lines.in(task_.scratch));
    float* const panel = plan_.b_panel.in(task_.scratch);
    for (std::int64_t k = 0; k < steps_; k += SplitOperand::kNumberSteps) {
      const std::int64_t steps = std::min(SplitOperand::kNumberSteps, steps_ - k);
      const SplitOperand::Numbers a = all_a.numbers({row, rows, task_.rows.k + k, steps});
      const SplitOperand::Numbers b = all_b.numbers({column, columns, task_.rows.k + k, steps});
      if (plan_.transpose_b) {
        target.transpose(b.from, b.row, panel, kSplitBlock, columns, steps);
      } else {
        target.copy(b.from, b.step, panel, kSplitBlock, steps, columns);
      }
      GemmTile<float> tile{.a = a.from,
                           .a_row = a.row,
                           .a_step = a.step,
                           .b = panel,
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

  const SplitPlan& plan_;
  const SplitTarget& target_;
  const GemmOperands& operands_;
  const GemmTask& task_;
  std::int64_t group_;
  std::int64_t steps_;
  float* buffer_;
  float* c_;  // at C[0, 0]
  std::int64_t c_row_;
  SplitLines pieces_[1 + kGemmMoreAddends];
  SplitFetch fetch_;
};

class SplitKernel final : public GemmKernel {
 public:
  explicit SplitKernel(const SplitPlan& plan) : plan_(plan) {}

  void pack_a(const GemmOperands& operands, const GemmRows& rows, std::byte* to,
              std::byte* scratch) const override {
    operand_a(plan_, operands, plan_.lines.in(scratch))
        .pack({rows.row, rows.rows, rows.k, rows.steps}, to, plan_.group_bytes());
  }
  void pack_b(const GemmOperands& operands, const GemmColumns& columns, std::byte* to,
              std::byte* scratch) const override {
    const GemmPanels& panels = *columns.panels;
    const std::int64_t first = panels.split.first(columns.first);
    const std::int64_t offset = first * kSplitGroup;
    const std::int64_t end =
        std::min(panels.split.first(columns.last) * kSplitGroup, panels.columns);
    operand_b(plan_, operands, plan_.lines.in(scratch))
        .pack({panels.column + offset, end - offset, columns.k, columns.steps},
              to + first * plan_.group_bytes(), plan_.group_bytes());
  }
  void compute(const GemmOperands& operands, const GemmTask& task) const override {
    SplitBlock(plan_, operands, task).run();
  }

 private:
  SplitPlan plan_;
};

}  // namespace

PreparedGemm prepare_split_gemm(const GemmProblem<float>& gemm, const SplitTarget& target,
                                const Machine& machine) {
  SplitPlan plan{gemm, target};
  plan.block_k = round_up(ceil_div(plan.k, ceil_div(plan.k, kMostSteps)), kSplitSteps);
  plan.block_m = std::min(round_up(plan.m, kSplitBlock), kBlockM);
  const auto block_bytes =
      static_cast<std::int64_t>(kBlockOfL2 * static_cast<double>(machine.l2_bytes));
  const std::int64_t most = std::clamp(block_bytes / plan.group_bytes() / 2 * 2, kLeastGroups,
                                       kMostColumns / kSplitGroup);
  const std::int64_t groups = groups_of(plan.n);
  plan.block_n = round_up(ceil_div(groups, ceil_div(groups, most)), 2) * kSplitGroup;
  ScratchLayout own;
  plan.buffer = own.reserve<float>(kSplitBlock * kBufferRow);
  plan.lines = own.reserve<float>(SplitOperand::kLines);
  plan.b_lines = own.reserve<float>(SplitOperand::kLines);
  plan.b_panel = own.reserve<float>(SplitOperand::kLines);
  const bool has_block = plan.has_consumer && plan.block_k < plan.k;
  plan.c = own.reserve<float>(has_block ? plan.block_m * plan.block_n : 0);
  GemmBlocking blocking{.m = plan.block_m, .n = plan.block_n, .k = plan.block_k};
  blocking.row_unit = kSplitBlock;
  blocking.unit = kSplitGroup;
  blocking.panel_units = kSplitBlock / kSplitGroup;
  blocking.a_bytes = groups_of(plan.block_m) * plan.group_bytes();
  blocking.b_unit_bytes = plan.group_bytes();
  blocking.packs_a_once = true;
  blocking.sum_bytes = plan.sums_columns ? sizeof(float) : 0;
  blocking.scratch_bytes = own.size_bytes();
  blocking.has_consumer = plan.has_consumer;
  return drive_gemm(plan.m, plan.n, plan.k, plan.threads, blocking,
                    std::make_unique<SplitKernel>(plan));
}

}  // namespace onnxgrad::device

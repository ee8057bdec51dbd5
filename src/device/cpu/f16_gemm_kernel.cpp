#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "device/cpu/amx_target.h"
#include "device/cpu/convert.h"
#include "device/cpu/f16_gemm.h"
#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_driver.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu/vnni_gemm.h"

// The GEMM kernel of bfloat16 instructions (gemm_driver.h has the loop nest). B panels and, unless
// it can be read in place, A have the VNNI layout. A C of 16-bit floats has one block of k, so that
// it is rounded once: blocks of columns and rows are then smaller where k is large. A C with a
// consumer has one block of k too; the consumer gets it B panel by B panel.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kLanes = kVnniLanes;
constexpr std::int64_t kBPanelColumns = kVnniMaxVectors * kLanes;
constexpr std::int64_t kBlockK = 768;
constexpr std::int64_t kBlockN = 256;
constexpr std::int64_t kBlockM = 192;
constexpr std::int64_t kBlockBytes = 640LL * 1024;  // of a packed operand: half of an L2 cache
constexpr std::int64_t kBytes = 2;                  // of an element

/// Sizes and choices of a GEMM.
struct F16Plan {
  F16GemmSpec spec;
  bool packs_a = false;
  bool is_amx = false;
  std::int64_t consumer_rows = 0;  ///< a multiple of the rows of the widest tiles
  std::int64_t a_row = 0;          ///< row stride of A in memory, in elements
  std::int64_t block_k = 0, block_n = 0, block_m = 0;
  ScratchArray<std::byte> line = {};
  ScratchArray<float> sums = {};
  ConvertFn narrow = nullptr;
};

class VnniKernel final : public GemmKernel {
 public:
  explicit VnniKernel(const F16Plan& plan) : plan_(plan) {}

  void pack_a(const GemmOperands& operands, const GemmRows& rows, std::byte* to,
              std::byte* scratch) const override;
  void pack_b(const GemmOperands& operands, const GemmColumns& columns, std::byte* to,
              std::byte* scratch) const override;
  void compute(const GemmOperands& operands, const GemmTask& task) const override;

 private:
  /// Rows of A, in place or packed; strides in bytes.
  struct RowsOfA {
    const std::byte* at = nullptr;
    std::ptrdiff_t row = 0, step = 0;
  };

  /// Pairs of elements of some steps, in whole tiles of AMX.
  std::int64_t pairs_of(std::int64_t steps) const {
    const std::int64_t pairs = ceil_div(steps, 2);
    return plan_.is_amx ? round_up(pairs, kAmxVnni) : pairs;
  }
  const std::uint16_t* source_of_a(const GemmOperands& operands, const GemmRows& rows) const {
    return static_cast<const std::uint16_t*>(operands.a) + (plan_.spec.transpose_a
                                                                ? rows.k * plan_.a_row + rows.row
                                                                : rows.row * plan_.a_row + rows.k);
  }
  bool has_a_panels() const { return plan_.packs_a && plan_.spec.transpose_a && !plan_.is_amx; }
  void pack_a_panels(const std::uint16_t* from, const GemmRows& rows, std::byte* to,
                     std::byte* line) const;
  void pack_panel(const GemmOperands& operands, const GemmColumns& columns, std::int64_t column,
                  std::int64_t count, std::int64_t width, std::uint32_t* to, std::byte* line) const;
  F16End end_of(const GemmOperands& operands, const GemmTask& task, std::int64_t column) const;
  void consume(const GemmOperands& operands, const GemmTask& task, VnniPanel panel,
               std::int64_t column) const;
  void multiply(const VnniPanel& panel) const {
    plan_.is_amx ? plan_.spec.cpu.amx->run_b_panel(panel) : run_vnni(panel);
  }

  F16Plan plan_;
};

// ---- packing ----

void VnniKernel::pack_a(const GemmOperands& operands, const GemmRows& rows, std::byte* to,
                        std::byte* scratch) const {
  const std::uint16_t* from = source_of_a(operands, rows);
  std::byte* line = plan_.line.in(scratch);
  auto* elements = reinterpret_cast<std::uint16_t*>(to);
  if (!plan_.spec.transpose_a) {
    pad_rows(from, plan_.a_row, rows.rows, rows.steps, 2 * pairs_of(rows.steps), elements);
  } else if (has_a_panels()) {
    pack_a_panels(from, rows, to, line);
  } else {
    pad_columns(plan_.spec.cpu.isa, from, plan_.a_row, rows.rows, rows.steps, elements,
                reinterpret_cast<std::uint32_t*>(line));
  }
}

/// Packs rows of a transposed A into A panels.
void VnniKernel::pack_a_panels(const std::uint16_t* from, const GemmRows& rows, std::byte* to,
                               std::byte* line) const {
  const std::int64_t pairs = pairs_of(rows.steps);
  auto* row = reinterpret_cast<std::uint32_t*>(line);
  auto* panels = reinterpret_cast<std::uint32_t*>(to);
  for (std::int64_t p = 0; p < pairs; ++p) {
    pack_vnni(from + 2 * p * plan_.a_row, plan_.a_row,
              std::min<std::int64_t>(2, rows.steps - 2 * p), rows.rows, row, 0);
    std::uint32_t* at = panels + p * kVnniPanelRows;
    for (std::int64_t i = 0; i < rows.rows; i += kVnniPanelRows) {
      std::memcpy(at, row + i, kVnniPanelRows * sizeof(std::uint32_t));
      at += kVnniPanelRows * pairs;
    }
  }
}

void VnniKernel::pack_b(const GemmOperands& operands, const GemmColumns& columns, std::byte* to,
                        std::byte* scratch) const {
  const GemmPanels& panels = *columns.panels;
  const std::int64_t pairs = pairs_of(columns.steps);
  for (std::int64_t p = columns.first; p < columns.last; ++p) {
    const auto [offset, width, count] = panels.panel(p, kLanes);
    pack_panel(operands, columns, panels.column + offset, count, width,
               reinterpret_cast<std::uint32_t*>(to) + offset * pairs, plan_.line.in(scratch));
  }
}

/// Packs `count` columns of B as a panel of `width` columns.
void VnniKernel::pack_panel(const GemmOperands& operands, const GemmColumns& columns,
                            std::int64_t column, std::int64_t count, std::int64_t width,
                            std::uint32_t* to, std::byte* line) const {
  const F16GemmSpec& spec = plan_.spec;
  const std::int64_t steps = columns.steps;
  const std::int64_t at =
      spec.transpose_b ? column * spec.k + columns.k : columns.k * spec.n + column;
  const void* from = static_cast<const std::byte*>(operands.b) + at * (spec.rounds_b ? 4 : kBytes);
  if (spec.transpose_b) {
    return pack_vnni_columns(spec.cpu.isa, from, spec.k, steps, pairs_of(steps), count, width, to,
                             reinterpret_cast<std::uint16_t*>(line),
                             spec.rounds_b ? plan_.narrow : nullptr);
  }
  std::fill(to + ceil_div(steps, 2) * width, to + pairs_of(steps) * width, 0U);
  if (spec.rounds_b) {
    pack_vnni(static_cast<const float*>(from), spec.n, steps, count, to, width);
  } else {
    pack_vnni(static_cast<const std::uint16_t*>(from), spec.n, steps, count, to, width);
  }
}

// ---- products ----

F16End VnniKernel::end_of(const GemmOperands& operands, const GemmTask& task,
                          std::int64_t column) const {
  const F16GemmSpec& spec = plan_.spec;
  const std::int64_t row = task.rows.row;
  F16End end{.scale = static_cast<float>(spec.alpha * operands.factor)};
  end.c_row = spec.n;
  if (is_f16(spec.c_dtype)) {
    end.f16_c = static_cast<std::uint16_t*>(operands.c) + row * spec.n + column;
  } else {
    end.c = static_cast<float*>(operands.c) + row * spec.n + column;
  }
  if (!task.is_first) {
    end.start = end.c;
    end.start_row = end.c_row;
  } else if (spec.start != GemmStart::kZero) {
    const bool is_row = spec.start == GemmStart::kRow;
    const std::int64_t at = (is_row ? 0 : row * spec.n) + column;
    if (is_f16(spec.start_dtype)) {
      end.f16_start = static_cast<const std::uint16_t*>(operands.start) + at;
    } else {
      end.start = static_cast<const float*>(operands.start) + at;
    }
    end.start_row = is_row ? 0 : spec.n;
  }
  end.relu = spec.relu && task.is_last;
  return end;
}

void VnniKernel::compute(const GemmOperands& operands, const GemmTask& task) const {
  const GemmPanels& panels = *task.columns.panels;
  const std::int64_t pairs = pairs_of(task.rows.steps);
  RowsOfA a{.at = task.a, .row = pairs * 4, .step = 4};
  if (!plan_.packs_a) {
    a.at = reinterpret_cast<const std::byte*>(source_of_a(operands, task.rows));
    a.row = plan_.a_row * 2;
  } else if (has_a_panels()) {
    a.row = 4;
    a.step = kVnniPanelRows * 4;
  }
  for (std::int64_t p = task.columns.first; p < task.columns.last; ++p) {
    const auto [offset, width, count] = panels.panel(p, kLanes);
    const std::int64_t column = panels.column + offset;
    VnniPanel panel{.a = a.at,
                    .a_row = a.row,
                    .a_step = a.step,
                    .b = reinterpret_cast<const std::uint32_t*>(task.b) + offset * pairs,
                    .rows = task.rows.rows,
                    .pairs = pairs,
                    .vectors = static_cast<int>(width / kLanes),
                    .columns = count,
                    .end = {}};
    if (plan_.spec.has_consumer) {
      consume(operands, task, panel, column);
    } else {
      panel.end = end_of(operands, task, column);
      multiply(panel);
    }
  }
}

/// Passes sums to the consumer, a few rows at a time, and prefetches matrices that it reads.
void VnniKernel::consume(const GemmOperands& operands, const GemmTask& task, VnniPanel panel,
                         std::int64_t column) const {
  float* const sums = plan_.sums.in(task.scratch);
  panel.end = {.c = sums,
               .c_row = kBPanelColumns,
               .scale = static_cast<float>(plan_.spec.alpha * operands.factor)};
  const std::int64_t all = panel.rows;
  for (std::int64_t i = 0; i < all; i += plan_.consumer_rows) {
    panel.rows = std::min(plan_.consumer_rows, all - i);
    const std::int64_t row = task.rows.row + i;
    for (const void* matrix : operands.reads_next) {
      if (matrix == nullptr) continue;
      const float* from = static_cast<const float*>(matrix) + row * plan_.spec.n + column;
      for (std::int64_t r = 0; r < panel.rows; ++r, from += plan_.spec.n) {
        for (std::int64_t j = 0; j < panel.columns; j += kLanes) __builtin_prefetch(from + j, 1, 2);
      }
    }
    multiply(panel);
    operands.finished(operands.context, {.c = sums,
                                         .c_row = kBPanelColumns,
                                         .row = row,
                                         .rows = panel.rows,
                                         .column = column,
                                         .columns = panel.columns});
    panel.a += has_a_panels() ? panel.rows * 4 * panel.pairs : panel.rows * panel.a_row;
  }
}

}  // namespace

PreparedGemm prepare_vnni_gemm(const F16GemmSpec& spec, bool is_amx) {
  F16Plan plan;
  plan.spec = spec;
  plan.narrow = find_conversion(spec.cpu.isa, DataType::kFloat32, spec.dtype);
  plan.a_row = spec.a_row_length > 0 ? spec.a_row_length : spec.transpose_a ? spec.m : spec.k;
  plan.is_amx = is_amx;
  const std::int64_t unit_k = plan.is_amx ? 2 * kAmxVnni : 2;
  plan.packs_a = spec.transpose_a || spec.k % unit_k != 0;
  const bool is_whole = is_f16(spec.c_dtype) || spec.has_consumer;
  const std::int64_t blocks = is_whole ? 1 : std::max<std::int64_t>(ceil_div(spec.k, kBlockK), 1);
  plan.block_k = std::max(round_up(ceil_div(spec.k, blocks), unit_k), unit_k);
  const auto fitting = [&](std::int64_t most, std::int64_t unit) {
    return std::clamp(kBlockBytes / (plan.block_k * kBytes) / unit * unit, unit, most);
  };
  plan.block_n = round_up(std::min(spec.n, fitting(kBlockN, kVnniMaxVectors * kLanes)), kLanes);
  plan.consumer_rows = plan.is_amx ? 64 : 48;
  const std::int64_t most_rows = fitting(kBlockM, plan.consumer_rows);
  const std::int64_t row_blocks = std::max<std::int64_t>(ceil_div(spec.m, most_rows), 1);
  plan.block_m =
      row_blocks == 1 ? spec.m : round_up(ceil_div(spec.m, row_blocks), plan.consumer_rows);
  // The last A panel is packed in full, and lines are read in full vectors.
  const std::int64_t row_room = round_up(plan.block_m, plan.consumer_rows) + kLanes;
  const std::int64_t k_room = round_up(plan.block_k, 2 * kAmxVnni);
  ScratchLayout own;
  plan.sums = own.reserve<float>(spec.has_consumer ? plan.consumer_rows * kBPanelColumns : 0);
  plan.line = own.reserve<std::byte>(
      std::max({kLanes * k_room * 4, kLanes * row_room * 4, plan.block_n * 4}));
  GemmBlocking blocking{.m = plan.block_m, .n = plan.block_n, .k = plan.block_k};
  blocking.row_unit = plan.consumer_rows;
  blocking.unit = kLanes;
  blocking.panel_units = kVnniMaxVectors;
  blocking.a_bytes = plan.packs_a ? aligned_bytes<std::byte>(row_room * k_room * kBytes) : 0;
  blocking.b_unit_bytes = kLanes * k_room * kBytes;
  blocking.scratch_bytes = own.size_bytes();
  blocking.has_consumer = spec.has_consumer;
  return drive_gemm(spec.m, spec.n, spec.k, spec.threads, blocking,
                    std::make_unique<VnniKernel>(plan));
}

}  // namespace onnxgrad::device

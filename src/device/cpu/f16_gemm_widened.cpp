#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/cpu/convert.h"
#include "device/cpu/f16_gemm_plan.h"
#include "device/cpu/gemm_cost.h"
#include "device/cpu/gemm_source.h"

// GEMM of 16-bit floats in float32, where no instructions multiply them: a blocked GEMM
// (gemm_fma.cpp) or a split GEMM (gemm_split.cpp) whose operands are converted as blocks of
// them are packed. A C of 16-bit floats is rounded part by part by the GEMM's consumer.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kPartColumns = 256;  // maximum of the columns that end_row() ends at once

/// Epilogue of a float32 GEMM whose sums are not simply stored.
struct Ending {
  PreparedGemm gemm;
  std::int64_t m = 0, n = 0;
  bool has_consumer = false;  ///< the GEMM passes parts of C; else all of C is in scratch
  bool narrows = false;
  bool adds_f16_row = false;     ///< the GEMM's `start` is the row in float32
  bool adds_f16_matrix = false;  ///< added by the epilogue
  bool relu = false;             ///< after adds_f16_matrix
  ConvertFn widen = nullptr, narrow = nullptr;
  ScratchArray<float> row = {};   ///< the row in float32
  ScratchArray<float> sums = {};  ///< [m, n]
};

/// An Ending with the operands of a run.
struct EndingRun {
  const Ending& ending;
  const std::uint16_t* start = nullptr;
  void* c = nullptr;

  void end_row(const float* sums, std::int64_t at, std::int64_t columns) const {
    alignas(64) float line[kPartColumns];
    if (ending.adds_f16_matrix) {
      ending.widen(line, start + at, columns);
      for (std::int64_t j = 0; j < columns; ++j) {
        const float sum = line[j] + sums[j];
        line[j] = ending.relu && sum < 0 ? 0 : sum;  // NaN stays
      }
      sums = line;
    }
    if (ending.narrows) {
      ending.narrow(static_cast<std::uint16_t*>(c) + at, sums, columns);
    } else {
      std::copy_n(sums, columns, static_cast<float*>(c) + at);
    }
  }
};

void end_part(const void* context, const GemmBlock& block) {
  const auto& run = *static_cast<const EndingRun*>(context);
  const auto* sums = static_cast<const float*>(block.c);
  for (std::int64_t i = 0; i < block.rows; ++i, sums += block.c_row) {
    const std::int64_t at = (block.row + i) * run.ending.n + block.column;
    for (std::int64_t j = 0; j < block.columns; j += kPartColumns) {
      run.end_row(sums + j, at + j, std::min(kPartColumns, block.columns - j));
    }
  }
}

void run_with_ending(const void* data, const GemmOperands& operands) {
  const auto& ending = *static_cast<const Ending*>(data);
  EndingRun run{.ending = ending, .c = operands.c};
  if (ending.adds_f16_matrix) run.start = static_cast<const std::uint16_t*>(operands.start);
  GemmOperands inner = operands;
  if (ending.adds_f16_row) {
    float* row = ending.row.in(operands.scratch);
    ending.widen(row, operands.start, ending.n);
    inner.start = row;
  }
  if (ending.has_consumer) {
    inner.finished = end_part;
    inner.context = &run;
    inner.reads_next = {operands.c, run.start};
    inner.reads_next_size = ending.narrows ? 2 : 4;
    return ending.gemm(inner);
  }
  inner.c = ending.sums.in(operands.scratch);
  ending.gemm(inner);
  end_part(&run, {.c = inner.c, .c_row = ending.n, .rows = ending.m, .columns = ending.n});
}

/// Returns the float32 GEMM without its epilogue.
GemmSpec in_float32(const F16GemmSpec& spec) {
  GemmSpec gemm{.m = spec.m,
                .n = spec.n,
                .k = spec.k,
                .transpose_a = spec.transpose_a,
                .transpose_b = spec.transpose_b,
                .alpha = spec.alpha,
                .has_run_time_factor = true,
                .threads = spec.threads,
                .cpu = spec.cpu};
  if (spec.k == 0) return gemm;
  gemm.a_row_length = spec.a_row_length;
  gemm.a_source = source_of_f16(spec.cpu.isa, spec.dtype);
  gemm.b_source = source_of_f16(spec.cpu.isa, spec.dtype, spec.rounds_b);
  return gemm;
}

}  // namespace

bool f16_gemm::can_have_consumer_widened(const F16GemmSpec& spec) {
  return can_have_consumer(in_float32(spec));
}

bool f16_gemm::is_widened_in_parts(const F16GemmSpec& spec) {
  return choose_gemm(in_float32(spec), machine_of(spec.cpu)) == GemmChoice::kSplit;
}

PreparedGemm f16_gemm::prepare_widened(const F16GemmSpec& spec) {
  GemmSpec gemm = in_float32(spec);
  const bool adds_f16 = spec.start != GemmStart::kZero && is_f16(spec.start_dtype);
  const bool adds_f16_matrix = adds_f16 && spec.start == GemmStart::kMatrix;
  const bool ends = is_f16(spec.c_dtype) || adds_f16;
  if (!adds_f16_matrix) {
    gemm.start = spec.start;
    gemm.relu = spec.relu;
  }
  gemm.has_consumer = spec.has_consumer || (ends && can_have_consumer(gemm));
  PreparedGemm prepared = prepare_gemm(gemm);
  prepared.label = fmt::format("{} widened {}", dtype_name(spec.dtype), prepared.label);
  if (!ends) return prepared;
  auto ending = std::make_shared<Ending>();
  ending->m = spec.m, ending->n = spec.n;
  ending->has_consumer = gemm.has_consumer;
  ending->narrows = is_f16(spec.c_dtype);
  ending->adds_f16_row = adds_f16 && !adds_f16_matrix;
  ending->adds_f16_matrix = adds_f16_matrix;
  ending->relu = spec.relu;
  ending->widen = find_conversion(spec.cpu.isa, spec.dtype, DataType::kFloat32);
  ending->narrow = find_conversion(spec.cpu.isa, DataType::kFloat32, spec.dtype);
  PreparedGemm all;
  all.fn = run_with_ending;
  all.label = prepared.label;
  ScratchLayout layout;
  layout.reserve<std::byte>(prepared.scratch_bytes);  // first: the product gets the whole block
  if (ending->adds_f16_row) ending->row = layout.reserve<float>(spec.n);
  if (!ending->has_consumer) ending->sums = layout.reserve<float>(spec.m * spec.n);
  all.scratch_bytes = layout.size_bytes();
  ending->gemm = std::move(prepared);
  all.data = std::move(ending);
  return all;
}

}  // namespace onnxgrad::device

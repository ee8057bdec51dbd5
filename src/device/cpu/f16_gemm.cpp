#include "device/cpu/f16_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"
#include "device/cpu/convert.h"
#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_cost.h"
#include "device/cpu/gemm_source.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/scratch_layout.h"

// Choice of the implementation of a 16-bit GEMM; and kWidened, where no instructions multiply
// 16-bit floats: a blocked GEMM (gemm_fma.cpp) or a split GEMM (gemm_split.cpp) whose operands are
// converted as blocks of them are packed. A C of 16-bit floats is rounded part by part by the
// GEMM's consumer.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kPartColumns = 256;  // maximum of the columns that end_row() ends at once
// Sizes of k with a consumer of kVnni and kAmx: at the largest, packed B panels fill the L2 cache;
// for less than the smallest, to read a matrix shaped like C B panel by B panel takes longer than
// to multiply.
constexpr std::int64_t kLeastConsumed = 512;
constexpr std::int64_t kMostConsumed = 4096;
constexpr double kSharedFlops = 1 << 20;  // as in gemm.cpp

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

PreparedGemm prepare_widened(const F16GemmSpec& spec) {
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

void run_nothing(const void* /*data*/, const GemmOperands& /*operands*/) {}

F16GemmChoice choose(const F16GemmSpec& spec) {
  if (spec.choice != F16GemmChoice::kBest) return spec.choice;
  const bool is_bfloat16 = spec.dtype == DataType::kBfloat16;
  constexpr std::int64_t kAmxRows = 16;  // fewer leave most of a tile empty
  if (is_bfloat16 && has_f16_gemm(F16GemmChoice::kAmx, spec.cpu) && spec.m >= kAmxRows &&
      spec.n >= kVnniLanes && spec.k >= 2 * kAmxVnni) {
    return F16GemmChoice::kAmx;
  }
  return is_bfloat16 && has_f16_gemm(F16GemmChoice::kVnni, spec.cpu) ? F16GemmChoice::kVnni
                                                                     : F16GemmChoice::kWidened;
}

/// Whether a GEMM with a consumer and a small k is widened, which passes longer rows of C.
bool has_consumer_rows(const F16GemmSpec& spec) {
  return spec.has_consumer && spec.choice == F16GemmChoice::kBest && spec.k < kLeastConsumed &&
         choose_gemm(in_float32(spec), machine_of(spec.cpu)) == GemmChoice::kSplit;
}

bool is_widened(const F16GemmSpec& spec) {
  return choose(spec) == F16GemmChoice::kWidened || has_consumer_rows(spec);
}

}  // namespace

bool has_f16_gemm(F16GemmChoice choice, const CpuOptions& cpu) {
  if (choice == F16GemmChoice::kVnni) {
    return cpu_has_bf16_dot() && gemm_target<float>(cpu.isa).lanes == kVnniLanes;
  }
  if (choice == F16GemmChoice::kAmx) return cpu.amx != nullptr;
  return true;
}

bool can_have_consumer(const F16GemmSpec& spec) {
  if (is_widened(spec)) return can_have_consumer(in_float32(spec));
  return spec.k >= kLeastConsumed && spec.k <= kMostConsumed;
}

F16GemmSpec f16_gemm_spec(const GemmSpec& gemm) {
  return {.dtype = gemm.dtype,
          .m = gemm.m,
          .n = gemm.n,
          .k = gemm.k,
          .transpose_a = gemm.transpose_a,
          .transpose_b = gemm.transpose_b,
          .a_row_length = gemm.a_row_length,
          .start = gemm.start,
          .alpha = gemm.alpha,
          .relu = gemm.relu,
          .threads = gemm.threads,
          .cpu = gemm.cpu};
}

PreparedGemm prepare_f16_gemm(const F16GemmSpec& given) {
  ONNXGRAD_ASSERT(is_f16(given.dtype) && given.m >= 0 && given.n >= 0 && given.k >= 0);
  ONNXGRAD_ASSERT(!given.has_consumer ||
                  (can_have_consumer(given) && given.start == GemmStart::kZero && !given.relu &&
                   !is_f16(given.c_dtype)));
  F16GemmSpec spec = given;
  const double flops =
      2.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) * static_cast<double>(spec.k);
  if (flops < kSharedFlops) spec.threads = 1;
  if (is_widened(spec)) return prepare_widened(spec);
  const bool is_amx = choose(spec) == F16GemmChoice::kAmx;
  PreparedGemm prepared;
  prepared.fn = run_nothing;
  if (spec.m > 0 && spec.n > 0) prepared = prepare_vnni_gemm(spec, is_amx);
  prepared.label = fmt::format("{} {} {}x{}x{}", dtype_name(spec.dtype),
                               is_amx ? "tiles AMX" : "VNNI AVX512-BF16", spec.m, spec.n, spec.k);
  return prepared;
}

}  // namespace onnxgrad::device

#include "device/cpu/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "device/cpu/amx_target.h"
#include "device/cpu/gemm_cost.h"
#include "device/cpu/gemm_fma.h"
#include "device/cpu/gemm_plan.h"
#include "device/cpu/gemm_small.h"
#include "device/cpu/gemm_split.h"
#include "device/cpu/packed_gemm.h"

namespace onnxgrad::device {
namespace {

// Multiply-adds from which threads share a GEMM: some ten microseconds, ten times their barrier.
constexpr std::int64_t kSharedGemm = std::int64_t{1} << 19;
// Rows of multiply-adds that take as long as to read an element of B from beyond the L2 cache.
constexpr std::int64_t kRowsOfRead = 4;
// Maximum of k with a consumer, whose blocks of C are completed one after the other.
constexpr std::int64_t kMaxConsumerSteps = 8192;

void run_nothing(const void* /*data*/, const GemmOperands& /*operands*/) {}

template <class T>
GemmProblem<T> make_problem(const GemmSpec& spec) {
  const bool is_part = spec.a_row_length != 0;
  ONNXGRAD_ASSERT(!is_part || spec.a_source || (spec.choice == GemmChoice::kTiles && spec.n > 1));
  ONNXGRAD_ASSERT(!spec.a_source || spec.b_source);
  ONNXGRAD_ASSERT(!spec.b_is_packed || can_pack_b(spec));
  ONNXGRAD_ASSERT(!spec.has_consumer || can_have_consumer(spec));
  ONNXGRAD_ASSERT((!spec.is_scaled && !spec.sums_columns) || can_scale(spec));
  const bool simple =
      spec.start == GemmStart::kZero && spec.alpha == 1 && !spec.has_run_time_factor;
  GemmProblem<T> gemm{.target = &gemm_target<T>(spec.cpu.isa),
                      .m = spec.m,
                      .n = spec.n,
                      .k = spec.k,
                      // A matrix with one row or one column has the same bytes as its transpose.
                      .transpose_a = spec.transpose_a && (is_part || (spec.m != 1 && spec.k != 1)),
                      .transpose_b = spec.transpose_b && (spec.b_source.read != nullptr ||
                                                          (spec.n != 1 && spec.k != 1)),
                      .a_source = spec.a_source,
                      .b_source = spec.b_source,
                      .start = spec.start,
                      .more = spec.more,
                      .finish = spec.relu ? GemmFinish::kRelu
                                : simple  ? GemmFinish::kStore
                                          : GemmFinish::kAdd,
                      .alpha = static_cast<T>(spec.alpha),
                      .is_scaled = spec.is_scaled,
                      .sums_columns = spec.sums_columns,
                      .has_consumer = spec.has_consumer,
                      .threads = spec.threads};
  gemm.a_line = is_part ? spec.a_row_length : gemm.transpose_a ? spec.m : spec.k;
  const auto* const last = std::find(spec.more.begin(), spec.more.end(), GemmStart::kZero);
  gemm.more_count = static_cast<int>(last - spec.more.begin());
  ONNXGRAD_ASSERT(gemm.more_count == 0 || (spec.start != GemmStart::kZero && spec.n > 1));
  return gemm;
}

template <class T>
PreparedGemm prepare(const GemmSpec& spec) {
  GemmProblem<T> gemm = make_problem<T>(spec);
  const auto named = [&](PreparedGemm prepared, std::string_view name) {
    prepared.label = fmt::format("{} {} {}x{}x{}", name, gemm.target->name, spec.m, spec.n, spec.k);
    return prepared;
  };
  if (spec.m == 0 || spec.n == 0) {
    PreparedGemm nothing;
    nothing.fn = run_nothing;
    return named(nothing, "empty");
  }
  GemmSpec read = spec;
  if (spec.b_is_packed) read.transpose_b = false;
  const GemmChoice choice = choose_gemm(read, machine_of(spec.cpu));
  const bool is_small = choice == GemmChoice::kTiles || choice == GemmChoice::kDots;
  const bool is_shared = std::max(spec.m, kRowsOfRead) * spec.n * spec.k >= kSharedGemm;
  if ((is_small || spec.b_is_packed) && !is_shared) gemm.threads = 1;
  if (spec.b_is_packed) return named(prepare_packed_fma_gemm(gemm, choice), "packed");
  if (is_small) {
    PreparedGemm prepared = prepare_small_gemm(gemm, choice == GemmChoice::kDots);
    return named(prepared, prepared.label);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (choice == GemmChoice::kSplit) {
      return named(prepare_split_gemm(gemm, spec.cpu.amx->split, spec.cpu.machine), "split");
    }
  }
  const bool packs_a = choice == GemmChoice::kBlockedPackedA;
  return named(prepare_fma_gemm(gemm, packs_a), packs_a ? "packed A" : "blocked");
}

/// Whether a split GEMM, which packs B's parts each time, pays even if float32 GEMM could read a B
/// packed once (measured with AMX on layers of BERT).
bool packs_parts_anew(const GemmSpec& spec) {
  constexpr std::int64_t kMany = 256;
  return spec.m >= kMany || spec.n >= kMany;
}

bool runs_in_blocks(const GemmSpec& spec) {
  const GemmChoice choice = choose_gemm(spec, machine_of(spec.cpu));
  return choice == GemmChoice::kBlocked || choice == GemmChoice::kBlockedPackedA ||
         choice == GemmChoice::kSplit;
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
void pack_b(const GemmProblem<T>& gemm, const T* b, std::int64_t k0, std::int64_t steps,
            std::int64_t j0, std::int64_t columns, T* to, std::ptrdiff_t to_step) {
  if (!gemm.transpose_b) {
    gemm.target->copy(b + k0 * gemm.n + j0, gemm.n, to, to_step, steps, columns);
    return;
  }
  gemm.target->transpose(b + j0 * gemm.k + k0, gemm.k, to, to_step, columns, steps);
  const std::int64_t padded = round_up(columns, gemm.target->lanes);
  if (padded == columns) return;
  for (std::int64_t k = 0; k < steps; ++k) {
    std::fill(to + k * to_step + columns, to + k * to_step + padded, T(0));
  }
}

bool can_have_consumer(const GemmSpec& spec) {
  return spec.m > 0 && spec.n > 1 && spec.k <= kMaxConsumerSteps && runs_in_blocks(spec);
}

bool can_scale(const GemmSpec& spec) {
  return spec.m > 0 && spec.n > 1 && !spec.has_consumer && !spec.b_is_packed &&
         runs_in_blocks(spec);
}

bool can_pack_b(const GemmSpec& spec) {
  GemmSpec read = spec;
  read.transpose_b = false;
  if (spec.m == 0 || spec.n <= 1 || spec.k == 0 || spec.transpose_a || spec.has_consumer ||
      spec.a_row_length != 0) {
    return false;
  }
  GemmChoice choice = choose_gemm(read, machine_of(read.cpu));
  if (choice == GemmChoice::kSplit) {
    if (packs_parts_anew(spec)) return false;
    read.b_is_packed = true;
    choice = choose_gemm(read, machine_of(read.cpu));
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
template void pack_b(const GemmProblem<float>&, const float*, std::int64_t, std::int64_t,
                     std::int64_t, std::int64_t, float*, std::ptrdiff_t);
template void pack_b(const GemmProblem<double>&, const double*, std::int64_t, std::int64_t,
                     std::int64_t, std::int64_t, double*, std::ptrdiff_t);

}  // namespace onnxgrad::device

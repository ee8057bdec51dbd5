#include <algorithm>

#include "device/cpu/gemm_blocked.h"
#include "device/cpu/gemm_column_sums.h"
#include "device/cpu/gemm_plan.h"

// Sizes of a blocked GEMM's blocks, and its split among threads.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kBlockM = 192;
// Maximum bytes of a block of B with all k, as for a C with a consumer, unless that leaves fewer
// than kLeastBlockN columns.
constexpr std::int64_t kWholeBytes = std::int64_t{2} << 20;
constexpr std::int64_t kLeastBlockN = 128;
constexpr std::int64_t kLeastRows = 128;  // rows per thread, if each packs all of B

/// Maximum of the rows that one thread computes.
template <class T>
std::int64_t most_rows(const GemmPlan<T>& plan) {
  if (!plan.split_m) return plan.m;
  return ceil_div(ceil_div(plan.m, kGemmMaxRows), plan.threads) * kGemmMaxRows;
}

/// Whether each thread has rows of its own and packs all of B, or columns and packs all of A.
template <class T>
bool shares_rows(const GemmPlan<T>& plan) {
  if (shares_rows_of_blocks(plan.m, plan.n, plan.target->lanes, plan.threads)) return true;
  // A consumer reads and writes matrices shaped like C. If these outweigh B, each thread has rows
  // of its own there, not cache lines beside those of another thread.
  return plan.has_consumer && plan.m >= plan.k && plan.m >= kLeastRows * plan.threads;
}

/// Columns of a block with a consumer, out of a thread's `share` columns: B is packed for all k.
template <class T>
std::int64_t consumer_columns(const GemmPlan<T>& plan, std::int64_t share) {
  const std::int64_t fitting = kWholeBytes / (plan.k * std::int64_t{sizeof(T)});
  const std::int64_t most = std::clamp(fitting, kLeastBlockN, most_columns(plan));
  return ceil_div(share, ceil_div(share, most));
}

/// Steps of equal blocks of k, rather than a small last one.
template <class T>
std::int64_t equal_steps(const GemmPlan<T>& plan) {
  return ceil_div(plan.k, std::max<std::int64_t>(ceil_div(plan.k, kBlockSteps), 1));
}

}  // namespace

template <class T>
std::int64_t plan_packed(GemmPlan<T>& plan, bool in_blocks) {
  plan.block_k = in_blocks ? equal_steps(plan) : plan.k;
  plan.block_m = std::min(plan.m, kBlockM);
  const std::int64_t b_panels = plan.columns.wide_count + plan.columns.narrow_count;
  // Fraction of the work of the busiest thread. If equal, threads share the B panels: each reads
  // its own.
  const auto largest = [&plan](std::int64_t units) {
    return static_cast<double>(ceil_div(units, plan.threads)) / static_cast<double>(units);
  };
  plan.split_m = largest(ceil_div(plan.m, kGemmMaxRows)) < largest(b_panels);
  const std::int64_t elements = plan.packs_a ? packed_a_elements(plan) : 0;
  plan.thread_scratch = round_up(elements * static_cast<std::int64_t>(sizeof(T)), 64);
  return plan.thread_scratch * plan.threads;
}

template <class T>
std::int64_t plan_blocked(GemmPlan<T>& plan) {
  const std::int64_t lanes = plan.target->lanes;
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  plan.block_k = equal_steps(plan);
  plan.block_m = std::min(plan.m, kBlockM);
  plan.split_m = shares_rows(plan);
  const std::int64_t share = plan.split_m ? plan.n : ceil_div(plan.n, plan.threads);
  const std::int64_t columns =
      plan.has_consumer ? consumer_columns(plan, share) : std::min(plan.n, most_columns(plan));
  plan.block_n = ceil_div(columns, lanes) * lanes;
  plan.packs_in_turn = has_small_b_panels(plan) && most_rows(plan) <= plan.block_m;
  std::int64_t elements = packed_b_elements(plan);
  if (plan.packs_a) elements += packed_a_elements(plan);
  elements += converted_a_elements(plan) + converted_lines(plan) + consumed_elements(plan);
  if (plan.has_consumer && plan.block_k < plan.k) elements += plan.block_m * plan.block_n;
  plan.thread_scratch = round_up(elements * kSize, 64);
  if (plan.sums_columns) {
    plan.sums_offset = plan.thread_scratch;
    plan.thread_scratch += ColumnSums<T>::bytes(plan.n);
  }
  return plan.thread_scratch * plan.threads;
}

template std::int64_t plan_packed(GemmPlan<float>& plan, bool in_blocks);
template std::int64_t plan_packed(GemmPlan<double>& plan, bool in_blocks);
template std::int64_t plan_blocked(GemmPlan<float>& plan);
template std::int64_t plan_blocked(GemmPlan<double>& plan);

}  // namespace onnxgrad::device

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

/// Lays out the scratch of the threads and returns its bytes.
template <class T>
std::int64_t lay_out(GemmPlan<T>& plan) {
  ScratchLayout own;
  plan.blocked = {.packed_b = own.reserve<T>(packed_b_elements(plan)),
                  .packed_a = own.reserve<T>(plan.packs_a ? packed_a_elements(plan) : 0),
                  .converted_a = own.reserve<T>(converted_a_elements(plan)),
                  .lines = own.reserve<T>(converted_lines(plan)),
                  .consumed = own.reserve<T>(consumed_elements(plan))};
  const bool has_block = plan.has_consumer && plan.block_k < plan.k;
  plan.blocked.c = own.reserve<T>(has_block ? plan.block_m * plan.block_n : 0);
  if (plan.sums_columns) ColumnSums<T>::reserve(plan, own);
  ScratchLayout all;
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  return all.size_bytes();
}

}  // namespace

template <class T>
std::int64_t plan_packed(GemmPlan<T>& plan, bool in_blocks) {
  plan.block_k = in_blocks ? equal_steps(plan) : plan.k;
  plan.block_m = std::min(plan.m, kBlockM);
  const std::int64_t b_panels = plan.columns.count();
  // Fraction of the work of the busiest thread; threads share the B panels if equal: each reads its
  // own.
  const auto largest = [&plan](std::int64_t units) {
    return static_cast<double>(ceil_div(units, plan.threads)) / static_cast<double>(units);
  };
  plan.split_m = largest(ceil_div(plan.m, kGemmMaxRows)) < largest(b_panels);
  return lay_out(plan);
}

template <class T>
std::int64_t plan_blocked(GemmPlan<T>& plan) {
  const std::int64_t lanes = plan.target->lanes;
  plan.block_k = equal_steps(plan);
  plan.block_m = std::min(plan.m, kBlockM);
  plan.split_m = shares_rows(plan);
  const std::int64_t share = plan.split_m ? plan.n : ceil_div(plan.n, plan.threads);
  const std::int64_t columns =
      plan.has_consumer ? consumer_columns(plan, share) : std::min(plan.n, most_columns(plan));
  plan.block_n = ceil_div(columns, lanes) * lanes;
  plan.packs_in_turn = has_small_b_panels(plan) && most_rows(plan) <= plan.block_m;
  return lay_out(plan);
}

template std::int64_t plan_packed(GemmPlan<float>& plan, bool in_blocks);
template std::int64_t plan_packed(GemmPlan<double>& plan, bool in_blocks);
template std::int64_t plan_blocked(GemmPlan<float>& plan);
template std::int64_t plan_blocked(GemmPlan<double>& plan);

}  // namespace onnxgrad::device

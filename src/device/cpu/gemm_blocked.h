#ifndef ONNXGRAD_DEVICE_CPU_GEMM_BLOCKED_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_BLOCKED_H_

#include <cstdint>

#include "device/cpu/gemm_plan.h"

// Sizes that the plan of a blocked GEMM (gemm_blocked_plan.cpp) and its driver (gemm_blocked.cpp)
// share.

namespace onnxgrad::device {

/// Maximum of block_n, the columns of a block.
inline constexpr std::int64_t kBlockN = 512;
inline constexpr std::int64_t kBlockNOfAPanels =
    1024;                                            // with a packed A, which more columns then use
inline constexpr std::int64_t kConsumedBytes = 512;  // of C that the consumer gets per row

template <class T>
int b_panel_vectors(const GemmPlan<T>& plan) {
  return plan.packs_a ? plan.target->a_panel_vectors : plan.target->max_vectors;
}

template <class T>
std::int64_t b_panel_columns(const GemmPlan<T>& plan) {
  return static_cast<std::int64_t>(plan.target->lanes) * b_panel_vectors(plan);
}

/// Number of tiles, one below the other, that C's consumer gets at once.
template <class T>
std::int64_t consumed_tiles(const GemmPlan<T>& plan) {
  return kConsumedBytes / (b_panel_columns(plan) * static_cast<std::int64_t>(sizeof(T)));
}

/// Number of elements in the buffer of the tiles that the consumer gets at once.
template <class T>
std::int64_t consumed_elements(const GemmPlan<T>& plan) {
  return plan.has_consumer ? consumed_tiles(plan) * kGemmMaxRows * b_panel_columns(plan) : 0;
}

/// Whether a B panel leaves room for rows of A in the L1 cache. A packed A panel takes less of it
/// than rows in place, whose cache lines also hold later steps.
template <class T>
bool has_small_b_panels(const GemmPlan<T>& plan) {
  const std::int64_t small = std::int64_t{plan.packs_a ? 32 : 16} << 10;
  return plan.block_k * b_panel_columns(plan) * static_cast<std::int64_t>(sizeof(T)) <= small;
}

/// Number of elements of a packed block of A.
template <class T>
std::int64_t packed_a_elements(const GemmPlan<T>& plan) {
  return round_up(a_panel_elements(plan.transpose_a, plan.block_m, plan.block_k),
                  plan.target->lanes);
}

/// Number of elements of B that a thread has packed at a time.
template <class T>
std::int64_t packed_b_elements(const GemmPlan<T>& plan) {
  if (plan.b_is_packed) return 0;
  if (plan.packs_in_turn) return plan.block_k * b_panel_columns(plan);
  return plan.block_n * (plan.has_consumer ? plan.k : plan.block_k);
}

/// Row stride, in elements, of a converted block of A.
template <class T>
std::int64_t converted_row(const GemmPlan<T>& plan) {
  return round_up(plan.transpose_a ? plan.block_m : plan.block_k, 64 / sizeof(T));
}

/// Number of elements of a converted block of A.
template <class T>
std::int64_t converted_a_elements(const GemmPlan<T>& plan) {
  if (!plan.a_source) return 0;
  return converted_row(plan) * (plan.transpose_a ? plan.block_k : plan.block_m);
}

/// Number of elements of the buffer for rows of B that are converted before they are transposed.
template <class T>
std::int64_t converted_lines(const GemmPlan<T>& plan) {
  return plan.b_source && plan.transpose_b ? kSourceLines * kSourceSteps : 0;
}

/// Maximum of block_n, the columns of a block.
template <class T>
std::int64_t most_columns(const GemmPlan<T>& plan) {
  return plan.packs_a ? kBlockNOfAPanels : kBlockN;
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_BLOCKED_H_

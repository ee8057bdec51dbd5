#ifndef ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_plan.h"

// Split GEMM: float32 on hardware that multiplies bfloat16. A float32 scalar is the sum of three
// bfloat16 scalars, its parts: 24 bits are three times 8. The products of all parts but the three
// smallest, about 2^-26 of the whole, are summed in float32 (G. Henry, P. T. P. Tang and A.
// Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
// computations", ARITH 2019). gemm_split.cpp has the blocks, gemm_split_amx.cpp the functions.
//
// A float16 scalar is the sum of two parts, whose four products are all summed; a bfloat16 scalar
// is its only part.
//
// A packed operand is [group, slice, part]: groups of 16 rows of A or 16 columns of B, slices of 32
// steps of k. One part of a slice is an AMX tile of 16 x 16 VNNI pairs: A's is [row, pair], B's
// [pair, column]. Pair p has steps p and 16 + p of the slice.

namespace onnxgrad::device {

inline constexpr std::int64_t kSplitGroup = 16;               ///< rows or columns of a group
inline constexpr std::int64_t kSplitSteps = 32;               ///< steps of k in a slice
inline constexpr std::int64_t kSplitTile = kSplitGroup * 64;  ///< bytes of a part of a slice
inline constexpr std::int64_t kSplitBlock = 2 * kSplitGroup;  ///< rows and columns of sums

/// Rows of A or columns of B to pack into groups, `group` bytes apart. Missing rows or columns of
/// the last group become zeros.
struct SplitSource {
  const float* from = nullptr;
  std::ptrdiff_t row = 0;  ///< row stride in memory, in elements
  std::int64_t count = 0;  ///< rows of A or columns of B
  std::int64_t steps = 0;
  std::byte* to = nullptr;
  std::ptrdiff_t group = 0;
  int parts = 3;  ///< per scalar, 1 to 3
};

/// Cache lines of a matrix to prefetch: `lines` of each of `rows`.
struct SplitLines {
  const std::byte* from = nullptr;
  std::int64_t rows = 0, lines = 0;
  std::ptrdiff_t row = 0;  ///< row stride in bytes
};

/// Cache lines that are prefetched while tiles are multiplied, a few after each tile product: more
/// at once make the next tiles wait.
struct SplitFetch {
  const SplitLines* next = nullptr;
  const SplitLines* end = nullptr;
  SplitLines now;         ///< the remaining rows of the current matrix
  std::int64_t line = 0;  ///< next line of the first remaining row
  std::int64_t each = 0;  ///< lines per tile product
};

/// Number of tile products per slice; each is followed by prefetches.
constexpr std::int64_t split_gemms(int parts) { return parts == 3 ? 6 : parts * parts; }

/// Bytes of a slice of a group.
constexpr std::int64_t split_slice(int parts) { return parts * kSplitTile; }

/// Arguments of a product of packed groups: up to 32 x 32 float32 sums, of whole groups.
struct SplitGemm {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::ptrdiff_t a_group = 0, b_group = 0;  ///< bytes from one group to the next
  std::int64_t slices = 0;
  int parts = 3;           ///< per scalar, 1 to 3
  bool has_lower = false;  ///< two groups of rows
  bool is_wide = false;    ///< two groups of columns
  bool adds = false;       ///< to c; else replaces it
  float* c = nullptr;
  std::ptrdiff_t c_row = 0;
  SplitFetch* fetch = nullptr;
};

using SplitPackFn = bool (*)(const SplitSource& source);

/// Functions of a split GEMM for one kind of hardware.
struct SplitTarget {
  /// Pack rows of A and columns of B; [1]: from a matrix that is transposed in memory. Return false
  /// if an element is infinite, NaN or rounds to infinity, so that its parts do not add up.
  SplitPackFn pack_a[2] = {}, pack_b[2] = {};
  void (*multiply)(const SplitGemm& product) = nullptr;
  /// Called by each thread before its first call of multiply and after its last.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

/// Plans a split GEMM, all fields but the label. Blocks fit the caches of `machine`.
PreparedGemm prepare_split_gemm(const GemmProblem<float>& gemm, const SplitTarget& target,
                                const Machine& machine);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_H_

#ifndef ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_plan.h"

// Products of float32 on hardware that multiplies bfloat16. A number of float32 is the sum of three
// of bfloat16, its parts: 24 bits are three times 8. The products of all parts but the three
// smallest, about 2^-26 of the whole, are summed in float32 (G. Henry, P. T. P. Tang and A.
// Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
// computations", ARITH 2019). gemm_split.cpp has the blocks, gemm_split_amx.cpp what is here.
//
// A number that was float16 is the sum of two, whose four products are all summed; one of bfloat16
// is its only part.
//
// Packed operands are made of groups of 16 rows of A or 16 columns of B, of slices of 32 steps, and
// of the parts of each. One part of a slice of a group is 16 x 16 pairs, what AMX calls a
// tile: of A [row, pair], of B [pair, column]. Pair p is steps p and 16 + p of the slice.

namespace onnxgrad::device {

inline constexpr std::int64_t kSplitGroup = 16;               ///< rows or columns
inline constexpr std::int64_t kSplitSteps = 32;               ///< of a slice
inline constexpr std::int64_t kSplitTile = kSplitGroup * 64;  ///< bytes
inline constexpr std::int64_t kSplitBlock = 2 * kSplitGroup;  ///< rows and columns of sums

/// Rows or columns of a matrix that become groups, one after the other `group` bytes apart. Rows
/// that are missing in the last group are zeros.
struct SplitSource {
  const float* from = nullptr;
  std::ptrdiff_t row = 0;  ///< from row to row in memory
  std::int64_t count = 0;  ///< rows of A or columns of B
  std::int64_t steps = 0;
  std::byte* to = nullptr;
  std::ptrdiff_t group = 0;
  int parts = 3;  ///< of a number, 1 to 3
};

/// Cache lines of a matrix: `lines` of each of `rows`.
struct SplitLines {
  const std::byte* from = nullptr;
  std::int64_t rows = 0, lines = 0;
  std::ptrdiff_t row = 0;  ///< bytes from row to row
};

/// Cache lines that are prefetched while tiles are multiplied, a few after each tile product: more
/// at once make the next tiles wait.
struct SplitFetch {
  const SplitLines* next = nullptr;
  const SplitLines* end = nullptr;
  SplitLines now;         ///< what was begun: the rest of its rows
  std::int64_t line = 0;  ///< of the first of these
  std::int64_t each = 0;  ///< lines
};

/// Products of parts: as often a slice fetches lines.
constexpr std::int64_t split_gemms(int parts) { return parts == 3 ? 6 : parts * parts; }

/// Bytes of a group's slice.
constexpr std::int64_t split_slice(int parts) { return parts * kSplitTile; }

/// A block of up to 32 x 32 sums, in float32, whole groups.
struct SplitGemm {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::ptrdiff_t a_group = 0, b_group = 0;  ///< bytes from one group to the next
  std::int64_t slices = 0;
  int parts = 3;           ///< of a number, 1 to 3
  bool has_lower = false;  ///< two groups of rows
  bool is_wide = false;    ///< two groups of columns
  bool adds = false;       ///< to what is in c
  float* c = nullptr;
  std::ptrdiff_t c_row = 0;
  SplitFetch* fetch = nullptr;
};

using SplitPackFn = bool (*)(const SplitSource& source);

/// The functions for one kind of hardware.
struct SplitTarget {
  /// Rows of A as groups, and columns of B; 1: of a transposed matrix in memory. Returns false if a
  /// number is infinite, NaN or rounds to infinity, so that its parts do not add up.
  SplitPackFn pack_a[2] = {}, pack_b[2] = {};
  void (*multiply)(const SplitGemm& product) = nullptr;
  /// Before the first product of a thread, and after the last one.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_H_

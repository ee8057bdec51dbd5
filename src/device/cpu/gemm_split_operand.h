#ifndef ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_OPERAND_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_OPERAND_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_split.h"

namespace onnxgrad::device {

/// An operand of a split GEMM, A with rows or B with columns as groups: float32, or another type
/// that is converted as it is packed.
struct SplitOperand {
  static constexpr std::int64_t kNumberSteps = 256;
  static constexpr std::int64_t kLines = kSplitBlock * kNumberSteps;  ///< elements of `lines`

  const void* matrix = nullptr;
  GemmSource source;
  std::ptrdiff_t row = 0;          ///< row stride in memory, in elements
  bool are_steps_adjacent = true;  ///< in memory; else A's rows, or B's columns, are
  SplitPackFn pack_fn = nullptr;
  float* lines = nullptr;
  int parts = 3;

  /// Elements in float32, in place or in `lines`, and their strides.
  struct Numbers {
    const float* from = nullptr;
    std::ptrdiff_t row = 0, step = 0;
  };

  /// Rows of A or columns of B, and steps of k.
  struct Range {
    std::int64_t first = 0, count = 0;
    std::int64_t step = 0, steps = 0;
  };

  /// Packs groups, `group` bytes apart. The last byte of each says whether it has an element that
  /// is infinite or rounds to infinity: a part would be NaN.
  void pack(const Range& range, std::byte* to, std::ptrdiff_t group) const;

  /// Returns at most kSplitBlock rows or columns of at most kNumberSteps steps in float32.
  Numbers numbers(const Range& range) const;

 private:
  std::int64_t index(std::int64_t i, std::int64_t k) const {
    return are_steps_adjacent ? i * row + k : k * row + i;
  }
  void convert(const Range& range, std::ptrdiff_t line_row) const;
  bool pack_groups(const Range& range, std::byte* to, std::ptrdiff_t group) const;
  bool has_infinity(const Range& range) const;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_OPERAND_H_

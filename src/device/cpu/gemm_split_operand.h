#ifndef ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_OPERAND_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_SPLIT_OPERAND_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_split.h"

namespace onnxgrad::device {

/// A, whose rows become groups, or B, whose columns do: of float32, or converted to it as they are
/// packed.
struct SplitOperand {
  static constexpr std::int64_t kNumberSteps = 256;
  static constexpr std::int64_t kLines = kSplitBlock * kNumberSteps;  ///< floats of `lines`

  const void* matrix = nullptr;
  GemmSource source;
  std::ptrdiff_t row = 0;          ///< numbers, from row to row in memory
  bool are_steps_adjacent = true;  ///< there; or else rows of A, columns of B
  SplitPackFn pack_fn = nullptr;
  float* lines = nullptr;
  int parts = 3;

  /// Numbers in float32, where they are or in `lines`; distances from one to the next.
  struct Numbers {
    const float* from = nullptr;
    std::ptrdiff_t row = 0, step = 0;
  };

  /// Rows of A or columns of B, and steps.
  struct Range {
    std::int64_t first = 0, count = 0;
    std::int64_t step = 0, steps = 0;
  };

  /// Groups, `group` bytes apart. Sets flags[g] to whether group g has an infinite number, or one
  /// that rounds to infinity: its parts are no numbers.
  void pack(const Range& range, std::byte* to, std::ptrdiff_t group, std::uint8_t* flags) const;

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

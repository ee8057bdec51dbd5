#ifndef ONNXGRAD_DEVICE_CPU_WIDE_OPERANDS_H_
#define ONNXGRAD_DEVICE_CPU_WIDE_OPERANDS_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/convert.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/half_gemm.h"

namespace onnxgrad::device {

/// A matrix whose numbers a product packs as float32.
struct WideSource {
  ConvertFn convert = nullptr;
  std::int64_t size = 2;  ///< bytes of a number

  const std::byte* at(const void* matrix, std::int64_t index) const {
    return static_cast<const std::byte*>(matrix) + index * size;
  }
};

/// Halves, or float32 that is rounded to them.
WideSource source_of_b(const HalfGemmSpec& spec);

/// Where `count` columns of a matrix B go: [steps, width], zeros after the last one.
struct WidePanel {
  std::int64_t steps = 0, count = 0, width = 0;
  float* to = nullptr;
};

/// From number `first` of B [steps, columns] on; `row` numbers from row to row.
void pack_columns(const WideSource& source, const void* b, std::int64_t first, std::int64_t row,
                  const WidePanel& panel);

inline constexpr std::int64_t kWideLines = 16;  ///< rows that are transposed at a time
/// From number `first` of B [columns, steps] on. `lines` holds kWideLines rows.
void pack_rows(const WideSource& source, const void* b, std::int64_t first, std::int64_t row,
               const WidePanel& panel, const GemmTarget<float>& target, float* lines);

/// Operands of a product of halves as float32 in scratch, for a kernel that computes in float32.
struct WideOperands {
  std::int64_t a_count = 0, b_count = 0;  ///< of numbers
  WideSource a = {}, b = {};
  int threads = 1;
  std::int64_t bytes = 0;  ///< of scratch; 0: none

  /// Replaces A and B by their numbers in float32, which are written to `scratch`.
  void convert(const void*& from_a, const void*& from_b, std::byte* scratch) const;
};

/// Of a dense product.
WideOperands wide_operands(const HalfGemmSpec& spec);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_WIDE_OPERANDS_H_

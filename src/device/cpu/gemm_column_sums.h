#ifndef ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_kernel.h"

// Sums of C's columns (GemmSpec::sums_columns): kernels add them up in T for each block of rows,
// then these are added in float64.

namespace onnxgrad::device {

/// Returns the sums of the block of rows, by column of C, after setting those of the task's columns
/// to zero; nullptr if there are none, or if C is not complete yet. `lanes`: columns of a vector.
template <class T>
T* begin_column_sums(const GemmTask& task, std::int64_t lanes) {
  if (task.column_sums == nullptr || !task.is_last) return nullptr;
  const GemmPanels& panels = *task.columns.panels;
  T* const sums = reinterpret_cast<T*>(task.column_sums);
  std::fill(sums + panels.column + panels.split.first(task.columns.first) * lanes,
            sums + panels.column +
                std::min(panels.split.first(task.columns.last) * lanes, panels.columns),
            T(0));
  return sums;
}

/// Writes columns [first, last) of `to`, the sums of all `row_blocks` blocks of [n] at `sums`.
template <class T>
void add_column_sums(const std::byte* sums, std::int64_t row_blocks, std::int64_t n,
                     std::int64_t first, std::int64_t last, void* to) {
  const T* const from = reinterpret_cast<const T*>(sums);
  for (std::int64_t j = first; j < last; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < row_blocks; ++i) sum += static_cast<double>(from[i * n + j]);
    static_cast<T*>(to)[j] = static_cast<T>(sum);
  }
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_

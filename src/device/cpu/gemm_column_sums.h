#ifndef ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/cpu/gemm_plan.h"

namespace onnxgrad::device {

/// Sums of C's columns over the rows of one thread of a blocked GEMM (GemmSpec::sums_columns):
/// those of the current block, whose rows are few, in T, and those of all blocks in double. Both
/// are arrays [n] in the thread's scratch (GemmPlan::sums_offset).
template <class T>
class ColumnSums {
 public:
  ColumnSums() = default;
  ColumnSums(const GemmPlan<T>& plan, std::byte* scratch)
      : totals_(reinterpret_cast<double*>(scratch + plan.sums_offset)),
        sums_(reinterpret_cast<T*>(totals_ + plan.n)) {}

  /// Bytes of both arrays for n columns.
  static std::int64_t bytes(std::int64_t n) {
    return round_up(n * static_cast<std::int64_t>(sizeof(double) + sizeof(T)), 64);
  }

  void begin(std::int64_t column, std::int64_t columns) {
    std::fill_n(totals_ + column, columns, 0.0);
    std::fill_n(sums_ + column, columns, T(0));
  }

  /// Sums of the current block, to which tiles add, by column of C; nullptr: nothing is summed.
  T* of_block() const { return sums_; }

  void end_block(std::int64_t column, std::int64_t columns) {
    for (std::int64_t j = column; j < column + columns; ++j) {
      totals_[j] += static_cast<double>(std::exchange(sums_[j], T(0)));
    }
  }

  /// Writes columns [first, last) of GemmOperands::column_sums, adding the sums of threads
  /// [thread, thread + threads).
  static void write(const GemmPlan<T>& plan, const GemmOperands& operands, std::int64_t thread,
                    std::int64_t threads, std::int64_t first, std::int64_t last) {
    auto* to = static_cast<T*>(operands.column_sums);
    for (std::int64_t j = first; j < last; ++j) {
      double sum = 0;
      for (std::int64_t i = thread; i < thread + threads; ++i) {
        const std::byte* scratch = operands.scratch + i * plan.thread_scratch + plan.sums_offset;
        sum += reinterpret_cast<const double*>(scratch)[j];
      }
      to[j] = static_cast<T>(sum);
    }
  }

 private:
  double* totals_ = nullptr;
  T* sums_ = nullptr;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_

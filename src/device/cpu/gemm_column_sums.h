#ifndef ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_COLUMN_SUMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/cpu/gemm_plan.h"

namespace onnxgrad::device {

/// The sums of C's columns that one thread of a blocked product has (GemmSpec::sums_columns): of a
/// block, whose rows are few, in T, and over the blocks in double. Both lie in its scratch, by
/// column of C (GemmPlan::sum_totals, block_sums).
template <class T>
class ColumnSums {
 public:
  ColumnSums() = default;
  ColumnSums(const GemmPlan<T>& plan, std::byte* scratch)
      : totals_(plan.sum_totals.in(scratch)), sums_(plan.block_sums.in(scratch)) {}

  /// Reserves both for all columns.
  static void reserve(GemmPlan<T>& plan, ScratchLayout& layout) {
    plan.sum_totals = layout.reserve<double>(plan.n);
    plan.block_sums = layout.reserve<T>(plan.n);
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
        sum += plan.sum_totals.in(plan.thread_scratch.in(operands.scratch, i))[j];
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

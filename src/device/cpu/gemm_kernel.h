#ifndef ONNXGRAD_DEVICE_CPU_GEMM_KERNEL_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_KERNEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cpu/even_split.h"
#include "device/cpu/gemm.h"

// The interface between the loop nest of large GEMMs (gemm_driver.h), which cuts C into blocks,
// has operands packed and shares the work among threads, and the kernel of an instruction set and
// type, which packs and multiplies one block.

namespace onnxgrad::device {

/// Rows of C whose columns are summed first (GemmTask::column_sums): bits depend on no other
/// number.
inline constexpr std::int64_t kGemmSumRows = 32;

/// Sizes of the blocks that a kernel multiplies, and what it needs for them.
struct GemmBlocking {
  std::int64_t m = 0, n = 0, k = 0;  ///< maximum of the rows, columns and steps of a block
  /// Multiple of rows that the driver may shorten blocks to; with sums, of kGemmSumRows.
  std::int64_t row_unit = 1;
  std::int64_t unit = 1;         ///< columns of a vector
  std::int64_t panel_units = 1;  ///< vectors in the widest B panel
  /// B panels into which all columns are cut, if B was packed in advance; else each block of
  /// columns is cut anew.
  EvenSplit packed_b = {};
  std::int64_t a_bytes = 0;  ///< of a packed block of A; 0: the kernel reads A in place
  /// Bytes of a packed vector of columns, k steps; 0: B was packed in advance, or the kernel packs.
  std::int64_t b_unit_bytes = 0;
  bool packs_a_once = false;       ///< packing A takes long: all rows for a block of k, k outermost
  std::int64_t sum_bytes = 0;      ///< of a column's sum, float or double; 0: sums_columns is false
  std::int64_t scratch_bytes = 0;  ///< of a thread
  bool has_consumer = false;       ///< blocks of C are completed one after the other
};

/// Columns of a block: B panels of up to GemmBlocking::panel_units vectors, from `column` on.
struct GemmPanels {
  EvenSplit split;
  std::int64_t column = 0, columns = 0;

  /// Columns of a panel.
  struct Panel {
    std::int64_t offset = 0;  ///< in the block
    std::int64_t width = 0;   ///< with padding
    std::int64_t count = 0;
  };
  /// Returns panel `p`; `unit`: columns of a vector.
  Panel panel(std::int64_t p, std::int64_t unit) const {
    const std::int64_t offset = split.first(p) * unit;
    const std::int64_t width = split.size(p) * unit;
    return {.offset = offset, .width = width, .count = std::min(width, columns - offset)};
  }
};

/// Rows of C and steps of k.
struct GemmRows {
  std::int64_t row = 0, rows = 0;
  std::int64_t k = 0, steps = 0;
};

/// B panels [first, last) of a block of columns, and steps of k.
struct GemmColumns {
  const GemmPanels* panels = nullptr;
  std::int64_t first = 0, last = 0;
  std::int64_t k = 0, steps = 0;
};

/// A block of C += A B.
struct GemmTask {
  GemmRows rows;
  GemmColumns columns;
  const std::byte* a = nullptr;  ///< packed; nullptr: in place
  const std::byte* b =
      nullptr;  ///< packed panels, from the block's first on; nullptr: see b_unit_bytes
  /// Sums of C's columns, [n], for each kGemmSumRows of these rows; nullptr: none.
  std::byte* column_sums = nullptr;
  /// The first steps of k: sums replace C, and start and the other addends are added.
  bool is_first = false;
  /// C is complete: ReLU, scales and column sums follow, or the consumer gets it.
  bool is_last = false;
  /// Scratch of the thread, also for packing; keeps a consumer's block of C from task to task.
  std::byte* scratch = nullptr;
};

/// A kernel with the plan of one GEMM. Its functions may run on several threads at once.
class GemmKernel {
 public:
  GemmKernel() = default;
  virtual ~GemmKernel() = default;
  GemmKernel(const GemmKernel&) = delete;
  GemmKernel& operator=(const GemmKernel&) = delete;

  /// Packs rows of op(A) into `to`, a_bytes.
  virtual void pack_a(const GemmOperands& operands, const GemmRows& rows, std::byte* to,
                      std::byte* scratch) const = 0;
  /// Packs B panels into their places in `to`, the address of the first panel of the block.
  virtual void pack_b(const GemmOperands& operands, const GemmColumns& columns, std::byte* to,
                      std::byte* scratch) const = 0;
  /// Multiplies a block.
  virtual void compute(const GemmOperands& operands, const GemmTask& task) const = 0;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_KERNEL_H_

#ifndef ONNXGRAD_DEVICE_STEP_KERNELS_H_
#define ONNXGRAD_DEVICE_STEP_KERNELS_H_

#include <cstdint>

#include "onnxgrad/tensor.h"
#include "opdef/kernel.h"

// Kernels that the runtime puts around the kernels of a plan, so that a series of steps needs no
// host between them. A step of a series has the number k = StepCells::step -
// SeriesCells::first_step.

namespace onnxgrad::device {

/// Cells as they are in the memory of a device, at the address that Launch::cells is. A kernel that
/// cannot throw where it runs sets `is_refused`; calls with CallPlace::is_guarded then do nothing,
/// so that states stay as they were before the step, until the error has been thrown on the host.
struct DeviceStepCells {
  opdef::StepCells cells = {};
  std::uint64_t is_refused = 0;
};

/// The series that is running, in the memory of the device.
struct SeriesCells {
  std::uint64_t first_step = 0;  ///< StepCells::step of its first step
  std::int64_t first_place = 0;  ///< position of its first row in the order of the rows
};

/// Data of StepKernels::take_scalar and keep_scalar: a floating-point type.
struct ScalarCopy {
  DataType dtype = DataType::kFloat32;
};

/// Data of StepKernels::gather_rows.
struct RowGather {
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;        ///< of a batch
  std::int64_t batch_rows = 0;  ///< positions from one step's first row to the next step's
};

/// Data of StepKernels::copy_bytes.
struct ByteCopy {
  std::int64_t bytes = 0;
};

struct StepKernels {
  /// (cells StepCells): counts `step` up. The argument is the address that Launch::cells is.
  opdef::KernelFn count_step = nullptr;
  /// (series SeriesCells, table float64[n], to dtype): to = table[k].
  opdef::KernelFn take_scalar = nullptr;
  /// (series SeriesCells, from dtype, ring float64[n]): ring[k] = from.
  opdef::KernelFn keep_scalar = nullptr;
  /// (series SeriesCells, source [N, row], order int64[M] or null, to [rows, row]): row i of `to`
  /// is row order[p] of the source, or row p without an order, p = first_place + k batch_rows + i.
  opdef::KernelFn gather_rows = nullptr;
  /// (from, to): no overlap.
  opdef::KernelFn copy_bytes = nullptr;
};

/// The kernels of a device that runs functions of this process on its memory.
const StepKernels& host_step_kernels();

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_STEP_KERNELS_H_

#ifndef ONNXGRAD_OPS_FAULT_TEXT_CUDA_H_
#define ONNXGRAD_OPS_FAULT_TEXT_CUDA_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "device/cuda/faults.h"
#include "device/cuda/text_kernel.h"
#include "opdef/kernel.h"

// Values that kernels refuse while they run (device/cuda/faults.h).

namespace onnxgrad::ops {

/// The text of og_refuse(cells, record, value, position), which notes the first value that is
/// refused in the record (device/cuda/faults.cpp) and behind the cells (DeviceStepCells); the
/// kernel goes on without it.
std::string_view fault_text();

/// Two words for og_refuse, cells and record. The kernel keeps `record`.
struct Refusal {
  std::shared_ptr<const std::int64_t> record;  ///< its address
  void append(std::vector<device::cuda::Word>& words) const;
};
Refusal refusal(const opdef::KernelRequest& request, device::cuda::Faults::Raise raise);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FAULT_TEXT_CUDA_H_

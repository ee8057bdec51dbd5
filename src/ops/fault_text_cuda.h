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

/// The text of og_refuse(board, number, value, position), which notes the first value that is
/// refused; the kernel goes on without it.
std::string_view fault_text();

/// Two words for og_refuse, board and number. The kernel keeps `number`.
struct Refusal {
  std::shared_ptr<const std::int64_t> number;
  std::int64_t board = 0;
  void append(std::vector<device::cuda::Word>& words) const;
};
Refusal refusal(const opdef::KernelRequest& request, device::cuda::Faults::Raise raise);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FAULT_TEXT_CUDA_H_

#ifndef ONNXGRAD_DEVICE_CUDA_STEP_KERNELS_H_
#define ONNXGRAD_DEVICE_CUDA_STEP_KERNELS_H_

#include <memory>
#include <optional>

#include "device/cuda/context.h"
#include "device/cuda/text_kernel.h"
#include "device/step_kernels.h"
#include "device/work.h"

namespace onnxgrad::device::cuda {

/// Compiles the kernels of steps for a card, of which they are then available by
/// cuda_step_kernels(). Throws: DeviceError.
void prepare_step_kernels(const std::shared_ptr<Context>& context);

/// They choose the card by the stream that they are launched on.
const StepKernels& cuda_step_kernels();

/// The text of a call of one of them on the card whose context is current; nullopt: it is none.
std::optional<TextKernel> step_text_kernel(const KernelCall& call);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_STEP_KERNELS_H_

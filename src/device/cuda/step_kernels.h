#ifndef ONNXGRAD_DEVICE_CUDA_STEP_KERNELS_H_
#define ONNXGRAD_DEVICE_CUDA_STEP_KERNELS_H_

#include <memory>

#include "device/cuda/context.h"
#include "device/step_kernels.h"

namespace onnxgrad::device::cuda {

/// Compiles the kernels of steps for a card, of which they are then available by
/// cuda_step_kernels(). Throws: DeviceError.
void prepare_step_kernels(const std::shared_ptr<Context>& context);

/// They choose the card by the stream that they are launched on.
const StepKernels& cuda_step_kernels();

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_STEP_KERNELS_H_

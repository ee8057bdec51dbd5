#ifndef ONNXGRAD_DEVICE_CUDA_PERSISTENT_H_
#define ONNXGRAD_DEVICE_CUDA_PERSISTENT_H_

#include <memory>
#include <string>

#include "device/cuda/context.h"
#include "device/cuda/recording.h"
#include "device/work.h"

// Small plans as one kernel. A kernel in a graph costs a microsecond, a barrier of a block 15 ns:
// work whose kernels are all texts of a few blocks becomes the text of one kernel, of one block,
// that does what their blocks do one after the other, as often as it is told.

namespace onnxgrad::device::cuda {

/// Makes one kernel of this work, or returns nullptr if it is too large for one block or has calls
/// that are not texts, or if the environment variable ONNXGRAD_CUDA_PERSISTENT is 0. The results
/// have the bits that the separate kernels give. Throws: DeviceError.
std::unique_ptr<CudaRecording> make_persistent(const std::shared_ptr<Context>& context,
                                               const Work& work, Address cells);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_PERSISTENT_H_

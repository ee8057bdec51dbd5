#ifndef ONNXGRAD_DEVICE_CUDA_RECORDING_H_
#define ONNXGRAD_DEVICE_CUDA_RECORDING_H_

#include <cstdint>

#include "device/cuda/api.h"
#include "device/work.h"

namespace onnxgrad::device::cuda {

/// Work that a stream repeats.
class CudaRecording : public Recording {
 public:
  /// Submits it so often to a stream, whose context is current. Throws: DeviceError.
  virtual void launch(Handle stream, std::int64_t times) const = 0;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_RECORDING_H_

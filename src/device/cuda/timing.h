#ifndef ONNXGRAD_DEVICE_CUDA_TIMING_H_
#define ONNXGRAD_DEVICE_CUDA_TIMING_H_

#include <functional>

#include "device/cuda/api.h"

namespace onnxgrad::device::cuda {

/// The best of `runs` times of a candidate on a stream, in microseconds, after launches that load
/// it; of a row of them in a graph, as plans run them, if it is short. Infinite if `launch` returns
/// an error. Throws: DeviceError (of the driver).
double best_time_us(Handle stream, int runs, const std::function<int()>& launch);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_TIMING_H_

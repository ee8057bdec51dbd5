#ifndef ONNXGRAD_DEVICE_CUDA_PLUGIN_H_
#define ONNXGRAD_DEVICE_CUDA_PLUGIN_H_

#include "device/plugin.h"

namespace onnxgrad::device::cuda {

/// The kind of devices "cuda", with kernels of `register_kernels`.
DevicePlugin cuda_plugin(void (*register_kernels)(const opdef::KernelRegistry& cpu,
                                                  opdef::KernelRegistry& own));

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_PLUGIN_H_

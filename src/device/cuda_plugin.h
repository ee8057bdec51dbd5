#ifndef ONNXGRAD_DEVICE_CUDA_PLUGIN_H_
#define ONNXGRAD_DEVICE_CUDA_PLUGIN_H_

#include <string>
#include <vector>

#include "device/plugin.h"

namespace onnxgrad::device::cuda {

/// The kind of devices "cuda", with kernels of `register_kernels`.
DevicePlugin cuda_plugin(void (*register_kernels)(const opdef::KernelRegistry& cpu,
                                                  opdef::KernelRegistry& own));

/// Folders of wheels are searched in these site-packages too, before those that are found; for
/// Python, which knows its own.
void add_site_packages(const std::vector<std::string>& folders);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_PLUGIN_H_

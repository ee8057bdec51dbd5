#include "onnxgrad/devices.h"

#include "device/cuda_plugin.h"
#include "onnxgrad/cuda_libraries.h"
#include "train/tools/devices.h"

namespace onnxgrad {

std::vector<DeviceInfo> devices() { return train::installed_devices(); }

void add_cuda_wheels(const std::vector<std::string>& site_packages) {
  device::cuda::add_site_packages(site_packages);
}

void load_device_plugin(const std::string& file) { train::load_device_plugin(file); }

}  // namespace onnxgrad
